"""What a gateway's settings refuse before anything is started."""

import pytest

from gateway.settings import GatewaySettings
from serving.settings import EXIT_MISCONFIGURED, load


def test_the_embedded_store_is_not_for_several_workers(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two processes cannot open it: the parent of the workers says so in one line and starts none."""
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "false")  # what `load` sets as well does not outlive the test
    monkeypatch.setenv("TWOSTAGE_GATEWAY_WORKERS", "2")
    with pytest.raises(SystemExit) as caught:
        load(GatewaySettings)
    assert caught.value.code == EXIT_MISCONFIGURED
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "workers=2 with store=edge: the embedded store belongs to one process" in said


@pytest.mark.parametrize(("workers", "store"), [(1, "edge"), (1, "qdrant"), (2, "qdrant")])
def test_every_other_store_and_number_of_workers_is_taken(workers: int, store: str) -> None:
    """One worker may have either store, and several may share a Qdrant server."""
    assert GatewaySettings(workers=workers, store=store).workers == workers


@pytest.fixture
def writer(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """An environment with all of a writer but its URL."""
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "false")
    monkeypatch.setenv("TWOSTAGE_GATEWAY_WRITER_MODEL", "m")
    return monkeypatch


@pytest.mark.parametrize(
    "url",
    [
        "host/v1",
        "ftp://host/v1",
        "http://",
        "http:///v1",
        "http://:80/v1",
        "http://[::1",
        "http://[::g]/v1",
        "http://[1:2]/v1",
        "http://host:0/v1",
        "http://host:65536/v1",
        "http://host:/v1",
        "http://host:x/v1",
        "http://999.1.1.1/v1",
        "http://..../v1",
        f"http://{'a' * 64}/v1",
        "http://ho st/v1",
        "http://host\\v1",
        "http://host/v1\x7f",
        "http://host/v1\n",
        "http://host/v1?key=s3cret",
        "http://host/v1#s3cret",
        "http://s3cret@host/v1",
        "http://user:s3cret@host/v1",
        "http://user:1@s3cret/v1",
        "https://user:s3cret@[::1]:443/v1",
    ],
)
def test_what_is_no_address_of_an_api_is_refused(
    url: str, writer: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A gateway whose writer could not be called as told does not start, and says so without the URL's words."""
    writer.setenv("TWOSTAGE_GATEWAY_WRITER_URL", url)
    with pytest.raises(SystemExit) as caught:
        load(GatewaySettings)
    assert caught.value.code == EXIT_MISCONFIGURED
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert said.startswith("TWOSTAGE_GATEWAY_WRITER_URL: ")
    assert "s3cret" not in said


@pytest.mark.parametrize(
    "url",
    [
        "https://host/v1",
        "http://host",
        "http://host/",
        "http://a_b.local.:65535/x/v1/",
        "http://127.0.0.1:8000/v1",
        "http://[::1]:8000/v1",
        "https://b\N{LATIN SMALL LETTER U WITH DIAERESIS}cher.example/v1",
        "https://xn--strae-oqa.example/v1",
        "https://host/~me@here/v1",
    ],
)
def test_every_address_of_an_api_is_taken(url: str, writer: pytest.MonkeyPatch) -> None:
    """A name, an IPv4 or IPv6 address, with or without port and path, is kept as it was told."""
    writer.setenv("TWOSTAGE_GATEWAY_WRITER_URL", url)
    assert load(GatewaySettings).writer_url == url


def test_a_writer_needs_a_model(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A URL alone does not say what to write with."""
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "false")
    monkeypatch.setenv("TWOSTAGE_GATEWAY_WRITER_URL", "https://host/v1")
    with pytest.raises(SystemExit):
        load(GatewaySettings)
    assert "writer_url needs writer_model" in capsys.readouterr().err
