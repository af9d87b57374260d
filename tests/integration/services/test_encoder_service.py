"""The encoder server over gRPC: what it answers, what it refuses, and what one request may do to another.

Numbers in brackets are those of field failures.
"""

import asyncio
from typing import Any

import grpc
import numpy as np
import pytest
from clients import client
from factories import encoder_settings, reference_ids, reference_vector
from model_rigs import PASSAGE, QUERY, EncoderRig, Valve, encode_request, open_encoder
from patience import with_more_time
from rigs import Failed, failure, free_port, health

from encoder_server.app import open_app
from encoder_server.service import SERVICE
from retrieval.encoder.v1 import encoder_pb2 as pb
from serving import engine
from serving.bundle import Bundle

CODE = grpc.StatusCode
LONG = "panda bear " * 60
INVISIBLE = "\u200b \u200b\t\u3000"


@pytest.fixture
async def encoder(tiny_encoder: Bundle) -> Any:
    """An encoder server over the tiny model."""
    async with open_encoder(encoder_settings(tiny_encoder)) as rig:
        yield rig


def wrong(failed: Failed, reason: str, field: str) -> bool:
    """Tell whether a call failed as the caller's fault, with the field named in message and details."""
    assert (failed.code, failed.reason, failed.info["field"]) == (CODE.INVALID_ARGUMENT, reason, field)
    assert failed.details.startswith(f"{field}: ")
    return True


async def test_vectors_are_what_the_reference_says(encoder: EncoderRig) -> None:
    """Each text's vector is that of its prefixed ids, in order, of length one (3)."""
    texts = ("panda", "what is tea?", "a river and 7 papers", "\u718a\u732b\u559d\u8336")
    vectors = await encoder.vectors(*texts)
    expected = [reference_vector(reference_ids(f"passage: {text}")) for text in texts]
    assert np.abs(vectors - np.array(expected)).max() < 1e-5
    assert np.linalg.norm(vectors, axis=1) == pytest.approx(1, abs=1e-5)


async def test_what_shares_a_batch_does_not_change_an_answer(encoder: EncoderRig) -> None:
    """Requests of mixed lengths, computed together, answer as they do alone, in order (field failures 3 and 11)."""
    words = ("panda", "bear", "tea", "river", "mountain", "paper", "what")
    requests = [
        tuple(" ".join(words[(row + n) % 7] for n in range(1 + 7 * row * shift % 40)) for row in range(5))
        for shift in range(12)
    ]
    alone = [np.array([(await encoder.vectors(text))[0] for text in texts]) for texts in requests]
    valve = Valve(encoder.server)
    first = asyncio.create_task(encoder.vectors("panda"))
    await valve.wait_entered()
    together = [asyncio.create_task(encoder.vectors(*texts)) for texts in requests]
    await encoder.waiting(60)
    valve.opened.set()
    await first
    for task, expected in zip(together, alone, strict=True):
        assert np.abs(await task - expected).max() < 1e-5
    assert max(valve.batches) > 5  # rows of several requests were computed at once


async def test_a_query_is_not_a_passage(encoder: EncoderRig) -> None:
    """The role decides the prefix, and with it the vector (field failure 12)."""
    query = await encoder.vectors("panda", input_type=QUERY)
    passage = await encoder.vectors("panda", input_type=PASSAGE)
    assert np.abs(query - passage).max() > 1e-3
    assert np.abs(query[0] - reference_vector(reference_ids("query: panda"))).max() < 1e-5


async def test_a_text_with_the_prefix_gets_it_again(encoder: EncoderRig) -> None:
    """The prefix is added always, also where the text begins with it (field failure 12)."""
    twice = await encoder.vectors("query: panda", input_type=QUERY)
    assert np.abs(twice[0] - reference_vector(reference_ids("query: query: panda"))).max() < 1e-5
    assert np.abs(twice - await encoder.vectors("panda", input_type=QUERY)).max() > 1e-3


@pytest.mark.parametrize(
    ("texts", "fields", "reason", "field"),
    [
        ((), {}, "TEXTS_EMPTY", "texts"),
        (("panda",) * 257, {}, "TOO_MANY_TEXTS", "texts"),
        (("panda",), {"input_type": 0}, "INPUT_TYPE_REQUIRED", "input_type"),
        (("panda",), {"input_type": 77}, "INPUT_TYPE_REQUIRED", "input_type"),
        (("panda",), {"overlong": 77}, "ENUM_UNKNOWN", "overlong"),
        (("panda",), {"vector_format": 77}, "ENUM_UNKNOWN", "vector_format"),
        (("panda", "\u718a" * 21_846), {}, "TEXT_TOO_LARGE", "texts[1]"),
        (("panda", ""), {}, "TEXT_BLANK", "texts[1]"),
        (("panda", " \n\t"), {}, "TEXT_BLANK", "texts[1]"),
        (("panda", "tea", INVISIBLE), {}, "TEXT_BLANK", "texts[2]"),
        (("panda", "\x01\x1f"), {}, "TEXT_BLANK", "texts[1]"),
        (("panda", LONG), {}, "TEXT_TOO_LONG", "texts[1]"),
        (("panda", LONG), {"overlong": pb.OVERLONG_REJECT}, "TEXT_TOO_LONG", "texts[1]"),
    ],
    ids=lambda value: value if isinstance(value, str) and value.isupper() else None,
)
async def test_a_wrong_request_is_named(
    encoder: EncoderRig, texts: tuple[str, ...], fields: dict[str, Any], reason: str, field: str
) -> None:
    """Counts, bytes, blank and invisible texts and enums are refused with the field, and the next call works (40)."""
    failed = await failure(encoder.encode(*texts, **fields))
    assert wrong(failed, reason, field)
    assert "panda" not in failed.details
    assert len((await encoder.encode("panda")).embeddings) == 1


async def test_a_text_over_the_limit_is_cut_where_that_was_asked_for(encoder: EncoderRig) -> None:
    """The flag and the count say so, the row ends in the end token, and its neighbour is whole (field failure 24)."""
    answer = await encoder.encode("panda", LONG, overlong=pb.OVERLONG_TRUNCATE)
    short, long = answer.embeddings
    assert (short.truncated, short.token_count) == (False, len(reference_ids("passage: panda")))
    assert (long.truncated, long.token_count) == (True, 64)
    expected = reference_vector(reference_ids(f"passage: {LONG}"))  # cut by the library, end token and all
    assert np.abs(np.array(long.values) - expected).max() < 1e-5


async def test_a_text_of_exactly_the_limit_is_whole(encoder: EncoderRig) -> None:
    """64 tokens pass, 65 do not (field failure 24)."""
    fixed = len(reference_ids("passage: panda")) - 1
    text = " ".join(["panda"] * (64 - fixed))
    (whole,) = (await encoder.encode(text)).embeddings
    assert (whole.token_count, whole.truncated) == (64, False)
    failed = await failure(encoder.encode(f"{text} panda"))
    assert wrong(failed, "TEXT_TOO_LONG", "texts[0]")
    assert "65 tokens, the limit is 64" in failed.details


async def test_bytes_and_floats_are_the_same_numbers(encoder: EncoderRig) -> None:
    """Both forms agree bit for bit, and only the one asked for is filled."""
    texts = ("panda", "river mountain paper")
    floats = await encoder.encode(*texts)
    packed = await encoder.encode(*texts, vector_format=pb.VECTOR_FORMAT_BYTES)
    for one, other in zip(floats.embeddings, packed.embeddings, strict=True):
        assert np.array(one.values, "<f4").tobytes() == other.packed
        assert not one.packed
        assert not other.values


async def test_bytes_that_are_no_text_are_refused(encoder: EncoderRig) -> None:
    """Bytes FF FE and a surrogate in a text are the caller's fault, and the next call works (field failure 41)."""
    raw = encoder.channel.unary_unary(f"/{SERVICE}/Encode")
    for data in (b"\xff\xfe", b"\xed\xa0\x80"):
        failed = await failure(raw(b"\x0a" + bytes([len(data)]) + data + b"\x10\x02"))
        assert (failed.code, failed.reason) == (CODE.INVALID_ARGUMENT, "REQUEST_MALFORMED")
    assert len((await encoder.encode("nul \x00 in it")).embeddings) == 1


async def test_health_answers_while_the_model_is_busy(encoder: EncoderRig) -> None:
    """With the device blocked and 64 of the largest texts to tokenize, health answers (field failures 6, 16, 42)."""
    valve = Valve(encoder.server)
    small = asyncio.create_task(encoder.vectors("panda"))
    await valve.wait_entered()
    text = ("panda " * 10_923)[:65_536]
    large = asyncio.create_task(encoder.vectors(*[text] * 64, overlong=pb.OVERLONG_TRUNCATE))
    async with asyncio.timeout(20):
        while encoder.server.engine.batcher.waiting_rows < 64:
            assert await health(encoder.channel, SERVICE) == 1
    assert await health(encoder.channel) == 1
    valve.opened.set()
    await small
    assert np.ptp(await large, axis=0).max() < 1e-6


async def test_a_hopeless_request_is_refused_before_it_is_tokenized(tiny_encoder: Bundle) -> None:
    """Overload costs no tokenizing: a text that only the tokenizer could refuse is not looked at (15)."""
    async with open_encoder(encoder_settings(tiny_encoder, max_waiting_tokens=4)) as encoder:
        valve = Valve(encoder.server)
        running = asyncio.create_task(encoder.vectors("panda"))
        await valve.wait_entered()
        queued = asyncio.create_task(encoder.vectors("panda bear tea river"))  # over the limit, into an empty queue
        await encoder.waiting(1)
        assert (await failure(encoder.encode(" "))).reason == "QUEUE_FULL"
        valve.opened.set()
        assert len(await running) == len(await queued) == 1
        assert (await failure(encoder.encode(" "))).code == CODE.INVALID_ARGUMENT


async def test_a_full_queue_refuses_and_says_when_to_come_back(tiny_encoder: Bundle) -> None:
    """The excess is RESOURCE_EXHAUSTED with RetryInfo, health stays fine, what was taken is answered (15, 16)."""
    async with open_encoder(encoder_settings(tiny_encoder, max_waiting_tokens=40)) as encoder:
        valve = Valve(encoder.server)
        running = asyncio.create_task(encoder.vectors("panda"))
        await valve.wait_entered()
        queued = asyncio.create_task(encoder.vectors("tea", "river"))
        await encoder.waiting(2)
        failed = await failure(encoder.encode(*["panda bear"] * 6))
        assert (failed.code, failed.reason) == (CODE.RESOURCE_EXHAUSTED, "QUEUE_FULL")
        assert failed.retry_after_s is not None
        assert await health(encoder.channel, SERVICE) == 1
        valve.opened.set()
        assert (await running).shape == (1, 8)
        assert (await queued).shape == (2, 8)
        assert (await encoder.vectors(*["panda bear"] * 6)).shape == (6, 8)


async def test_what_is_too_late_is_never_computed(encoder: EncoderRig) -> None:
    """A queued request whose deadline passed does not reach the device (field failure 10)."""
    valve = Valve(encoder.server)
    running = asyncio.create_task(encoder.vectors("panda"))
    await valve.wait_entered()
    failed = await failure(encoder.encode(*["tea"] * 7, deadline_s=0.2))
    assert failed.code is CODE.DEADLINE_EXCEEDED
    valve.opened.set()
    await running
    await encoder.vectors("river", "paper")
    assert valve.batches == [1, 2]


async def test_without_a_deadline_the_servers_own_applies(tiny_encoder: Bundle) -> None:
    """A caller without a deadline is answered, and does not wait for ever (field failure 10)."""

    async def attempt(seconds: float) -> None:
        async with open_encoder(encoder_settings(tiny_encoder, default_deadline_s=seconds)) as encoder:
            assert len((await encoder.encode("panda", deadline_s=None)).embeddings) == 1
            valve = Valve(encoder.server)
            running = asyncio.create_task(encoder.vectors("panda", deadline_s=60))
            await valve.wait_entered()
            failed = await failure(encoder.encode("tea", deadline_s=None))
            assert (failed.code, failed.reason) == (CODE.DEADLINE_EXCEEDED, "DEADLINE_SPENT")
            valve.opened.set()
            await running

    await with_more_time(attempt)


@pytest.mark.parametrize(("word", "reason"), [("poison", "NON_FINITE"), ("crash", "INFERENCE_FAILED")])
async def test_a_row_that_fails_concerns_its_own_request(encoder: EncoderRig, word: str, reason: str) -> None:
    """NaN or an exception of the engine is INTERNAL to one request; those in its batch are answered (22, 23)."""
    expected = await encoder.vectors("panda", "tea")
    valve = Valve(encoder.server)
    running = asyncio.create_task(encoder.vectors("river"))
    await valve.wait_entered()
    bad = asyncio.create_task(failure(encoder.encode("panda", word)))
    good = asyncio.create_task(encoder.vectors("panda", "tea"))
    await encoder.waiting(4)
    valve.opened.set()
    await running
    failed = await bad
    assert (failed.code, failed.reason) == (CODE.INTERNAL, reason)
    assert failed.info["error_id"] in failed.details
    assert np.abs(await good - expected).max() < 1e-5
    assert valve.batches[1] == 4  # they did share a batch


async def test_a_caller_that_leaves_disturbs_nobody(encoder: EncoderRig) -> None:
    """A call cancelled while queued is not computed, one cancelled while computed is dropped, the next is fine (2)."""
    valve = Valve(encoder.server)
    computing = encoder.encode("panda")
    await valve.wait_entered()
    queued = encoder.encode("tea", "river")
    await encoder.waiting(2)
    computing.cancel()
    queued.cancel()
    kept = asyncio.create_task(encoder.vectors("panda", "bear", "paper"))
    await encoder.waiting(3)
    valve.opened.set()
    assert (await kept).shape == (3, 8)
    assert valve.batches == [1, 3]


async def test_before_the_model_is_loaded(tiny_encoder: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls are UNAVAILABLE (STARTING) and health says NOT_SERVING under every name until the load is done (5)."""
    load, gate = engine._load, asyncio.Event()
    loop = asyncio.get_running_loop()

    def slow(*arguments: Any) -> Any:
        asyncio.run_coroutine_threadsafe(gate.wait(), loop).result(60)
        return load(*arguments)

    monkeypatch.setattr(engine, "_load", slow)
    settings = encoder_settings(tiny_encoder, port=free_port())
    app = open_app(settings)
    opening = asyncio.create_task(app.__aenter__())
    async with client(settings.port) as channel:
        await asyncio.wait_for(channel.channel_ready(), 20)
        assert [await health(channel, name) for name in ("", SERVICE)] == [2, 2]
        rig = EncoderRig(None, channel)  # type: ignore[arg-type]
        for call in (rig.encode("panda"), rig.stub.GetModel(pb.GetModelRequest())):
            failed = await failure(call)
            assert (failed.code, failed.reason) == (CODE.UNAVAILABLE, "STARTING")
        gate.set()
        await opening
        assert [await health(channel, name) for name in ("", SERVICE)] == [1, 1]
        assert len((await rig.encode("panda")).embeddings) == 1
    await app.__aexit__(None, None, None)


async def test_the_model_and_the_limits_are_told(tiny_encoder: Bundle) -> None:
    """GetModel says all that a client needs to stay within the limits and to know whose vectors it holds."""
    settings = encoder_settings(tiny_encoder, max_texts=9, max_text_bytes=99, max_waiting_tokens=999, max_tokens=32)
    async with open_encoder(settings) as encoder:
        answer = await encoder.stub.GetModel(pb.GetModelRequest())
        reference = pb.ModelReference(
            id="tiny-encoder", revision="1", digest=tiny_encoder.digest, precision="fp32", device="cpu"
        )
        assert answer == pb.GetModelResponse(
            model=reference,
            limits=pb.Limits(max_tokens=32, max_texts=9, max_text_bytes=99, max_waiting_tokens=999),
            dimension=8,
            query_prefix="query: ",
            passage_prefix="passage: ",
        )
        assert (await encoder.encode("panda")).model == reference
        assert wrong(await failure(encoder.encode(*["p"] * 10)), "TOO_MANY_TEXTS", "texts")
        assert wrong(await failure(encoder.encode("p" * 100)), "TEXT_TOO_LARGE", "texts[0]")
        assert wrong(await failure(encoder.encode("1 " * 40)), "TEXT_TOO_LONG", "texts[0]")


async def test_times_do_not_exceed_the_total_and_are_trailed(encoder: EncoderRig) -> None:
    """The parts add up to at most the total, and trailing metadata tells the message's numbers (73)."""
    call = encoder.encode("panda", "tea")
    timings = (await call).timings
    spans = {part: getattr(timings, part).ToNanoseconds() for part in ("total", "tokenize", "queue", "compute")}
    assert spans["tokenize"] + spans["queue"] + spans["compute"] <= spans["total"]
    assert min(spans["tokenize"], spans["compute"]) > 0
    trailed = {key: value for key, value in await call.trailing_metadata() if key.startswith("twostage-")}
    assert trailed == {f"twostage-{part}-us": str(span // 1_000) for part, span in spans.items()}


async def test_waiting_is_told_as_waiting(encoder: EncoderRig) -> None:
    """A request that stood behind another says so: its queue is at least as long as the other still ran (73)."""
    valve = Valve(encoder.server)
    running = asyncio.create_task(encoder.vectors("panda"))
    await valve.wait_entered()
    queued = encoder.encode("tea")
    await encoder.waiting(1)
    valve.opened.set()
    await running
    timings = (await queued).timings
    assert timings.queue.ToNanoseconds() > 0
    assert timings.queue.ToNanoseconds() + timings.compute.ToNanoseconds() <= timings.total.ToNanoseconds()


def message(sequence: int, *texts: str, **fields: Any) -> pb.EncodeStreamRequest:
    """Make a message of a stream."""
    return pb.EncodeStreamRequest(sequence=sequence, request=encode_request(*texts, **fields))


async def test_a_stream_is_answered_in_order(encoder: EncoderRig) -> None:
    """Thirty messages of mixed sizes come back in their order with their own vectors (3)."""
    texts = [[f"{'panda ' * (one % 7)}tea {one}"] * (1 + one % 3) for one in range(30)]
    sent = [message(100 - one, *texts[one]) for one in range(30)]
    answers = [answer async for answer in encoder.stub.EncodeStream(iter(sent))]
    assert [answer.sequence for answer in answers] == [100 - one for one in range(30)]
    for answer, own in zip(answers, texts, strict=True):
        vectors = np.array([one.values for one in answer.response.embeddings])
        expected = reference_vector(reference_ids(f"passage: {own[0]}"))
        assert vectors.shape == (len(own), 8)
        assert np.abs(vectors - expected).max() < 1e-5


async def test_a_wrong_message_of_a_stream_leaves_the_others_alone(encoder: EncoderRig) -> None:
    """What is wrong with a message, or cannot be computed, is its own answer (23)."""
    sent = [message(1, "panda"), message(2), message(3, "tea", "poison"), message(4, LONG), message(5, "river")]
    answers = [answer async for answer in encoder.stub.EncodeStream(iter(sent))]
    assert [(one.sequence, one.failure.code, one.failure.reason) for one in answers] == [
        (1, 0, ""),
        (2, 3, "TEXTS_EMPTY"),
        (3, 13, "NON_FINITE"),
        (4, 3, "TEXT_TOO_LONG"),
        (5, 0, ""),
    ]
    assert [len(one.response.embeddings) for one in answers] == [1, 0, 0, 0, 1]


async def test_the_sender_of_a_stream_is_slowed_instead_of_refused(tiny_encoder: Bundle) -> None:
    """Far more than the queue holds is sent at once: few messages are at work, and every one is answered (15)."""
    async with open_encoder(encoder_settings(tiny_encoder, max_waiting_tokens=30)) as encoder:
        valve = Valve(encoder.server)
        call = encoder.stub.EncodeStream(iter([message(one, "panda bear", "tea") for one in range(50)]))
        await valve.wait_entered()
        failed = await failure(encoder.encode(*["panda bear"] * 9, priority=pb.PRIORITY_BULK))
        assert failed.reason == "QUEUE_FULL"
        assert encoder.server.engine.batcher.waiting_tokens <= 30
        valve.opened.set()
        answers = [answer async for answer in call]
        assert [len(one.response.embeddings) for one in answers] == [2] * 50


async def test_a_stream_whose_sender_leaves_frees_the_queue(encoder: EncoderRig) -> None:
    """Messages of a cancelled stream are not computed, and the next stream is fine (2)."""
    valve = Valve(encoder.server)
    before = asyncio.create_task(encoder.vectors("river"))  # so that nothing of the stream is in the first batch
    await valve.wait_entered()
    call = encoder.stub.EncodeStream(iter([message(one, "panda", "tea") for one in range(9)]))
    await encoder.waiting(*range(2, 9))
    call.cancel()
    kept = asyncio.create_task(encoder.vectors("river"))
    await encoder.waiting(1)
    valve.opened.set()
    assert [one.shape for one in await asyncio.gather(before, kept)] == [(1, 8)] * 2
    again = [answer async for answer in encoder.stub.EncodeStream(iter([message(1, "panda")]))]
    assert len(again[0].response.embeddings) == 1
    assert set(valve.batches) == {1}
