"""API keys and the file that lists them."""

import hashlib
from collections.abc import Callable
from typing import Any

import pytest

from serving import keys
from serving.errors import Misconfigured, Unauthenticated
from serving.keys import Keyring, NewKey, create_key

MADE = create_key()


def line(name: str, made: NewKey = MADE, more: str = "") -> str:
    """Write a line of the file."""
    return f'{name} = {{ id = "{made.id}", sha256 = "{made.sha256}"{more} }}\n'


def test_a_key_is_256_bits_and_is_not_in_its_line():
    """The file holds an id and the SHA-256 of the whole key, and no two keys are alike."""
    other = create_key()
    assert MADE.key.startswith(f"twostage_{MADE.id}_")
    assert len(MADE.key.removeprefix(f"twostage_{MADE.id}_")) == 43
    assert MADE.sha256 == hashlib.sha256(MADE.key.encode()).hexdigest()
    assert MADE.key != other.key
    assert MADE.id != other.id


def test_several_keys_are_active_and_told_apart():
    """Two keys of one caller work side by side, which is how one is replaced."""
    other = create_key()
    ring = Keyring.parse(("[keys]\n" + line("old") + line("new", other, ", max_calls = 3")).encode())
    assert [ring.by_key(one.key).name for one in (MADE, other)] == ["old", "new"]
    assert ring.by_key(other.key).limits.max_calls == 3


@pytest.mark.parametrize(
    "wrong",
    [
        MADE.key[:-1],
        MADE.key[:-1] + ("A" if MADE.key[-1] != "A" else "B"),
        create_key().key,
        MADE.key + " ",
        MADE.key.replace(MADE.id, "0" * 12),
        MADE.sha256,
        f"twostage_{MADE.id}_",
        "",
        "\0",
        "é" * 100,
    ],
    # Keys differ in every process, and the names of tests must not.
    ids=["short", "changed", "unknown", "blank", "other id", "hash", "no secret", "empty", "control", "no ascii"],
)
def test_what_is_no_key_is_refused(wrong: str):
    """A cut, changed, foreign or empty key is nobody's, nor is the digest that the file holds."""
    ring = Keyring.parse(("[keys]\n" + line("one")).encode())
    with pytest.raises(Unauthenticated) as caught:
        ring.by_key(wrong)
    assert caught.value.reason == "API_KEY_INVALID"
    if wrong:
        assert wrong not in caught.value.message


def test_every_look_up_compares_once_in_constant_time(monkeypatch: pytest.MonkeyPatch):
    """A right key, a wrong secret, an unknown id and nonsense all cost one compare_digest of 64 characters."""
    seen: list[tuple[int, int]] = []
    real: Callable[[str, str], bool] = keys.hmac.compare_digest

    def compare(one: str, other: str) -> bool:
        seen.append((len(one), len(other)))
        return real(one, other)

    monkeypatch.setattr(keys.hmac, "compare_digest", compare)
    ring = Keyring.parse(("[keys]\n" + line("one")).encode())
    ring.by_key(MADE.key)
    for wrong in (create_key().key, f"twostage_{MADE.id}_{'A' * 43}", "nonsense"):
        with pytest.raises(Unauthenticated):
            ring.by_key(wrong)
    assert seen == [(64, 64)] * 4


BROKEN: dict[str, str] = {
    "no TOML": "[keys\n",
    "an unknown field": "[keys]\n" + line("one", more=", max_cals = 3"),
    "an unknown table": "[kees]\n" + line("one"),
    "an id twice": "[keys]\n" + line("one") + line("two"),
    "a name twice": "[keys]\n" + line("one") + line("one", create_key()),
    "a key where its digest belongs": f'[keys]\none = {{ id = "{MADE.id}", sha256 = "{MADE.key}" }}\n',
    "no digest": f'[keys]\none = {{ id = "{MADE.id}" }}\n',
    "a limit of nothing": "[keys]\n" + line("one", more=", requests_per_s = 0"),
    "a limit that is no number": "[keys]\n" + line("one", more=", requests_per_s = nan"),
    "a name with a blank": "[keys]\n" + line('"one two"'),
}


@pytest.mark.parametrize("content", BROKEN.values(), ids=BROKEN)
def test_a_file_that_is_wrong_is_refused_whole(content: str):
    """Nothing of it counts, and the message names the place but no secret."""
    with pytest.raises(Misconfigured) as caught:
        Keyring.parse(content.encode())
    assert caught.value.reason == "API_KEYS"
    assert MADE.key not in caught.value.message
    assert MADE.sha256 not in caught.value.message


def read_scopes(tables: Any) -> dict[str, str]:
    """Stand for a server's reader of scopes."""
    return {name: f"{name}:{table['may']}" for name, table in tables.items()}


def test_scopes_are_read_where_a_server_has_them():
    """Key and certificate get their scope; without a reader they get none, and the tables do not matter."""
    content = (
        "[keys]\n"
        + line("one", more=', scope = "acme"')
        + '[certificates]\n"spiffe://corp/acme" = { scope = "acme" }\n[scopes.acme]\nmay = "read"\n'
    )
    ring = Keyring.parse(content.encode(), read_scopes)
    found = ring.by_certificate(["acme", "spiffe://corp/acme"])
    assert found is not None
    assert (ring.by_key(MADE.key).scope, found.scope, found.name) == ("acme:read", "acme:read", "spiffe://corp/acme")
    assert Keyring.parse(content.encode()).by_key(MADE.key).scope is None
    assert ring.by_certificate(["acme"]) is None


@pytest.mark.parametrize("more", ["", ', scope = "beta"'])
def test_a_key_without_a_scope_that_exists_is_refused_where_scopes_count(more: str):
    """Forgetting the scope does not mean being allowed everything."""
    content = "[keys]\n" + line("one", more=more) + '[scopes.acme]\nmay = "read"\n'
    with pytest.raises(Misconfigured, match=r"keys\.one"):
        Keyring.parse(content.encode(), read_scopes)
