"""The bar of milliseconds."""

from io import StringIO
from itertools import pairwise

from google.protobuf.duration_pb2 import Duration
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from cli.time_bar import TimeBar, cell_counts
from retrieval.gateway.v1 import gateway_pb2 as pb

SPANS = st.lists(st.one_of(st.just(0.0), st.floats(1e-6, 1e6)), min_size=4, max_size=4)


@given(SPANS, st.integers(4, 200))
def test_cells_add_up_and_nobody_vanishes(spans: list[float], width: int) -> None:
    """The bar is exactly as wide as asked, and a stage has cells just when it took time."""
    counts = cell_counts(dict(zip("abcd", spans, strict=True)), width)
    assert sum(counts.values()) == (width if any(spans) else 0)
    assert [count > 0 for count in counts.values()] == [span > 0 for span in spans]


@given(SPANS, st.integers(4, 200))
def test_a_longer_stage_is_never_drawn_shorter(spans: list[float], width: int) -> None:
    """The order of lengths is the order of times."""
    counts = cell_counts(dict(zip("abcd", spans, strict=True)), width)
    drawn = [count for _, count in sorted(zip(spans, counts.values(), strict=True))]
    assert all(later >= earlier - 1 for earlier, later in pairwise(drawn))


def test_shares_are_proportional() -> None:
    """Half of the time is half of the bar."""
    assert cell_counts({"encode": 10, "search": 20, "rerank": 50, "other": 20}, 100) == {
        "encode": 10,
        "search": 20,
        "rerank": 50,
        "other": 20,
    }


def test_the_legend_has_every_number() -> None:
    """Stages, total and the inside of the reranking are written out, within 80 columns and without colour."""
    stage = pb.StageTiming(
        total=Duration(nanos=30_000_000),
        queue=Duration(nanos=1_000_000),
        tokenize=Duration(nanos=2_000_000),
        compute=Duration(nanos=26_500_000),
        network=Duration(nanos=500_000),
    )
    timings = pb.Timings(
        total=Duration(nanos=42_100_000),
        encode=pb.StageTiming(total=Duration(nanos=8_000_000)),
        search=pb.StageTiming(total=Duration(nanos=3_000_000)),
        rerank=stage,
        other=Duration(nanos=1_100_000),
    )
    out = StringIO()
    Console(file=out, width=80).print(TimeBar(timings))
    bar, legend, inside = out.getvalue().splitlines()
    assert len(bar) == 80
    assert set(bar) == set("█▓▒░")
    assert legend.rstrip() == "█ encode 8.0  ▓ search 3.0  ▒ rerank 30.0  ░ other 1.1  = 42.1 ms"
    assert inside.strip() == "inside rerank: queue 1.0 · tokenize 2.0 · compute 26.5 · network 0.5"


def test_a_reranking_that_came_to_nothing_is_no_slow_network() -> None:
    """What nobody accounts for is written out under its own name, in the place of the network."""
    late = Duration(nanos=500_000_000)
    timings = pb.Timings(total=late, rerank=pb.StageTiming(total=late, unaccounted=late))
    out = StringIO()
    Console(file=out, width=80).print(TimeBar(timings))
    assert "inside rerank: queue 0.0 · tokenize 0.0 · compute 0.0 · unaccounted 500.0\n" in out.getvalue()
