"""From what a person names to a data set: a directory, a file, or a public set by its name."""

from collections.abc import Callable, Mapping
from pathlib import Path

from evaluation.datasets import cranfield, faq, folder, jsonl, squad
from evaluation.datasets.model import Dataset
from serving.errors import Misconfigured

PUBLIC_VARIABLE = "TWOSTAGE_PUBLIC_DATA"
"""Environment variable that names the directory of the public sets; read by the command line, not here."""

Loader = Callable[[Path], Dataset]


def _xquad(lang: str) -> Loader:
    return lambda public: squad.load(f"xquad.{lang}", [public / f"xquad/xquad.{lang}.json"], lang=lang)


def _covidfaq(lang: str) -> Loader:
    return lambda public: faq.load(f"covidfaq.{lang}", public / "covidfaq/faq_200327.tsv", lang)


def _cnil(public: Path) -> Dataset:
    paths = [public / "cnil_fr" / name for name in ("squad.json", "crpa_squad.json")]
    return squad.load("cnil_fr", paths, lang="fr")


def _jaquad(public: Path) -> Dataset:
    return squad.load("jaquad_dev", sorted((public / "jaquad").glob("dev_*.json")), lang="ja")


def _squad_it(public: Path) -> Dataset:
    return squad.load("squad_it", [public / "squad_it/SQuAD_it-test.json.gz"], lang="it")


PUBLIC: Mapping[str, Loader] = {
    **{f"xquad.{lang}": _xquad(lang) for lang in ("en", "de", "es", "ru", "zh", "ar")},
    "squad_it": _squad_it,
    **{f"covidfaq.{lang}": _covidfaq(lang) for lang in ("de", "en", "it", "pl", "sv")},
    "cnil_fr": _cnil,
    "jaquad_dev": _jaquad,
    "cranfield": lambda public: cranfield.load(public / "cranfield"),
}


def find(named: str, public: Path | None) -> Dataset:
    """Read the data set that a person names.

    Args:
        named: A directory or file, or a key of `PUBLIC`.
        public: Directory of the public sets.

    Raises:
        Misconfigured: There is nothing of the kind, or it is malformed.
    """
    place = Path(named)
    if place.exists():
        return _read(place)
    if named not in PUBLIC:
        raise Misconfigured(
            "DATASET_UNKNOWN", f"{named}: no such directory or file, and no public set; those are {', '.join(PUBLIC)}"
        )
    if public is None:
        raise Misconfigured(
            "DATASET_UNKNOWN", f"{named} is a public set: name the directory of those in {PUBLIC_VARIABLE}"
        )
    return PUBLIC[named](public)


def _read(place: Path) -> Dataset:
    if place.is_file():
        return squad.load(place.name.partition(".json")[0], [place])
    for fits, load in _LAYOUTS:
        if fits(place):
            return load(place)
    if files := sorted([*place.glob("*.json"), *place.glob("*.json.gz")]):
        return squad.load(place.resolve().name, files)
    raise Misconfigured(
        "DATASET_UNKNOWN",
        f"{place} has none of the layouts: documents.jsonl with queries.jsonl; corpus.jsonl, queries.jsonl and "
        "qrels/test.tsv (BEIR); documents.jsonl, queries.tsv and qrels.txt (TREC); Cranfield; SQuAD files",
    )


_LAYOUTS: tuple[tuple[Callable[[Path], bool], Loader], ...] = (
    (folder.fits_beir, folder.load_beir),
    (folder.fits_trec, folder.load_trec),
    (jsonl.fits, jsonl.load),
    (cranfield.fits, cranfield.load),
)
