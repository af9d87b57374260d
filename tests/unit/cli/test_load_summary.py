"""What calls amount to: percentiles, shares that add up, and the stage that is named."""

from dataclasses import replace

import pytest

from cli.loading.generator import Reply, Sample
from cli.loading.profile import stairs
from cli.loading.report import Report, Served, document
from cli.loading.summary import OUTSIDE, Run, bottleneck, shares_of, spread, summarize

WHOLE = ("all", "total")


def spans(encode: float, search: float, rerank: float, queue: float = 0.0, other: float = 0.001) -> dict:
    return {
        ("encode", "total"): encode,
        ("search", "total"): search,
        ("rerank", "total"): rerank,
        ("rerank", "queue"): queue,
        ("rerank", "compute"): rerank - queue,
        ("dense", "total"): encode + search,
        ("all", "other"): other,
        WHOLE: encode + search + rerank + other,
    }


def sample(at: float, latency: float, code: str = "OK", **said: float) -> Sample:
    told = spans(**said) if said else {}
    return Sample(intended=at, sent=at, ended=at + latency, reply=Reply(code=code, spans=told))


def test_percentiles_are_values_that_occurred() -> None:
    """Of 1 to 100 the 95th percentile is 95 and not something between two calls."""
    found = spread(number / 1000 for number in range(1, 101))
    assert (found.p50, found.p95, found.p99, found.max) == pytest.approx((50, 95, 99, 100))
    assert spread([]) is None


def test_failures_are_counted_by_code_and_leave_the_latency_alone() -> None:
    """Field failure 71: a server that refuses quickly does not look fast."""
    calls = [sample(0, 0.1), sample(0, 0.1), sample(0, 0.001, "RESOURCE_EXHAUSTED"), sample(0, 9, "DEADLINE_EXCEEDED")]
    run = summarize(calls, None, whole=WHOLE)
    assert (run.ok_count, run.error_count, run.call_count) == (2, 2, 4)
    assert run.codes == {"OK": 2, "RESOURCE_EXHAUSTED": 1, "DEADLINE_EXCEEDED": 1}
    assert (run.latency.count, run.latency.mean) == (2, pytest.approx(100))


def test_shares_add_up_to_the_whole_latency() -> None:
    """Stages, the gateway's own work and what is outside of it are all of the mean latency."""
    calls = [
        sample(0, 0.1, encode=0.01, search=0.005, rerank=0.07),
        sample(0, 0.2, encode=0.02, search=0.01, rerank=0.1),
    ]
    run = summarize(calls, None, whole=WHOLE)
    shares = shares_of(run.stages, run.latency)
    assert sum(shares.values()) == pytest.approx(1)
    assert shares["rerank"] == pytest.approx(0.085 / 0.15)
    assert run.stages[OUTSIDE, "total"].max == pytest.approx(69)


@pytest.mark.parametrize(
    ("said", "latency", "stage", "part"),
    [
        ({"encode": 0.01, "search": 0.01, "rerank": 0.5, "queue": 0.4}, 0.53, "rerank", "queue"),
        ({"encode": 0.01, "search": 0.01, "rerank": 0.5, "queue": 0.1}, 0.53, "rerank", "compute"),
        ({"encode": 0.01, "search": 0.3, "rerank": 0.1}, 0.42, "search", ""),
        ({"encode": 0.01, "search": 0.01, "rerank": 0.01}, 0.9, "outside", ""),
        ({"encode": 0.01, "search": 0.01, "rerank": 0.01, "other": 0.2}, 0.24, "gateway", ""),
    ],
)
def test_the_stage_that_takes_most_of_the_time_is_named(said: dict, latency: float, stage: str, part: str) -> None:
    """With what it spends its time on; time that no server accounts for is nobody's stage."""
    run = summarize([sample(0, latency, **said)], None, whole=WHOLE)
    found = bottleneck(run.stages, run.latency)
    assert (found.stage, found.part) == (stage, part)


def late(*, every: int) -> list[Sample]:
    """Make ten calls: of each `every` the reranker was late in one, and answered in 0.02 s, wire and all, in others."""
    calls = []
    for number in range(10):
        told = spans(encode=0.01, search=0.01, rerank=0.5 if number % every == 0 else 0.02)
        rest = "unaccounted" if number % every == 0 else "network"
        told |= {("rerank", "compute"): 0.0, ("rerank", "network"): 0.0} | {("rerank", rest): told["rerank", "total"]}
        reply = Reply(code="OK", spans=told)
        calls.append(Sample(intended=0, sent=0, ended=told[WHOLE] + 0.001, reply=reply))
    return calls


@pytest.mark.parametrize(("every", "part"), [(1, "unaccounted"), (5, "unaccounted"), (10, "unaccounted")])
def test_a_late_reranker_is_no_slow_network(every: int, part: str) -> None:
    """What has no answer is most of the stage's time, however few calls it is of, and the advice is about the stage."""
    run = summarize(late(every=every), None, whole=WHOLE)
    found = bottleneck(run.stages, run.latency)
    assert (found.stage, found.part) == ("rerank", part)
    assert "network" not in found.advice


def test_calls_that_all_failed_still_say_where_their_time_went() -> None:
    """Where none was OK the stage that they failed in is named; it has no latency, and its share is of their time."""
    calls = [replace(one, reply=replace(one.reply, code="DEADLINE_EXCEEDED")) for one in late(every=1)]
    run = summarize(calls, None, whole=WHOLE)
    found = bottleneck(run.stages, run.latency)
    assert (run.latency, found.stage, found.part) == (None, "rerank", "unaccounted")
    assert found.share == pytest.approx(0.5 / 0.521)
    silent = summarize([sample(0, 1, "UNAVAILABLE")], None, whole=WHOLE)
    assert silent.stages is None
    assert bottleneck({}, None) is None


def test_what_few_calls_have_weighs_no_more_than_it_is() -> None:
    """A span that nine of ten calls do not tell is 0 in them, so that parts add up to their stage's mean."""
    run = summarize(late(every=10), None, whole=WHOLE)
    parts = [run.stages["rerank", part] for part in ("queue", "compute", "network", "unaccounted")]
    assert sum(part.mean for part in parts) == pytest.approx(run.stages["rerank", "total"].mean)
    unaccounted = run.stages["rerank", "unaccounted"]
    assert (unaccounted.count, unaccounted.p50, unaccounted.max) == (10, 0, pytest.approx(500))


def test_each_step_has_figures_of_its_own() -> None:
    """The rate at which a server breaks is visible in a profile of steps."""
    calls = [sample(0.5, 0.01), sample(1.5, 0.02), sample(2.5, 5.0), sample(2.6, 5.0, "RESOURCE_EXHAUSTED")]
    run = summarize(calls, stairs("1:3:1:1"), whole=WHOLE)
    assert [(step.rate, step.call_count, step.ok_count) for step in run.steps] == [(1, 1, 1), (2, 1, 1), (3, 2, 1)]
    assert run.steps[2].latency.p50 == pytest.approx(5000)


def report(codes: dict, served: Served | None = None, cut_off: int = 0) -> Report:
    run = Run(generator="built-in", seconds=1, codes=codes, cut_off_count=cut_off, latency=None)
    return Report(title="t", run=run, stages=None, stages_from="", bottleneck=None, served=served)


def test_a_run_is_good_only_where_all_is_well() -> None:
    """One error, another count of the server, or no call that was OK, each is enough to fail it."""
    assert report({"OK": 9}).good
    assert report({"OK": 9}, Served(codes={"OK": 9}, expected=9)).good
    assert not report({"OK": 9, "UNAVAILABLE": 1}).good
    assert not report({"OK": 9}, Served(codes={"OK": 8}, expected=9)).good
    assert not report({}, cut_off=3).good
    assert document(report({"OK": 9}, Served(codes={"OK": 8, "CANCELLED": 1}, expected=9)))["served"]["agrees"]
