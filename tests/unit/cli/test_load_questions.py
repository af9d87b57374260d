"""What is asked, and what the answers say of their time."""

from pathlib import Path

import pytest

from cli.loading.client import TARGETS, read_spans
from cli.loading.generator import Reply, Sample
from cli.loading.questions import Ask, read_texts, requests_of
from cli.loading.summary import bottleneck, shares_of, summarize
from gateway.timings import SearchTime, StageTime
from retrieval.encoder.v1 import encoder_pb2
from serving.errors import Misconfigured
from serving.timing import CallTime

MS = 1_000_000


def test_lines_and_json_lines_are_texts(tmp_path: Path) -> None:
    """Questions as people keep them, and the files of an evaluation as they are."""
    file = tmp_path / "questions"
    file.write_text('plain, as it is\n\n{"query": "q", "text": "not this"}\n{"text": "t"}\n', encoding="utf-8")
    assert read_texts(file) == ["plain, as it is", "q", "t"]


@pytest.mark.parametrize("content", ["", "\n \n", '{"id": 1}', '{"query": 3}', "{broken", b"\xff"])
def test_a_file_without_texts_is_refused(tmp_path: Path, content: str | bytes) -> None:
    """Nothing is sent that was not meant."""
    (tmp_path / "f").write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(Misconfigured):
        read_texts(tmp_path / "f")


def test_a_search_asks_for_what_was_said() -> None:
    """No more hits than candidates, and the priority and use of the reranker that were asked for."""
    ask = Ask(method="search", collection="c", pool_size=3, top_k=5, priority="bulk", rerank="off")
    (request,) = requests_of(ask, ["q"], [])
    assert (request.pool_size, request.top_k) == (3, 3)
    assert "PRIORITY_BULK" in str(request)
    assert "RERANK_OFF" in str(request)


def test_each_rerank_has_candidates_of_its_own() -> None:
    """They are taken in turn, and from the beginning again at the end."""
    requests = requests_of(Ask(method="rerank", pool_size=2), ["a", "b"], ["x", "y", "z"])
    assert [[one.text for one in request.candidates] for request in requests] == [["x", "y"], ["z", "x"]]


def test_an_encode_is_one_query() -> None:
    """As a search sends it."""
    (request,) = requests_of(Ask(method="encode"), ["q"], [])
    assert (list(request.texts), request.input_type) == (["q"], encoder_pb2.INPUT_TYPE_QUERY)


@pytest.mark.parametrize("ask", [Ask(method="search"), Ask(method="rerank")])
def test_what_a_method_needs_is_asked_for(ask: Ask) -> None:
    """A search needs a collection, a rerank passages."""
    with pytest.raises(Misconfigured, match="--"):
        requests_of(ask, ["q"], [])


def test_spans_are_read_as_the_gateway_writes_them() -> None:
    """Every stage and part of its trailing metadata, in seconds, and nothing of other keys."""
    time = SearchTime(
        total=100 * MS,
        encode=StageTime(total=10 * MS, compute=10 * MS),
        search=StageTime(total=5 * MS, network=5 * MS),
        rerank=StageTime(total=80 * MS, queue=70 * MS, compute=10 * MS),
    )
    spans = read_spans((("x-request-id", "7"), *time.trailers(), ("twostage-x-y-z-us", "1")), "search")
    assert spans == {key: pytest.approx(nanoseconds / 1e9) for key, nanoseconds in time.spans().items()}


def test_spans_of_a_model_server_are_of_its_one_stage() -> None:
    """Its keys name no stage; what is outside of it is the rest of the client's latency."""
    time = CallTime(total=30 * MS, tokenize=5 * MS, queue=5 * MS, compute=20 * MS)
    spans = read_spans(time.trailers(), "encode")
    sample = Sample(intended=0, sent=0, ended=0.04, reply=Reply(code="OK", spans=spans))
    run = summarize([sample], None, whole=TARGETS["encode"].whole)
    assert run.stages is not None
    assert run.latency is not None
    assert shares_of(run.stages, run.latency) == pytest.approx({"encode": 0.75, "outside": 0.25})
    found = bottleneck(run.stages, run.latency)
    assert found is not None
    assert (found.stage, found.part) == ("encode", "compute")
