"""When a circuit opens, what it lets through, and when it closes; every instant is passed in."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.breaker import Breaker, BreakerPolicy, CircuitState, Pass

POLICY = BreakerPolicy(failures=3, max_pause_s=2.0)


def breaker() -> Breaker:
    """Make one whose pauses are whole."""
    return Breaker(POLICY, chance=lambda: 0.0)


def let_in(circuit: Breaker, now: float) -> Pass:
    """Have a call let through."""
    passed = circuit.admit(now)
    assert passed is not None
    return passed


def opened(now: float = 0.0) -> Breaker:
    """Make one that is open."""
    circuit = breaker()
    for _ in range(POLICY.failures):
        circuit.failed(let_in(circuit, now), now)
    assert circuit.state is CircuitState.OPEN
    return circuit


def test_failures_in_a_row_open_it() -> None:
    """One failure fewer than the limit changes nothing, the limit refuses the next call."""
    circuit = breaker()
    for _ in range(POLICY.failures - 1):
        circuit.failed(let_in(circuit, 0), 0)
    assert circuit.state is CircuitState.CLOSED
    circuit.failed(let_in(circuit, 0), 0)
    assert circuit.admit(0.49) is None
    assert circuit.wait_s(0.2) == pytest.approx(0.3)


def test_any_answer_between_failures_keeps_it_closed() -> None:
    """One replica of two that answers is enough: only failures in a row count."""
    circuit = breaker()
    for _ in range(10 * POLICY.failures):
        circuit.failed(let_in(circuit, 0), 0)
        circuit.answered(let_in(circuit, 0))
    assert circuit.state is CircuitState.CLOSED


def test_calls_that_end_together_count_only_where_others_had_no_answer_either() -> None:
    """One caller's calls that time out at once, while others are answered, open nothing."""
    circuit = breaker()
    slow = [let_in(circuit, 0) for _ in range(10 * POLICY.failures)]
    circuit.answered(let_in(circuit, 0))
    for passed in slow:
        circuit.failed(passed, 1)
    assert circuit.state is CircuitState.CLOSED
    dead = [let_in(circuit, 1) for _ in range(POLICY.failures)]
    for passed in dead:
        circuit.failed(passed, 2)
    assert circuit.state is CircuitState.OPEN


def test_one_probe_goes_through_after_the_pause() -> None:
    """While it is under way all others are refused."""
    circuit = opened()
    assert let_in(circuit, 0.5).probe
    assert circuit.state is CircuitState.HALF_OPEN
    assert [circuit.admit(0.5 + wait) for wait in (0, 0.5, 0.99)] == [None, None, None]


def test_a_probe_that_is_answered_closes_it() -> None:
    """All calls go through again, and as many failures as before are needed to open it."""
    circuit = opened()
    circuit.answered(let_in(circuit, 0.5))
    assert circuit.state is CircuitState.CLOSED
    for _ in range(POLICY.failures - 1):
        circuit.failed(let_in(circuit, 0.6), 0.6)
    assert circuit.state is CircuitState.CLOSED


def test_pauses_double_up_to_the_limit_and_begin_anew() -> None:
    """Probes that fail are 0.5, 1, 2 and again 2 s apart; after an answer the first pause is short again."""
    circuit, now, pauses = opened(), 0.0, []
    for _ in range(4):
        pauses.append(circuit.wait_s(now))
        now += pauses[-1]
        circuit.failed(let_in(circuit, now), now)
    assert pauses == pytest.approx([0.5, 1, 2, 2])
    circuit.answered(let_in(circuit, now + 2))
    for _ in range(POLICY.failures):
        circuit.failed(let_in(circuit, 100), 100)
    assert circuit.wait_s(100) == pytest.approx(0.5)


def test_chance_shortens_a_pause_by_a_quarter_at_most() -> None:
    """Gateways that saw the same failure try again at different times."""
    circuit = Breaker(BreakerPolicy(failures=1), chance=lambda: 1.0)
    circuit.failed(let_in(circuit, 0), 0)
    assert circuit.wait_s(0) == pytest.approx(0.375)


def test_a_probe_that_never_comes_back_is_followed_by_another() -> None:
    """A server that hangs holds one call per pause and does not keep the circuit open for as long as it hangs."""
    circuit = opened()
    lost = let_in(circuit, 0.5)
    second = let_in(circuit, 1.5)
    assert second.probe
    circuit.answered(second)
    circuit.failed(lost, 1.6)
    assert circuit.state is CircuitState.CLOSED


def test_a_probe_that_says_nothing_lets_the_next_call_try() -> None:
    """A caller that leaves during its probe does not cost the others a pause."""
    circuit = opened()
    circuit.untold(let_in(circuit, 0.5), 0.6)
    assert circuit.state is CircuitState.OPEN
    assert let_in(circuit, 0.6).probe


def test_calls_from_before_it_closed_do_not_open_it_again() -> None:
    """Those that hung through the whole outage and fail after it are no news."""
    circuit = breaker()
    old = [let_in(circuit, 0) for _ in range(10)]
    for passed in old[:3]:
        circuit.failed(passed, 0)
    circuit.answered(let_in(circuit, 0.5))
    for passed in old[3:]:
        circuit.failed(passed, 0.6)
    assert circuit.state is CircuitState.CLOSED


def test_a_call_from_before_it_opened_that_is_answered_closes_it() -> None:
    """An answer is an answer, whenever the call was made."""
    circuit = breaker()
    slow = let_in(circuit, 0)
    for _ in range(POLICY.failures):
        circuit.failed(let_in(circuit, 0), 0)
    circuit.answered(slow)
    assert circuit.state is CircuitState.CLOSED


@given(st.lists(st.tuples(st.floats(0, 3), st.sampled_from(["admit", "answered", "failed", "untold"])), max_size=60))
def test_it_never_refuses_for_longer_than_the_longest_pause(steps: list[tuple[float, str]]) -> None:
    """Whatever happens, a call that comes a longest pause later is let through."""
    circuit, now, out = breaker(), 0.0, []
    for wait, step in steps:
        now += wait
        if step == "admit":
            out += [passed for passed in [circuit.admit(now)] if passed]
        elif out and step == "answered":
            circuit.answered(out.pop())
        elif out and step == "failed":
            circuit.failed(out.pop(), now)
        elif out:
            circuit.untold(out.pop(), now)
    assert circuit.admit(now + POLICY.max_pause_s) is not None
