"""The catalog is read strictly, and pinned once."""

import shutil
from pathlib import Path

import pytest

from models import catalog
from serving.bundle import FileEntry
from serving.errors import Misconfigured

REVISION = "0123456789abcdef0123456789abcdef01234567"
NAMES = ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json")
ENTRIES = {name: FileEntry(size=10 + i, sha256=f"{i}" * 64) for i, name in enumerate(NAMES)}


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A copy of the catalog that a test may change."""
    return Path(shutil.copy(catalog.CATALOG, tmp_path / "catalog.toml"))


def test_the_models_that_are_supported():
    """The catalog names the two models, their prefixes, pooling and limits."""
    encoder, reranker = (catalog.read().model(kind) for kind in ("encoder", "reranker"))
    assert (encoder.id, encoder.pooling, encoder.max_tokens) == ("intfloat/multilingual-e5-small", "mean", 512)
    assert (encoder.query_prefix, encoder.passage_prefix) == ("query: ", "passage: ")
    assert (reranker.id, reranker.max_tokens) == ("BAAI/bge-reranker-v2-m3", 512)


def test_pinning(copy: Path):
    """Revision and digests are written where they are missing, told, and read back; comments stay."""
    written = catalog.pin(copy, "reranker", REVISION, ENTRIES)
    assert len(written) == 1 + len(NAMES)
    model = catalog.read(copy).reranker
    assert model.revision == REVISION
    assert {file.name: file.pinned for file in model.files} == ENTRIES
    assert catalog.read(copy).encoder == catalog.read().encoder
    assert copy.read_text().startswith("# The models of the profile")


def test_what_is_pinned_never_changes(copy: Path):
    """Pinning again, with another revision and other digests, writes nothing."""
    catalog.pin(copy, "encoder", REVISION, ENTRIES)
    before = copy.read_bytes()
    others = {name: FileEntry(size=1, sha256="f" * 64) for name in NAMES}
    assert catalog.pin(copy, "encoder", "f" * 40, others) == []
    assert copy.read_bytes() == before


@pytest.mark.parametrize(
    ("old", "new"),
    [
        pytest.param('licence = "MIT"', 'licence = "MIT"\nrevision = "main"', id="a branch is no revision"),
        pytest.param('name = "config.json"', 'name = "config.json"\nsize = 5', id="size without digest"),
        pytest.param('name = "config.json"', 'name = "../config.json"', id="path"),
        pytest.param("max_tokens = 512", "max_token = 512", id="misspelt"),
        pytest.param("[encoder]", "[encoder", id="no TOML"),
    ],
)
def test_malformed(copy: Path, old: str, new: str):
    """A catalog that is not right is refused, with its path."""
    copy.write_text(copy.read_text().replace(old, new, 1))
    with pytest.raises(Misconfigured, match=r"catalog\.toml"):
        catalog.read(copy)


def test_missing(tmp_path: Path):
    """No catalog is one clear error."""
    with pytest.raises(Misconfigured, match="cannot be read"):
        catalog.read(tmp_path / "catalog.toml")
