"""The pipeline with its timings."""

import pytest
from report_factories import Ask, asks, run

from evaluation.latency import latency
from evaluation.report.stages import stages


def test_stages_add_up_to_the_total():
    """Encode, search, the gateway's part and rerank are together what a question waits."""
    measured = latency(*run(asks()))
    found = stages(measured)
    assert [stage.name for stage in found] == ["encode", "search", "gateway", "rerank"]
    assert sum(stage.ms for stage in found) == pytest.approx(measured.total.mean, abs=1e-3)
    assert sum(stage.share for stage in found) == pytest.approx(1.0, abs=1e-4)


def test_parts_are_shown_where_there_is_more_than_one():
    """A stage of which only one part took time is not taken apart; one with more is."""
    encode, search, gateway, rerank = stages(latency(*run([Ask(id="a")])))
    assert [name for name, _ in encode.parts] == ["network", "queue", "tokenize", "compute"]
    assert search.parts == gateway.parts == ()
    assert sum(ms for _, ms in rerank.parts) == pytest.approx(rerank.ms, abs=1e-3)


def test_without_any_time_there_is_no_share():
    """A run that measured nothing has stages of nothing and divides by nothing."""
    candidates, reranked = run([Ask(id="a")])
    found = stages(latency(candidates, reranked.model_copy(update={"questions": ()})))
    assert {stage.share for stage in found} == {0.0}
