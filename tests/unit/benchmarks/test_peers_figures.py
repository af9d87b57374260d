"""From calls to figures."""

import pytest

from benchmarks.peers.figures import summarize
from benchmarks.peers.load import Outcome, Sample


def sample(index: int, latency: float, outcome: Outcome = "ok", intended: float = 0.0) -> Sample:
    return Sample(index=index, intended=intended, ended=intended + latency, outcome=outcome)


def test_percentiles_are_of_the_answered_calls() -> None:
    """Latencies of 1 to 101 ms have the percentiles 51, 96 and 100; a call that failed after 9 s has no part."""
    samples = [sample(index, (index + 1) / 1e3) for index in range(101)]
    figures = summarize([*samples, sample(101, 9.0, "error")], [1] * 102, deadline_s=1.0)
    assert (figures.p50_ms, figures.p95_ms, figures.p99_ms) == pytest.approx((51.0, 96.0, 100.0))


def test_throughput_counts_the_tokens_of_answered_requests() -> None:
    """Tokens are those of the requests that were answered, over the time until the last answer."""
    samples = [sample(0, 1.0), sample(1, 2.0, "late"), sample(2, 4.0)]
    figures = summarize(samples, [10, 100, 30], deadline_s=9.0)
    assert figures.seconds == 4.0
    assert figures.tokens_per_s == pytest.approx((10 + 30) / 4)
    assert figures.calls_per_s == pytest.approx(2 / 4)


def test_throughput_is_over_all_the_time_in_which_calls_arrived() -> None:
    """A load that is answered early is no faster than it arrived."""
    figures = summarize([sample(0, 0.5)], [8], deadline_s=1.0, arriving_s=4.0)
    assert figures.tokens_per_s == pytest.approx(2.0)


def test_goodput_is_the_share_of_all_calls_answered_in_time() -> None:
    """Refused, late and failed calls and an answer after the deadline all count against it; one at the deadline not."""
    outcomes: list[tuple[float, Outcome]] = [
        (0.5, "ok"),
        (1.0, "ok"),
        (1.1, "ok"),
        (0.1, "refused"),
        (1.0, "late"),
        (0.2, "error"),
    ]
    samples = [sample(index, latency, outcome) for index, (latency, outcome) in enumerate(outcomes)]
    figures = summarize(samples, [1] * 6, deadline_s=1.0)
    assert figures.goodput == pytest.approx(2 / 6)
    assert (figures.ok, figures.refused, figures.late, figures.errors) == (3, 1, 1, 1)


def test_a_server_that_answers_nothing_has_no_latency() -> None:
    """Where nothing was answered well, throughput and goodput are 0 and percentiles are absent."""
    figures = summarize([sample(0, 2.0, "error")], [5], deadline_s=1.0)
    assert (figures.tokens_per_s, figures.goodput, figures.p50_ms) == (0.0, 0.0, None)
