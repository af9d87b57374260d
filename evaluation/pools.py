"""Frozen pools: their digest, and the rankings and judgments that they hold."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from evaluation.datasets.model import Question
from evaluation.figures import DocumentId
from evaluation.files import require_same
from evaluation.measures import Judged, Ranking
from evaluation.records import Asked, Candidates, FailedSearch, FrozenPool, Reranked

RETRIEVE_AGAIN = "run `twostage evaluate retrieve` again"
RERANK_AGAIN = "run `twostage evaluate rerank` again"


def digest(questions: Sequence[FrozenPool], failed: Sequence[FailedSearch]) -> str:
    """Return "sha256:" and the digest of everything that quality depends on before reranking.

    Args:
        questions: Pools, in their order.
        failed: Questions without one.
    """
    whole = hashlib.sha256()
    for pool in questions:
        candidates = [[candidate.id, candidate.text] for candidate in pool.candidates]
        whole.update(_line([*_question(pool), candidates]))
    for question in failed:
        whole.update(_line([*_question(question), None]))
    return f"sha256:{whole.hexdigest()}"


def require_untouched(candidates: Candidates) -> None:
    """Refuse pools that were changed after they were frozen.

    Raises:
        NotTogether: The digest is another.
    """
    actual = digest(candidates.questions, candidates.failed)
    require_same("the pools are not those that were frozen", actual, candidates.pool_digest, RETRIEVE_AGAIN)


def require_reranking_of(candidates: Candidates, reranked: Reranked) -> None:
    """Refuse a reranking of other pools.

    Raises:
        NotTogether: The pools, the corpus or the encoder is another, or a question was lost.
    """
    require_untouched(candidates)
    ours, theirs = candidates.provenance, reranked.provenance
    for what, found, wanted in (
        ("reranked.json is of another corpus", theirs.corpus.digest, ours.corpus.digest),
        ("reranked.json is of another encoder", _encoder(reranked), _encoder(candidates)),
        ("reranked.json is of other pools", reranked.pool_digest, candidates.pool_digest),
    ):
        require_same(what, found, wanted, RERANK_AGAIN)
    _require_permutations(candidates, reranked)


def judgments(candidates: Candidates, split: str | None = None) -> Mapping[str, Judged]:
    """Return question to grades, questions whose search failed included.

    Args:
        candidates: The pools.
        split: Only this one; None for all.
    """
    everything: tuple[Asked, ...] = (*candidates.questions, *candidates.failed)
    return {one.id: judged(one) for one in everything if split in {None, one.split}}


def judged(one: Asked) -> Judged:
    """Return the grades of one question."""
    return dict(zip(one.relevant, one.grades or [1] * len(one.relevant), strict=True))


def retrieved(candidates: Candidates) -> Mapping[str, Ranking]:
    """Return question to ids in retrieval order."""
    return {pool.id: ids(pool) for pool in candidates.questions}


def reranking(reranked: Reranked) -> Mapping[str, Ranking]:
    """Return question to ids in reranked order."""
    return {pool.id: pool.ranked for pool in reranked.questions}


def asked(question: Question) -> dict[str, Any]:
    """Return the fields of `records.Asked` for a question of a data set."""
    grades = tuple(question.judged.values())
    return {
        "id": question.id,
        "split": question.split,
        "lang": question.lang,
        "query": question.query,
        "relevant": tuple(question.judged),
        "grades": () if all(grade == 1 for grade in grades) else grades,
    }


def ids(pool: FrozenPool) -> tuple[DocumentId, ...]:
    """Return the ids of a pool in retrieval order."""
    return tuple(candidate.id for candidate in pool.candidates)


def _require_permutations(candidates: Candidates, reranked: Reranked) -> None:
    found = {name: sorted(map(str, ranked)) for name, ranked in reranking(reranked).items()}
    for name, pool in retrieved(candidates).items():
        if name not in reranked.failed:
            require_same(
                f"reranked.json, {name}: not the pool's candidates",
                " ".join(found.get(name, ())) or "none",
                " ".join(sorted(map(str, pool))) or "none",
                RERANK_AGAIN,
            )


def _encoder(record: Candidates | Reranked) -> str:
    return record.provenance.encoder.digest if record.provenance.encoder else "none"


def _question(one: Asked) -> list[object]:
    grades = [[str(found), grade] for found, grade in judged(one).items()]
    return [one.id, one.split, one.query, grades]


def _line(values: Sequence[object]) -> bytes:
    return json.dumps(values, ensure_ascii=True, separators=(",", ":")).encode() + b"\n"
