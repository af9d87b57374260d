"""The profile full against a hub on the loopback interface: acquired, pinned, exported, and left alone afterwards."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from fake_hub import COMMIT, FakeHub, serving_hub
from tiny_models import TinyFile, write_hub_model

from models import catalog, full
from models.full import FullOptions
from models.verify import verify
from serving.errors import Misconfigured, Unavailable

pytest.importorskip("torch")
pytestmark = [pytest.mark.torch, pytest.mark.slow]


@pytest.fixture
def hub(tiny: TinyFile, tmp_path: Path) -> Iterator[FakeHub]:
    """A hub with the reranker's files; the encoder's directory is of the same files here."""
    source = write_hub_model(tmp_path / "source", tiny, "reranker")
    with serving_hub() as hub:
        hub.files.update({path.name: path.read_bytes() for path in source.iterdir()})
        hub.files["special_tokens_map.json"] = b"{}"
        yield hub


@pytest.fixture
def options(hub: FakeHub, tmp_path: Path) -> FullOptions:
    """Options with a catalog and a directory of the test's own."""
    copy = Path(shutil.copy(catalog.CATALOG, tmp_path / "catalog.toml"))
    return FullOptions(downloads=tmp_path / "downloads", endpoint=hub.endpoint, catalog=copy)


@pytest.fixture
def prepare(options: FullOptions, tmp_path: Path) -> Callable[[], list[str]]:
    """Prepares both bundles and returns the progress lines."""

    def call() -> list[str]:
        lines: list[str] = []
        full.prepare(tmp_path / "bundles", options, lines.append)
        return lines

    return call


def test_first_time_pins_and_second_does_nothing(
    hub: FakeHub, options: FullOptions, prepare: Callable[[], list[str]], tmp_path: Path
):
    """The first run downloads, pins, tells so and exports; the second asks nobody; a broken bundle is made anew."""
    lines = prepare()
    assert f"pinned in catalog.toml: reranker: revision {COMMIT}" in lines
    pinned = catalog.read(options.catalog)
    assert pinned.encoder.revision == pinned.reranker.revision == COMMIT
    assert all(file.pinned for file in pinned.reranker.files)
    manifest = verify(tmp_path / "bundles" / "reranker").manifest
    assert (manifest.model_id, manifest.revision) == ("BAAI/bge-reranker-v2-m3", COMMIT)
    hub.requests.clear()
    assert prepare() == ["encoder: up to date", "reranker: up to date"]
    (tmp_path / "bundles" / "reranker" / "bundle.json").unlink()
    assert prepare()[0] == "encoder: up to date"
    assert hub.requests == []
    verify(tmp_path / "bundles" / "reranker")


def test_a_read_only_catalog_is_told(prepare: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch):
    """Where the catalog cannot be written the models are made all the same, and a line says what was not done."""

    def refuse(_path: Path, _text: str):
        raise Misconfigured("CATALOG_READ_ONLY", "nothing was pinned")

    monkeypatch.setattr(catalog, "_replace", refuse)
    assert sum("nothing was pinned" in line for line in prepare()) == 2


def test_no_hub(options: FullOptions, tmp_path: Path, hub: FakeHub):
    """Without a hub there is one line and no bundle."""
    with serving_hub() as gone:
        pass
    unreachable = FullOptions(downloads=options.downloads, endpoint=gone.endpoint, catalog=options.catalog)
    with pytest.raises(Unavailable, match="profile demo"):
        full.prepare(tmp_path / "bundles", unreachable, lambda _line: None)
    assert not (tmp_path / "bundles").exists()
