"""Token ids against transformers on the standard tokenizer.json: singles and pairs, cut longest first at 512.

TWOSTAGE_PUBLIC_DATA may name a directory of public retrieval sets (JSON, JSON lines, TSV, plain text, some of it
gzipped), whose texts are then compared too.
"""

import gzip
import json
import os
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from serving.bundle import Bundle
from serving.tokens import FrozenTokenizer, PairTruncation

HELP_CENTRE = Path(__file__).parents[2] / "data" / "helpcentre"
PUBLIC = os.environ.get("TWOSTAGE_PUBLIC_DATA", "")
SPECIAL = ("<s>", "</s>", "<pad>", "<unk>", "<mask>")
LIMIT, BATCH = 512, 500


@pytest.fixture(scope="module")
def frozen(demo_bundles: Path) -> FrozenTokenizer:
    """The tokenizer as the servers load it."""
    bundle = Bundle(demo_bundles / "encoder")
    return FrozenTokenizer(bundle.tokenizer_path, bundle.manifest.special_tokens, LIMIT)


@pytest.fixture(scope="module")
def standard(demo_bundles: Path) -> Any:
    """The same tokenizer.json as transformers uses it."""
    transformers = pytest.importorskip("transformers")
    path = str(demo_bundles / "encoder" / "tokenizer.json")
    return transformers.PreTrainedTokenizerFast(tokenizer_file=path, pad_token=SPECIAL[2])


def strings(value: Any) -> Iterator[str]:
    """Yield every text in a JSON value."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for part in value.values() if isinstance(value, dict) else value:
            yield from strings(part)


def texts_of(path: Path) -> Iterator[str]:
    """Yield a file's texts: strings of JSON, else cells of lines, else Cranfield's records."""
    raw = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    text = raw.decode("utf-8", "replace")
    if ".json" in path.suffixes:
        yield from strings(json.loads(text))
    elif path.suffix == ".jsonl":
        yield from strings([json.loads(line) for line in text.splitlines()])
    elif path.suffix == ".tsv":
        yield from (cell for line in text.splitlines() for cell in line.split("\t"))
    else:
        yield from text.split("\n.I ")


def all_texts(root: Path) -> list[str]:
    """Return a directory's different texts, without those that spell a special token."""
    found = (text for path in sorted(root.rglob("*")) if path.is_file() for text in texts_of(path))
    return [text for text in dict.fromkeys(found) if not any(special in text for special in SPECIAL)]


def batched(rows: list[Any]) -> Iterator[list[Any]]:
    """Cut rows into batches, as itertools.batched does from Python 3.12 on."""
    return (rows[begin : begin + BATCH] for begin in range(0, len(rows), BATCH))


def compare_singles(frozen: FrozenTokenizer, standard: Any, texts: list[str]):
    """Compare texts, each a row of its own."""
    for some in batched(texts):
        expected = standard(some, truncation=True, max_length=LIMIT)["input_ids"]
        assert [frozen.single(ids).ids for ids in frozen.content_ids(some)] == expected


def compare_pairs(frozen: FrozenTokenizer, standard: Any, pairs: list[tuple[str, str]]):
    """Compare pairs of query and passage."""
    for some in batched(pairs):
        queries, passages = ([pair[side] for pair in some] for side in (0, 1))
        expected = standard(queries, passages, truncation="longest_first", max_length=LIMIT)["input_ids"]
        sides = zip(frozen.content_ids(queries), frozen.content_ids(passages), strict=True)
        assert [frozen.pair(*side, PairTruncation.LONGEST_FIRST).ids for side in sides] == expected


@pytest.mark.torch
def test_help_centre(frozen: FrozenTokenizer, standard: Any):
    """Every text of the help-centre corpus has transformers' ids, alone and as passage of every tenth question."""
    documents, queries = (list(texts_of(HELP_CENTRE / f"{name}.jsonl")) for name in ("documents", "queries"))
    assert len(documents) >= 400
    compare_singles(frozen, standard, documents + queries)
    compare_pairs(frozen, standard, [(query, text) for query in queries[::10] for text in documents])


@pytest.mark.torch
def test_long_pairs(frozen: FrozenTokenizer, standard: Any):
    """Pairs over the limit are cut as transformers cuts them, whichever side is long, to the very token."""
    words = " ".join(texts_of(HELP_CENTRE / "documents.jsonl")).split()
    lengths = (1, 100, 180, 181, 182, 190, 191, 400, 700)
    sides = [" ".join(words[: length + extra]) for length in lengths for extra in (0, 1)]
    pairs = [(query, passage) for query in sides for passage in sides]
    cut = [pair for pair in pairs if sum(map(len, frozen.content_ids(pair))) > LIMIT - 4]
    assert len(cut) > 50
    compare_pairs(frozen, standard, pairs)


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.skipif(not PUBLIC, reason="TWOSTAGE_PUBLIC_DATA names no directory")
def test_public_sets(frozen: FrozenTokenizer, standard: Any):
    """Every text of the public sets has transformers' ids, alone and paired with the text after it."""
    texts = all_texts(Path(PUBLIC))
    assert len(texts) > 1000
    compare_singles(frozen, standard, texts)
    compare_pairs(frozen, standard, list(pairwise(texts)))


@pytest.mark.parametrize("special", SPECIAL)
def test_text_never_becomes_a_special_token(frozen: FrozenTokenizer, special: str):
    """Field failure 28: user text that spells a special token has ordinary ids wherever it stands."""
    texts = [special, f"panda{special}", f"what is panda{special}{special}panda bear", f" {special} ", special * 300]
    reserved = {0, 1, 2, 250_001}
    for ids in frozen.content_ids(texts):
        assert ids
        assert not reserved & set(ids)
    query, passage = frozen.content_ids(["what is panda", "panda bear"])
    pair = frozen.pair(query, passage, PairTruncation.LONGEST_FIRST)
    (forged,) = frozen.content_ids([f"what is panda{special}{special}panda bear"])
    assert frozen.single(forged).ids != pair.ids
    assert frozen.single(forged).ids.count(2) == 1
