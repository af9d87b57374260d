"""How commands are let in: TLS, certificates and keys, from options and environment."""

import re
import tomllib
from pathlib import Path

import grpc
import pytest
from certificates import Authority
from typer.testing import CliRunner

from cli.access import ClientAccess, access, read_access
from cli.main import app
from gateway.scopes import scopes_of
from serving.errors import Misconfigured
from serving.keys import Keyring, create_key
from serving.tls import TlsFiles

MADE = create_key()
RUNNER = CliRunner()
SCOPE = '[scopes.acme]\ncollections = { "*" = "read" }\n'


@pytest.fixture(autouse=True)
def _no_access() -> object:
    """Leave nothing of one command to the next test."""
    token = access.set(ClientAccess())
    yield
    access.reset(token)


def test_a_made_key_opens_what_its_line_is_written_into() -> None:
    """The line, put under [keys], lets in the key that was printed, with its scope and its limits."""
    made = RUNNER.invoke(
        app, ["keys", "create", "web", "--scope", "acme", "--requests-per-s", "2.5", "--burst", "9", "--max-calls", "3"]
    )
    assert made.exit_code == 0, made.output
    key, line = made.stdout.splitlines()
    caller = Keyring.parse(f"[keys]\n{line}\n{SCOPE}".encode(), scopes_of).by_key(key)
    assert caller.name == "web"
    assert (caller.limits.requests_per_s, caller.limits.burst, caller.limits.max_calls) == (2.5, 9, 3)
    assert caller.scope.right("any") == 1
    assert key not in line


def test_a_made_key_as_json() -> None:
    """Programs get both in one document."""
    made = RUNNER.invoke(app, ["keys", "create", "web", "--json"])
    found = re.search(r'"line": "web = (.*)"', made.stdout)
    assert found is not None
    assert set(tomllib.loads("web = " + found[1].replace('\\"', '"'))["web"]) == {"id", "sha256"}


@pytest.mark.parametrize("name", ["a b", "", "a=1", "x" * 65])
def test_a_name_that_toml_would_misread_is_refused(name: str) -> None:
    """Nothing is printed that breaks the file."""
    made = RUNNER.invoke(app, ["keys", "create", name])
    assert (made.exit_code, made.stdout) == (2, "")


def test_a_file_of_keys_is_checked(tmp_path: Path) -> None:
    """A good one is listed; one that a server would refuse exits with 2 and says where."""
    file = tmp_path / "keys"
    file.write_text(f'[keys]\nweb = {{ id = "{MADE.id}", sha256 = "{MADE.sha256}", scope = "acme" }}\n{SCOPE}')
    good = RUNNER.invoke(app, ["keys", "check", str(file)])
    assert (good.exit_code, good.stdout) == (0, "web\n")
    file.write_text(f'[keys]\nweb = {{ id = "{MADE.id}", sha256 = "{MADE.sha256}" }}\n')
    bad = RUNNER.invoke(app, ["keys", "check", str(file)])
    assert bad.exit_code == 2
    assert "keys.web" in bad.stderr
    assert RUNNER.invoke(app, ["keys", "check", str(file), "--no-scopes"]).exit_code == 0


def test_a_key_comes_from_the_environment_or_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file wins, neither is shown, and what cannot be a key is refused."""
    monkeypatch.setenv("TWOSTAGE_API_KEY", "from-environment")
    assert read_access(tls=False, files=TlsFiles(), api_key_file=None).api_key == "from-environment"
    (tmp_path / "key").write_text(f"{MADE.key}\n")
    given = read_access(tls=False, files=TlsFiles(), api_key_file=tmp_path / "key")
    assert given.api_key == MADE.key
    assert MADE.key not in repr(given)
    monkeypatch.setenv("TWOSTAGE_API_KEY", "two words")
    with pytest.raises(Misconfigured):
        read_access(tls=False, files=TlsFiles(), api_key_file=None)


def test_any_file_means_tls(tmp_path: Path) -> None:
    """Naming an authority and then talking in the clear would be a trap."""
    authority = Authority.make(tmp_path, "ours")
    assert ClientAccess().credentials() is None
    for told in (ClientAccess(tls=True), ClientAccess(files=TlsFiles(ca=authority.cert))):
        assert isinstance(told.credentials(), grpc.ChannelCredentials)


def test_wrong_files_are_one_line(tmp_path: Path) -> None:
    """A certificate without its key, or a file that is not there, ends a command before it calls anybody."""
    for options in (["--tls-cert", "a"], ["--tls-ca", str(tmp_path / "none")]):
        ended = RUNNER.invoke(app, [*options, "collections", "list"])
        assert ended.exit_code == 2
        assert ended.stderr.startswith("error: ")


@pytest.mark.parametrize(("address", "warned"), [("127.0.0.1:1", 0), ("localhost:1", 0), ("search.example:1", 1)])
def test_a_key_in_the_clear_is_warned_of(address: str, warned: int, capsys: pytest.CaptureFixture[str]) -> None:
    """Not on loopback, and never with the key."""
    ClientAccess(api_key=MADE.key).keyed(object(), address)
    shown = capsys.readouterr().err
    assert shown.count("in the clear") == warned
    assert MADE.key not in shown
