"""Builders of a run's files for the report: real shapes, hand-made pools, figures computed by `evaluation` itself."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from evaluation import pools, records
from evaluation.figures import DenseDepthPoint, DepthPoint, Interval, StageTime, TruncationPoint
from evaluation.files import write
from evaluation.phases.evaluate import evaluated
from evaluation.records import (
    Candidates,
    Configuration,
    Corpus,
    DenseTime,
    Exercise,
    FrozenCandidate,
    FrozenPool,
    Indexed,
    ModelUsed,
    Negative,
    Negatives,
    Population,
    Provenance,
    Reranked,
    RerankedPool,
    ScoredPair,
    Studies,
)

POOL_SIZE = 20
ENCODER = ModelUsed(
    id="intfloat/multilingual-e5-small",
    revision="c007d7ef6fd86656326059b28395a7a03a7c5846",
    digest="sha256:" + "5e" * 32,
    precision="fp32",
    device="cpu",
)
RERANKER = ModelUsed(
    id="BAAI/bge-reranker-v2-m3",
    revision="953dc6f6f85a1b2dbfca4c34a2796e7dde08d41e",
    digest="sha256:" + "b6" * 32,
    precision="fp32",
    device="cpu",
)
HOSTILE = "<script>window.hacked = 1</script><img src=x onerror='window.hacked = 1'> & \"quotes\" {{ 7 * 7 }}"
"""A document's text that would do something in a page that trusts it."""


def provenance(*, corpus: str = "helpcentre", digest: str = "sha256:" + "c0" * 32) -> Provenance:
    """Return what produced the files."""
    return Provenance(
        corpus=Corpus(
            name=corpus,
            digest=digest,
            population=Population(
                document_count=200,
                question_count=80,
                dev_count=20,
                test_count=60,
                answerable_test_count=48,
                unanswerable_test_count=12,
            ),
        ),
        configuration=Configuration(pool_size=POOL_SIZE),
        versions={"numpy": "2.4.6", "python": "3.11.7", "twostage": "0.1.0"},
        machine="Imaginary Processor 9000, 2 usable CPUs",
        collection="eval-helpcentre-c0c0c0c0-text",
        store="qdrant-edge",
        encoder=ENCODER,
        reranker=RERANKER,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """A question, and where its relevant document stands before and after reranking."""

    id: str
    before: int | None = 1
    """From 1; None: it is not in the pool."""
    after: int | None = 1
    answerable: bool = True
    split: str = "test"
    query: str = "How do I sign in without my phone?"
    lang: str = "en"
    answer: str = "A recovery code opens the door once and is then used up."
    """Text of the relevant document."""
    other: str = "Invoices are sent on the first working day of a month."
    """Text of every other document."""


def asks() -> tuple[Ask, ...]:
    """Return 80 questions with the help centre's counts: 48 + 12 test, 16 + 4 dev; five get better, one worse."""
    moves = {0: (4, 1), 1: (2, 1), 2: (2, 1), 3: (13, 2), 4: (None, None), 5: (1, 3), 6: (17, 1)}
    test = [
        Ask(id=f"REF-{number:03}", before=moves.get(number, (1, 1))[0], after=moves.get(number, (1, 1))[1])
        for number in range(48)
    ]
    none = [Ask(id=f"REF-{number:03}", answerable=False, lang="fr") for number in range(48, 60)]
    dev = [Ask(id=f"REF-{number:03}", answerable=number < 76, split="dev") for number in range(60, 80)]
    return (*test, *none, *dev)


def write_run(outputs: Path, questions: Sequence[Ask] | None = None, *, beside: bool = True) -> Path:
    """Write the files of a whole run.

    Args:
        outputs: Where to.
        questions: Asked in it; None: `asks()`.
        beside: Whether to write the optional files too.
    """
    candidates, reranked = run(asks() if questions is None else questions)
    write(candidates, outputs / records.CANDIDATES)
    write(reranked, outputs / records.RERANKED)
    write(evaluated(candidates, reranked), outputs / records.EVALUATION)
    if beside:
        write(indexed(), outputs / records.INDEXED)
        write(negatives(), outputs / records.NEGATIVES)
        write(exercise(candidates), outputs / records.EXERCISE)
        write(studies(), outputs / records.STUDIES)
    return outputs


def run(questions: Sequence[Ask]) -> tuple[Candidates, Reranked]:
    """Return pools and their reranking; times and scores are drawn from a fixed seed."""
    chance = random.Random(7)  # noqa: S311 - made-up times, no secret
    found = tuple(_pool(question, number, chance) for number, question in enumerate(questions))
    digest = pools.digest(found, ())
    after = tuple(_reranked(question, pool, chance) for question, pool in zip(questions, found, strict=True))
    return (
        Candidates(provenance=provenance(), pool_digest=digest, questions=found),
        Reranked(provenance=provenance(), pool_digest=digest, questions=after),
    )


def indexed() -> Indexed:
    """Return indexed.json."""
    return Indexed(
        provenance=provenance(),
        document_count=200,
        dimension=384,
        device="cpu",
        points_count=200,
        truncated_count=3,
        seconds=12.5,
    )


def negatives(*, passed: bool = True) -> Negatives:
    """Return negatives.json."""
    checks = (
        Negative(name="empty_pool", expected="ranked: []", found="ranked: []", passed=True),
        Negative(name="truncated_pair", expected="truncated: true", found="truncated: true", passed=passed),
        Negative(name="empty_collection", expected="hits: 0", found="hits: 0", passed=True),
    )
    return Negatives(provenance=provenance(), checks=checks, passed=passed)


def exercise(candidates: Candidates) -> Exercise:
    """Return exercise.json of the first question."""
    pool = candidates.questions[0]
    return Exercise(
        provenance=provenance(),
        pool_digest=candidates.pool_digest,
        question=pool.id,
        query=pool.query,
        removed_relevant=(0, 1, 2),
        candidate_count=17,
        ranked=tuple(range(3, 20)),
        pairs=(),
        truncated=False,
        returned_relevant=(),
        recall=0.0,
        passed=True,
    )


def studies() -> Studies:
    """Return studies.json."""
    depths = ((10, 0.91, 0.958), (20, 0.95, 1.0), (30, 0.948, 1.0), (50, 0.946, 1.0), (60, 0.945, 1.0))
    return Studies(
        provenance=provenance(),
        pool_digest="sha256:" + "d5" * 32,
        question_count=48,
        pool_depth=tuple(
            DepthPoint(
                depth=depth,
                measures={"nDCG@5": _near(mean), "MRR@5": _near(mean), f"Recall@{depth}": _near(recall)},
                rerank_ms_mean=2.5 * depth,
                measured=depth == depths[-1][0],
                sentence=f"depth {depth} against 10: nDCG@5 is the same.",
            )
            for depth, mean, recall in depths
        ),
        dense_depth=tuple(
            DenseDepthPoint(depth=depth, recall=_near(recall), hit=_near(recall)) for depth, _, recall in depths
        ),
        truncation=(
            TruncationPoint(
                policy="longest_first",
                truncated_pair_count=48,
                measures={"nDCG@5": _near(0.95)},
                sentence="longest_first against longest_first: nDCG@5 is the same.",
            ),
        ),
    )


def _near(mean: float) -> Interval:
    return Interval(mean=mean, low=mean - 0.04, high=min(1.0, mean + 0.03))


def _pool(question: Ask, number: int, chance: random.Random) -> FrozenPool:
    """Documents of question n are numbered from 100 n; the relevant one is 100 n + 99."""
    answer = number * 100 + 99
    places = [number * 100 + place for place in range(1, POOL_SIZE + 1)]
    if question.answerable and question.before:
        places[question.before - 1] = answer
    encode, search = chance.uniform(3.0, 6.0), chance.uniform(0.4, 1.2)
    return FrozenPool(
        id=question.id,
        split=question.split,
        lang=question.lang,
        query=question.query,
        relevant=(answer,) if question.answerable else (),
        candidates=tuple(
            FrozenCandidate(
                id=found,
                rank=rank,
                score=chance.uniform(0.86, 0.93) - rank / 500 - 0.04 * (not question.answerable),
                text=question.answer if found == answer else question.other,
            )
            for rank, found in enumerate(places, start=1)
        ),
        latency=DenseTime(
            dense=encode + search + 0.6,
            encode=StageTime(total=encode, network=0.5, queue=0.1, tokenize=0.2, compute=encode - 0.8),
            search=StageTime(total=search, network=0.0, queue=0.0, tokenize=0.0, compute=search),
        ),
    )


def _reranked(question: Ask, pool: FrozenPool, chance: random.Random) -> RerankedPool:
    order = [candidate.id for candidate in pool.candidates]
    for relevant in pool.relevant:
        if relevant in order and question.after:
            order.remove(relevant)
            order.insert(question.after - 1, relevant)
    best = chance.gauss(4.0 if question.answerable else -2.5, 2.0)
    by_id = {candidate.id: candidate for candidate in pool.candidates}
    took = chance.lognormvariate(4.1, 0.25)
    return RerankedPool(
        id=question.id,
        ranked=tuple(order),
        pairs=tuple(
            ScoredPair(
                id=found,
                text=by_id[found].text,
                score=best - place,
                truncated=False,
                token_count=60,
                retrieval_rank=by_id[found].rank,
            )
            for place, found in enumerate(order)
        ),
        truncated=False,
        truncated_count=0,
        rerank_ms=took,
        stage=StageTime(total=took, network=1.2, queue=0.3, tokenize=1.1, compute=took - 2.6),
    )
