"""All phases in a row."""

from collections.abc import Callable

from evaluation.phases.corpus import index, prepare
from evaluation.phases.evaluate import evaluate
from evaluation.phases.exercise import exercise
from evaluation.phases.negatives import negatives
from evaluation.phases.rerank import rerank
from evaluation.phases.retrieve import Progress, retrieve, silent
from evaluation.plan import Plan
from evaluation.records import Evaluation, Record
from evaluation.system import System
from serving.errors import NotFound

Told = Callable[[Record], None]
"""Told what each phase found, as soon as it is written."""


async def run_all(
    plan: Plan,
    system: System,
    told: Told = lambda _: None,
    progress: Callable[[str], Progress] = lambda _: silent,
    *,
    recreate: bool = False,
) -> tuple[Evaluation, bool]:
    """Run prepare, index, retrieve, rerank, negatives, evaluate and exercise.

    Args:
        plan: The run.
        system: The servers.
        told: Told what each phase found.
        progress: From a phase's name to what is told of its questions.
        recreate: As for `index`.

    Returns:
        The evaluation, and whether negatives and exercise are as they have to be.

    Raises:
        ServiceError: A phase cannot be done.
    """
    told(prepare(plan))
    told(await index(plan, system, recreate=recreate))
    told(await retrieve(plan, system, progress("retrieve")))
    policy = plan.configuration.truncation
    told(await rerank(plan.outputs, system, truncation=policy, progress=progress("rerank")))
    told(checked := await negatives(plan.outputs, system))
    told(evaluation := evaluate(plan.outputs))
    try:
        told(exercised := await exercise(plan.outputs, system))
    except NotFound:  # not one relevant document was retrieved: there is nothing to take away
        return evaluation, checked.passed
    return evaluation, checked.passed and exercised.passed
