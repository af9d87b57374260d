"""A file of synonyms taken apart, laid out for a gateway, and the refusal to look at single entries on test."""

from pathlib import Path

import pytest
import yaml

from evaluation.first_stage.synonyms import SynonymFile, alias_of, in_words, require_no_tuning
from gateway.synonyms import SynonymBook
from serving.errors import InvalidRequest, Misconfigured

FILE = """
- any: [sofà, divano]
  language: it
- from: vpn
  to: [remote access, tunnel]
"""


def written(place: Path, text: str = FILE) -> Path:
    path = place / "some.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def test_every_entry_has_a_file_of_its_own_that_a_gateway_reads(tmp_path: Path) -> None:
    """The whole file goes by the collection's name, each entry by its alias's, and nothing is lost on the way."""
    SynonymFile.read(written(tmp_path)).lay_out(tmp_path / "book", "c", per_entry=True)
    book = SynonymBook(tmp_path / "book")
    assert book.of("c").words("vpn sofà") == ["remote access", "tunnel", "divano"]
    assert book.of(alias_of("c", 1)).words("vpn sofà") == ["divano"]
    assert book.of(alias_of("c", 2)).words("vpn sofà") == ["remote access", "tunnel"]
    assert book.of(alias_of("c", 1)).words("sofà", "fr") == []


def test_files_of_an_earlier_trial_go(tmp_path: Path) -> None:
    """An entry that is no longer there leaves no file behind that would be applied."""
    file = SynonymFile.read(written(tmp_path))
    file.lay_out(tmp_path / "book", "c", per_entry=True)
    file.lay_out(tmp_path / "book", "c", per_entry=False)
    assert [path.name for path in (tmp_path / "book").iterdir()] == ["c.yaml"]
    assert yaml.safe_load((tmp_path / "book" / "c.yaml").read_text()) == list(file.entries)


@pytest.mark.parametrize("text", ["any: [a, b]", "- a\n- b", "- [", "just words"])
def test_what_is_no_list_of_entries_is_refused(tmp_path: Path, text: str) -> None:
    """It is refused before any server is started, with the file's name."""
    with pytest.raises(Misconfigured, match=r"some\.yaml is no") as refused:
        SynonymFile.read(written(tmp_path, text))
    assert refused.value.reason == "SYNONYMS_MALFORMED"


def test_single_entries_are_not_looked_at_on_test() -> None:
    """The whole file may be tried on test, entries only on dev."""
    require_no_tuning("dev", per_entry=True)
    require_no_tuning("test", per_entry=False)
    with pytest.raises(InvalidRequest, match="refuses to tune on test"):
        require_no_tuning("test", per_entry=True)


def test_an_entry_is_told_in_one_line(tmp_path: Path) -> None:
    """Two-way entries have equals signs, one-way ones an arrow."""
    assert [in_words(entry) for entry in SynonymFile.read(written(tmp_path)).entries] == [
        "sofà = divano",
        "vpn -> remote access, tunnel",
    ]
