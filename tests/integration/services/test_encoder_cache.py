"""Query vectors that are kept, over gRPC: what is computed, what is told, and what is still refused."""

from typing import Any

import grpc
import pytest
from factories import encoder_settings
from model_rigs import PASSAGE, QUERY, EncoderRig, Valve, open_encoder
from rigs import failure

from retrieval.encoder.v1 import encoder_pb2 as pb
from serving.bundle import Bundle

LONG = "panda bear " * 60


@pytest.fixture
async def encoder(tiny_encoder: Bundle) -> Any:
    """An encoder server that keeps query vectors."""
    async with open_encoder(encoder_settings(tiny_encoder, cache_mib=1)) as rig:
        yield rig


def watch(encoder: EncoderRig) -> list[int]:
    """Return a list that will hold the rows of every batch from here on."""
    valve = Valve(encoder.server)
    valve.opened.set()
    return valve.batches


def cached(answer: pb.EncodeResponse) -> list[bool]:
    """Return which vectors were kept ones."""
    return [one.cached for one in answer.embeddings]


async def test_a_query_that_was_asked_before_is_not_computed(encoder: EncoderRig) -> None:
    """The second answer is the first one bit for bit, says so, and reports no time of the device or the tokenizer."""
    first = await encoder.encode("what is tea?", input_type=QUERY)
    batches = watch(encoder)
    call = encoder.encode("what is tea?", input_type=QUERY)
    second = await call
    assert (cached(first), cached(second), batches) == ([False], [True], [])
    assert second.embeddings[0].values == first.embeddings[0].values
    assert second.embeddings[0].token_count == first.embeddings[0].token_count
    assert second.model == first.model
    spans = {part: getattr(second.timings, part).ToNanoseconds() for part in ("total", "tokenize", "queue", "compute")}
    assert spans["total"] > 0
    assert (spans["tokenize"], spans["queue"], spans["compute"]) == (0, 0, 0)
    trailed = dict(await call.trailing_metadata())
    assert trailed["twostage-compute-us"] == "0"


async def test_of_a_request_only_the_unknown_texts_are_computed(encoder: EncoderRig) -> None:
    """Order, vectors and counts are those of a server that keeps nothing, in both forms."""
    texts = ("river", "what is tea?", "panda", "tea", "mountain paper")
    expected = [(await encoder.encode(text, input_type=PASSAGE)).embeddings[0].token_count for text in texts]
    await encoder.encode("what is tea?", "tea", input_type=QUERY)
    batches = watch(encoder)
    mixed = await encoder.encode(*texts, input_type=QUERY)
    assert (cached(mixed), sum(batches)) == ([False, True, False, True, False], 3)
    again = await encoder.encode(*texts, input_type=QUERY, vector_format=pb.VECTOR_FORMAT_BYTES)
    assert (cached(again), sum(batches)) == ([True] * 5, 3)
    packed = [pb.Embedding(values=one.values) for one in mixed.embeddings]
    assert [one.packed for one in again.embeddings] == [one.SerializeToString()[2:] for one in packed]
    assert len({one.packed for one in again.embeddings}) == 5
    assert [one.token_count - two for one, two in zip(again.embeddings, expected, strict=True)] == [0] * 5


async def test_passages_are_never_kept(encoder: EncoderRig) -> None:
    """The role counts: a passage is computed every time, also where it is a query that was asked."""
    await encoder.encode("tea", input_type=QUERY)
    batches = watch(encoder)
    for _ in range(2):
        assert cached(await encoder.encode("tea", input_type=PASSAGE)) == [False]
    assert batches == [1, 1]


async def test_a_text_kept_cut_is_refused_where_cutting_is(encoder: EncoderRig) -> None:
    """After TRUNCATE a REJECT names the text by its place among known and unknown ones; TRUNCATE still hits."""
    cut = await encoder.encode("tea", LONG, input_type=QUERY, overlong=pb.OVERLONG_TRUNCATE)
    for fields in ({}, {"overlong": pb.OVERLONG_REJECT}):
        failed = await failure(encoder.encode("tea", "river", LONG, input_type=QUERY, **fields))
        assert (failed.code, failed.reason) == (grpc.StatusCode.INVALID_ARGUMENT, "TEXT_TOO_LONG")
        assert failed.info["field"] == "texts[2]"
    again = await encoder.encode("tea", LONG, input_type=QUERY, overlong=pb.OVERLONG_TRUNCATE)
    assert cached(again) == [True, True]
    assert [(one.truncated, one.token_count) for one in again.embeddings] == [
        (one.truncated, one.token_count) for one in cut.embeddings
    ]
    assert again.embeddings[1].truncated


@pytest.mark.parametrize(("text", "reason"), [("\u200b", "TEXT_BLANK"), ("poison", "NON_FINITE")])
async def test_what_failed_fails_again(encoder: EncoderRig, text: str, reason: str) -> None:
    """Neither the text that failed nor its neighbours were kept by the request that failed."""
    for _ in range(2):
        failed = await failure(encoder.encode("tea", text, input_type=QUERY))
        assert failed.reason == reason
    assert cached(await encoder.encode("tea", input_type=QUERY)) == [False]


async def test_bulk_queries_use_what_is_kept_and_push_nothing_out(encoder: EncoderRig) -> None:
    """A job that asks much once finds what people asked, and leaves nothing of its own."""
    await encoder.encode("tea", input_type=QUERY)
    for _ in range(2):
        answer = await encoder.encode("tea", "river", input_type=QUERY, priority=pb.PRIORITY_BULK)
        assert cached(answer) == [True, False]


async def test_nothing_is_kept_unless_told(tiny_encoder: Bundle) -> None:
    """By default the same query is computed again."""
    async with open_encoder(encoder_settings(tiny_encoder)) as encoder:
        batches = watch(encoder)
        for _ in range(2):
            assert cached(await encoder.encode("tea", input_type=QUERY)) == [False]
        assert batches == [1, 1]
