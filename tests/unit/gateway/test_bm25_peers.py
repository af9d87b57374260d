"""Lists by words beside what bm25s and rank-bm25 make of the same documents: where they agree, and where not and why.

The documents are the help centre's, the queries its development questions.
"""

import json
import math
from pathlib import Path

import bm25s
import numpy as np
import pytest
from bm25_by_hand import tokens
from rank_bm25 import BM25Okapi

from gateway.parameters import CollectionParameters, LexicalParameters
from gateway.ports import Document, LexicalQuery, Model
from gateway.stores.edge import EdgeStore
from serving.deadline import Deadline

DATA = Path(__file__).parents[3] / "data/helpcentre"
WITHIN = {"rel": 5e-6, "abs": 1e-6}
"""Between sums of float32 and of float64."""
K1, B = 1.5, 0.75


def _lines(name: str) -> list[dict]:
    return [json.loads(line) for line in (DATA / name).read_text(encoding="utf-8").splitlines()]


TEXTS = [one["text"] for one in _lines("documents.jsonl")]
QUERIES = [one["query"] for one in _lines("queries.jsonl") if one["split"] == "dev"]
WORDS = [tokens(text, LexicalParameters()) for text in TEXTS]
PARAMETERS = LexicalParameters(k1=K1, b=B, average_words=sum(map(len, WORDS)) / len(WORDS))


@pytest.fixture
async def scores(tmp_path):
    """The store's scores: [queries, documents], 0 where a document is not in the list."""
    deadline, found = Deadline.after(60), np.zeros((len(QUERIES), len(TEXTS)))
    encoder = Model(id="m", revision="r", digest="d", precision="fp32")
    queries = [LexicalQuery(text=one) for one in QUERIES]
    async with await EdgeStore.open(tmp_path, in_process=True, patience_s=0) as store:
        parameters = CollectionParameters(lexical=PARAMETERS)
        await store.create("docs", dimension=2, encoder=encoder, parameters=parameters, deadline=deadline)
        documents = [Document(id=one, text=text) for one, text in enumerate(TEXTS)]
        await store.upsert("docs", documents, [np.ones(2, np.float32)] * len(TEXTS), deadline=deadline)
        wanted = {"encoder": None, "limit": len(TEXTS), "filter": None, "payload_fields": ()}
        answer = await store.search("docs", queries, **wanted, deadline=deadline)
    for row, one in zip(found, answer.lists, strict=True):
        for candidate in one.candidates:
            row[candidate.id] = candidate.score
    return found


def _asked(query: str) -> list[str]:
    return sorted(set(tokens(query, PARAMETERS)))


def test_bm25s_agrees_but_for_a_constant(scores):
    """Its method "lucene" leaves out the factor k1 + 1, which changes no order, and nothing else."""
    peer = bm25s.BM25(k1=K1, b=B, method="lucene")
    peer.index(WORDS, show_progress=False)
    vocabulary = peer.vocab_dict
    expected = [peer.get_scores([one for one in _asked(query) if one in vocabulary]) for query in QUERIES]
    assert np.count_nonzero(scores) > len(QUERIES)
    assert scores == pytest.approx((K1 + 1) * np.array(expected), **WITHIN)


def test_rank_bm25_differs_in_how_rare_a_word_is(scores):
    """BM25Okapi weighs documents alike and words otherwise: with our weights for its own it gives our scores."""
    peer = BM25Okapi(WORDS, k1=K1, b=B)
    theirs = np.array([peer.get_scores(_asked(query)) for query in QUERIES])
    assert not np.allclose(scores, theirs, rtol=0.01)
    having = {word: sum(word in one for one in WORDS) for word in peer.idf}
    average = peer.average_idf
    for word, count in having.items():
        plain = math.log((len(WORDS) - count + 0.5) / (count + 0.5))
        assert peer.idf[word] == pytest.approx(plain if plain >= 0 else 0.25 * average)
        peer.idf[word] = math.log(1 + (len(WORDS) - count + 0.5) / (count + 0.5))
    assert scores == pytest.approx(np.array([peer.get_scores(_asked(query)) for query in QUERIES]), **WITHIN)
