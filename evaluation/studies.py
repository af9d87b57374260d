"""Studies of one variable at a time, all on one deep frozen pool that is reranked once.

A cross-encoder's logit of a pair does not depend on the other pairs, so the order of the first 20 candidates is the
order of all 60 with the others left out: every depth comes from one reranking. Under another rule of truncation only
the pairs that are too long get another logit, so only those are computed again.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from evaluation import pools, quality, records
from evaluation.datasets.model import TEST
from evaluation.figures import DenseDepthPoint, DepthPoint, TruncationPoint
from evaluation.files import read, write
from evaluation.latency import spread
from evaluation.measures import Judged, Ranking, Scores, measure, score_run
from evaluation.phases.corpus import require_corpus
from evaluation.phases.rerank import POLICIES, rerank_all, rerank_pool
from evaluation.phases.retrieve import Progress, freeze, silent
from evaluation.plan import Plan
from evaluation.records import Candidates, FrozenPool, Indexed, Reranked, RerankedPool, ScoredPair, Studies
from evaluation.significance import compare, interval
from evaluation.system import QuestionFailed, System
from serving.errors import InferenceFailed, Misconfigured

DEPTHS = (10, 20, 30, 50, 60)
DENSE_DEPTHS = (1, 3, 5, 10, 20, 30, 50, 60)
DEEP_CANDIDATES, DEEP_RERANKED = "studies-candidates.json", "studies-reranked.json"
COMPARED = "nDCG@5"
BESIDE = ("MRR@5", "hit@1")


@dataclass(frozen=True, slots=True, kw_only=True)
class Deep:
    """The deep pools of the answerable test questions, and their reranking."""

    candidates: Candidates
    reranked: Reranked

    @property
    def judgments(self) -> Mapping[str, Judged]:
        """Question to grades."""
        return pools.judgments(self.candidates, TEST)

    @property
    def seed(self) -> int:
        """Of every resampling."""
        return self.candidates.provenance.configuration.seed


async def studies(
    plan: Plan, system: System, *, depths: Sequence[int] = DEPTHS, progress: Progress = silent
) -> Studies:
    """Freeze and rerank deep pools of the answerable test questions, derive all studies, write studies.json.

    Args:
        plan: The run; its pool size does not matter here.
        system: The servers.
        depths: Depths of the pool, ascending.
        progress: Told after every question of the two steps.

    Raises:
        NotTogether: The collection is of another corpus or encoder.
    """
    deep = await _deep(plan, system, max(depths), progress)
    found = Studies(
        provenance=deep.reranked.provenance,
        pool_digest=deep.candidates.pool_digest,
        question_count=len(deep.judgments),
        pool_depth=pool_depth(deep, depths),
        dense_depth=dense_depth(deep.candidates, [depth for depth in DENSE_DEPTHS if depth <= max(depths)]),
        truncation=await truncation(deep, system),
    )
    write(found, plan.outputs / records.STUDIES)
    return found


async def _deep(plan: Plan, system: System, depth: int, progress: Progress) -> Deep:
    indexed = read(Indexed, plan.outputs / records.INDEXED, "index")
    require_corpus(plan, indexed, records.INDEXED, "index")
    answerable = tuple(question for question in plan.dataset.questions if question.split == TEST and question.judged)
    if not answerable:
        raise Misconfigured("NOTHING_TO_STUDY", f"{plan.dataset.name} has no answerable test question")
    deeper = replace(
        plan,
        dataset=replace(plan.dataset, questions=answerable),
        configuration=plan.configuration.model_copy(update={"pool_size": depth}),
    )
    candidates = await freeze(deeper, system, indexed, progress)
    write(candidates, plan.outputs / DEEP_CANDIDATES)
    reranked = await rerank_all(candidates, system, plan.configuration.truncation, progress)
    write(reranked, plan.outputs / DEEP_RERANKED)
    return Deep(candidates=candidates, reranked=reranked)


def stored(outputs: Path) -> Deep:
    """Read deep pools that an earlier run left.

    Raises:
        Misconfigured: There are none.
        NotTogether: The two files are of different pools.
    """
    candidates = read(Candidates, outputs / DEEP_CANDIDATES, "studies")
    reranked = read(Reranked, outputs / DEEP_RERANKED, "studies")
    pools.require_reranking_of(candidates, reranked)
    return Deep(candidates=candidates, reranked=reranked)


def pool_depth(deep: Deep, depths: Sequence[int]) -> tuple[DepthPoint, ...]:
    """Derive the reranked order at every depth from that of the deepest."""
    scored = {depth: _scored_at(deep, depth) for depth in depths}
    first = scored[depths[0]]
    return tuple(
        DepthPoint(
            depth=depth,
            measures=quality.intervals(scores, deep.seed),
            rerank_ms_mean=_rerank_ms(deep, depth),
            measured=depth == max(depths),
            sentence=_sentence(deep, first, scores, f"depth {depth} against {depths[0]}"),
        )
        for depth, scores in scored.items()
    )


def dense_depth(candidates: Candidates, depths: Sequence[int]) -> tuple[DenseDepthPoint, ...]:
    """Measure the first stage alone at every depth."""
    run, judgments = pools.retrieved(candidates), pools.judgments(candidates, TEST)
    names = [measure(f"{name}@{depth}") for depth in depths for name in ("Recall", "hit")]
    values = score_run(run, judgments, names).values
    seed = candidates.provenance.configuration.seed
    return tuple(
        DenseDepthPoint(
            depth=depth,
            recall=interval(list(values[f"Recall@{depth}"].values()), seed=seed),
            hit=interval(list(values[f"hit@{depth}"].values()), seed=seed),
        )
        for depth in depths
    )


async def truncation(deep: Deep, system: System) -> tuple[TruncationPoint, ...]:
    """Compare the rules of truncation, the run's own first."""
    own = deep.reranked.provenance.configuration.truncation
    runs = {own: deep.reranked.questions}
    for policy in POLICIES:
        if policy not in runs:
            runs[policy] = await _with_policy(deep, system, policy)
    scored = {policy: _score(deep, {pool.id: pool.ranked for pool in run}, ()) for policy, run in runs.items()}
    return tuple(
        TruncationPoint(
            policy=policy,
            truncated_pair_count=sum(pair.truncated for pool in runs[policy] for pair in pool.pairs),
            measures=quality.intervals(scores, deep.seed),
            sentence=_sentence(deep, scored[own], scores, f"{policy} against {own}"),
        )
        for policy, scores in scored.items()
    )


async def _with_policy(deep: Deep, system: System, policy: str) -> tuple[RerankedPool, ...]:
    by_id = {pool.id: pool for pool in deep.candidates.questions}
    return tuple([await _rescored(by_id[before.id], before, system, policy) for before in deep.reranked.questions])


async def _rescored(pool: FrozenPool, before: RerankedPool, system: System, policy: str) -> RerankedPool:
    """Compute the pairs that were cut once more, and put them where they belong."""
    cut = {pair.id for pair in before.pairs if pair.truncated}
    if not cut:
        return before
    again = [candidate for candidate in pool.candidates if candidate.id in cut]
    try:
        answer = await rerank_pool(system, pool.id, pool.query, again, policy)
    except QuestionFailed as error:
        raise InferenceFailed("STUDIES_FAILED", f"{pool.id}: {error}") from error
    pairs = sorted([*(pair for pair in before.pairs if pair.id not in cut), *answer.pairs], key=_order)
    return before.model_copy(update={"pairs": tuple(pairs), "ranked": tuple(pair.id for pair in pairs)})


def _order(pair: ScoredPair) -> tuple[float, bool, int, str]:
    """Sort as the reranker does: highest logit first, equal ones by id, numbers first."""
    number = int(pair.id) if str(pair.id).isdecimal() else 0
    return (-pair.score, not str(pair.id).isdecimal(), number, str(pair.id))


def _scored_at(deep: Deep, depth: int) -> Scores:
    run = {
        pool.id: tuple(pair.id for pair in pool.pairs if pair.retrieval_rank <= depth)
        for pool in deep.reranked.questions
    }
    return _score(deep, run, (f"Recall@{depth}",))


def _score(deep: Deep, run: Mapping[str, Ranking], beside: tuple[str, ...]) -> Scores:
    return score_run(run, deep.judgments, [measure(name) for name in (COMPARED, *BESIDE, *beside)])


def _sentence(deep: Deep, first: Scores, scores: Scores, what: str) -> str:
    return f"{what}: {compare(COMPARED, first.values[COMPARED], scores.values[COMPARED], seed=deep.seed).sentence}"


def _rerank_ms(deep: Deep, depth: int) -> float:
    """Return the mean time, in proportion to the tokens that the first `depth` candidates have."""
    times = []
    for pool in deep.reranked.questions:
        whole = sum(pair.token_count for pair in pool.pairs)
        part = sum(pair.token_count for pair in pool.pairs if pair.retrieval_rank <= depth)
        times.append(pool.rerank_ms * part / whole if whole else 0.0)
    return spread(times).mean
