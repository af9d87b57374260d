"""What a report is made of: the files of one outputs directory, and the refusal of files of different runs."""

from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from evaluation import pools, records
from evaluation.files import read, require_same
from evaluation.records import (
    Candidates,
    Evaluation,
    Exercise,
    Indexed,
    Negatives,
    Record,
    Reranked,
    Studies,
)
from serving.errors import Misconfigured

T = TypeVar("T", bound=Record)


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """The files of one run; what is optional may be missing."""

    candidates: Candidates
    reranked: Reranked
    evaluation: Evaluation
    indexed: Indexed | None
    negatives: Negatives | None
    exercise: Exercise | None
    studies: Studies | None
    left_out: tuple[str, ...]
    """Sentences about optional files that are of another run or cannot be read."""


def read_inputs(outputs: Path) -> Inputs:
    """Read everything that is there.

    Raises:
        Misconfigured: candidates.json, reranked.json or evaluation.json is missing or is no such file.
        NotTogether: They are of different runs.
    """
    candidates = read(Candidates, outputs / records.CANDIDATES, "retrieve")
    reranked = read(Reranked, outputs / records.RERANKED, "rerank")
    evaluation = read(Evaluation, outputs / records.EVALUATION, "evaluate")
    pools.require_reranking_of(candidates, reranked)
    _require_evaluation_of(reranked, evaluation)
    beside = _Beside(outputs, evaluation)
    return Inputs(
        candidates=candidates,
        reranked=reranked,
        evaluation=evaluation,
        indexed=beside.read(Indexed, records.INDEXED, "index"),
        negatives=beside.read(Negatives, records.NEGATIVES, "negatives"),
        exercise=beside.read(Exercise, records.EXERCISE, "exercise"),
        studies=beside.read(Studies, records.STUDIES, "studies"),
        left_out=tuple(beside.left_out),
    )


def _require_evaluation_of(reranked: Reranked, evaluation: Evaluation) -> None:
    again = "run `twostage evaluate evaluate` again"
    require_same("evaluation.json is of other pools", evaluation.pool_digest, reranked.pool_digest, again)
    for part in ("corpus", "encoder", "reranker", "configuration"):
        found, wanted = (str(getattr(record.provenance, part)) for record in (evaluation, reranked))
        if found != wanted:
            require_same(f"evaluation.json has another {part}", "another", part, again)


class _Beside:
    """Reads optional files; one of another run is left out with a sentence, for it cannot be shown beside this one."""

    def __init__(self, outputs: Path, ours: Evaluation) -> None:
        self._outputs = outputs
        self._ours = ours
        self.left_out: list[str] = []

    def read(self, shape: type[T], name: str, phase: str) -> T | None:
        path = self._outputs / name
        if not path.exists():
            return None
        try:
            found = read(shape, path, phase)
        except Misconfigured:
            self.left_out.append(f"{name} cannot be read and is left out; run `twostage evaluate {phase}` again.")
            return None
        if self._same_run(found):
            return found
        self.left_out.append(f"{name} is of another run and is left out; run `twostage evaluate {phase}` again.")
        return None

    def _same_run(self, record: Record) -> bool:
        ours, theirs = self._ours.provenance, record.provenance
        if isinstance(record, Exercise) and record.pool_digest != self._ours.pool_digest:
            return False
        models = ((theirs.encoder, ours.encoder), (theirs.reranker, ours.reranker))
        return theirs.corpus.digest == ours.corpus.digest and all(
            found is None or (wanted is not None and found.digest == wanted.digest) for found, wanted in models
        )
