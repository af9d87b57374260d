"""Which outcomes of a call count against a backend, and what an open circuit answers."""

import asyncio
from collections.abc import Awaitable
from dataclasses import replace

import pytest

from gateway.breaker import JITTER, BreakerPolicy, CircuitState
from gateway.guard import Guard, Guards
from serving.errors import DeadlineSpent, InferenceFailed, InvalidRequest, Overloaded, ServiceError, Unavailable
from serving.metrics import ServerMetrics

POLICY = BreakerPolicy(failures=2, patience_s=1.0)
GONE = Unavailable("RERANKER_UNAVAILABLE", "gone")
LATE = DeadlineSpent("DEADLINE_SPENT", "late")


async def ended(outcome: ServiceError | str) -> str:
    """End as told."""
    if isinstance(outcome, ServiceError):
        raise outcome
    return outcome


async def calls(guard: Guard, *outcomes: ServiceError | str, timeout_s: float = 5.0) -> None:
    """Make calls that end as told."""
    for outcome in outcomes:
        try:
            await guard.call(lambda: ended(outcome), timeout_s=timeout_s)  # noqa: B023 - sent before the next one
        except ServiceError as error:
            assert error is outcome  # noqa: PT017 - any other would be wrong


@pytest.mark.parametrize("outcome", [GONE, LATE], ids=["unavailable", "late"])
async def test_a_backend_that_does_not_answer_is_left_alone(outcome: ServiceError) -> None:
    """Once it is, nothing is sent, and the error says when to come back."""
    guard = Guard("reranker", POLICY, clock=lambda: 0.0)
    await calls(guard, outcome, outcome)
    sent = []
    with pytest.raises(Unavailable) as caught:
        await guard.call(lambda: sent.append(1), timeout_s=5)  # type: ignore[arg-type, return-value]
    assert not sent
    assert caught.value.reason == "RERANKER_UNAVAILABLE"
    assert caught.value.retry_after_s is not None
    assert 0 < caught.value.retry_after_s <= 0.5


@pytest.mark.parametrize(
    "answer",
    [
        "fine",
        InvalidRequest("TEXT_BLANK", "blank", field="query"),
        Overloaded("RERANKER_OVERLOADED", "full", retry_after_s=1),
        InferenceFailed("RERANKER_FAILED", "broken"),
    ],
    ids=lambda value: getattr(value, "reason", value),
)
async def test_an_error_that_the_backend_answers_is_an_answer(answer: ServiceError | str) -> None:
    """What the caller did wrong, a full queue and a failed engine cost no time: they never open a circuit."""
    guard = Guard("reranker", POLICY)
    await calls(guard, *[answer] * 10)
    assert guard.breaker.state is CircuitState.CLOSED
    await calls(guard, GONE, answer, GONE, answer)
    assert guard.breaker.state is CircuitState.CLOSED


async def test_a_caller_in_a_hurry_cannot_take_a_backend_from_the_others() -> None:
    """Calls that were given less than the patience and ran out of time do not count."""
    guard = Guard("reranker", POLICY)
    await calls(guard, *[LATE] * 10, timeout_s=0.9)
    assert guard.breaker.state is CircuitState.CLOSED


async def test_a_caller_that_leaves_says_nothing_of_the_backend() -> None:
    """Cancelled calls neither open a circuit nor, as probes, keep it open."""
    guard = Guard("reranker", POLICY)
    for _ in range(5):
        call = asyncio.create_task(guard.call(asyncio.Event().wait, timeout_s=5))
        await asyncio.sleep(0)
        call.cancel()
        await asyncio.wait([call])
    assert guard.breaker.state is CircuitState.CLOSED


async def test_a_probe_that_is_answered_lets_everybody_in_again() -> None:
    """After the pause one call is sent, and its answer closes the circuit."""
    now = [0.0]
    guard = Guard("reranker", POLICY, clock=lambda: now[0])
    await calls(guard, GONE, GONE)
    now[0] = 1.0
    await calls(guard, "fine", "fine")
    assert guard.breaker.state is CircuitState.CLOSED


@pytest.mark.parametrize(("first_pause_s", "longest_s"), [(7.0, 7.0), (90.0, 60.0)])
async def test_the_first_pause_is_the_policys(first_pause_s: float, longest_s: float) -> None:
    """It is as long as told, but for what is left to chance, and never longer than the longest pause."""
    policy = replace(POLICY, first_pause_s=first_pause_s, max_pause_s=60)
    guard = Guard("reranker", policy, clock=lambda: 0.0)
    await calls(guard, GONE, GONE)
    assert (1 - JITTER) * longest_s <= guard.breaker.wait_s(0) <= longest_s


async def test_states_and_refusals_are_metrics() -> None:
    """Each backend has its own circuit and its own numbers."""
    metrics = ServerMetrics("gateway")
    guards = Guards(replace(POLICY, first_pause_s=60, max_pause_s=60), metrics)
    reranker, encoder = guards.guard("reranker"), guards.guard("encoder")
    await calls(reranker, GONE, GONE)
    await calls(encoder, "fine")
    refused: Awaitable[str] = reranker.call(lambda: ended("never"), timeout_s=5)
    with pytest.raises(Unavailable):
        await refused
    value = metrics.registry.get_sample_value
    assert value("gateway_circuit_state", {"backend": "reranker"}) == CircuitState.OPEN
    assert value("gateway_circuit_state", {"backend": "encoder"}) == CircuitState.CLOSED
    assert value("gateway_circuit_refusals_total", {"backend": "reranker"}) == 1
