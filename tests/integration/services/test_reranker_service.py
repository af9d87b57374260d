"""The reranker server over gRPC: the order, what is cut and what is refused.

Numbers in brackets are those of field failures.
"""

import asyncio
from dataclasses import replace
from typing import Any

import grpc
import numpy as np
import pytest
from factories import reference_ids, reference_logit, reranker_settings, vocabulary
from model_rigs import RerankerRig, Valve, open_reranker
from rigs import failure, health

from reranker_server.service import SERVICE
from retrieval.reranker.v1 import reranker_pb2 as pb
from serving.bundle import Bundle

CODE = grpc.StatusCode
LONG = "panda bear " * 60
QUESTION = "what is panda"


@pytest.fixture
async def reranker(tiny_reranker: Bundle) -> Any:
    """A reranker server over the tiny model."""
    async with open_reranker(reranker_settings(tiny_reranker)) as rig:
        yield rig


def candidates(*pairs: tuple[str, str]) -> list[pb.Candidate]:
    """Make candidates of (id, text)."""
    return [pb.Candidate(id=identifier, text=text) for identifier, text in pairs]


def set_logits(rig: RerankerRig, *logits: float) -> None:
    """Let the model answer these, in the order of a request's rows, whatever it is asked."""
    submit = rig.server.engine.batcher.submit

    async def answered(rows: Any, *args: Any, **options: Any) -> Any:
        answer = await submit(rows, *args, **options)
        return replace(answer, outputs=[np.float32(logits[index]) for index in range(len(rows))])

    rig.server.engine.batcher.submit = answered  # type: ignore[method-assign]


async def test_logits_are_what_the_reference_says_and_make_the_order(reranker: RerankerRig) -> None:
    """Each candidate has the logit of its pair, best first, every index once (3)."""
    texts = ("panda bear", "a river and 7 papers", "tea", "\u718a\u732b", "panda", "mountain")
    answer = await reranker.rerank(QUESTION, *texts)
    expected = [reference_logit(reference_ids(QUESTION, text)) for text in texts]
    assert sorted(one.index for one in answer.ranked) == list(range(6))
    for one in answer.ranked:
        assert one.id == str(one.index)
        assert one.logit == pytest.approx(expected[one.index], abs=1e-4)
        assert one.token_count == len(reference_ids(QUESTION, texts[one.index]))
        assert one.probability == pytest.approx(1 / (1 + np.exp(-one.logit)), abs=1e-12)
    assert [one.index for one in answer.ranked] == sorted(range(6), key=lambda index: -expected[index])
    assert (answer.truncated, answer.truncated_count, answer.query_truncated) == (False, 0, False)


async def test_equal_logits_are_ordered_by_id(reranker: RerankerRig) -> None:
    """The same text under many ids: numbers as numbers, then text, then the position."""
    entries = candidates(*((identifier, "tea") for identifier in ("b", "10", "9", "a", "9")))
    answer = await reranker.rerank(QUESTION, candidates=entries)
    assert [(one.id, one.index) for one in answer.ranked] == [("9", 2), ("9", 4), ("10", 1), ("a", 3), ("b", 0)]


async def test_logits_that_look_alike_keep_their_order(reranker: RerankerRig) -> None:
    """17 and 20 are ordered by logit, and neither is changed on the way (field failure 21)."""
    set_logits(reranker, 17.0, 20.0, -800.0, 0.0, -8.1875)
    answer = await reranker.rerank(QUESTION, *"abcde")
    assert [one.index for one in answer.ranked] == [1, 0, 3, 4, 2]
    shown = {one.index: one.probability for one in answer.ranked}
    assert (shown[2], shown[3]) == (0.0, 0.5)
    assert shown[4] == pytest.approx(0.000278, abs=1e-5)
    assert np.float32(shown[0]) >= np.float32(0.9999999)
    assert [one.logit for one in answer.ranked] == [20.0, 17.0, 0.0, -8.1875, -800.0]


@pytest.mark.parametrize("query", ["", " ", QUESTION, LONG, "x" * 70_000])
async def test_no_candidates_are_an_empty_answer(reranker: RerankerRig, query: str) -> None:
    """Whatever the query is, an empty list is answered at once and untruncated, with the model named."""
    answer = await reranker.rerank(query)
    assert not answer.ranked
    assert (answer.truncated, answer.truncated_count, answer.query_truncated) == (False, 0, False)
    assert answer.model.id == "tiny-reranker"
    assert answer.HasField("timings")


@pytest.mark.parametrize(("top_n", "count"), [(1, 1), (2, 2), (4, 4), (99, 4)])
async def test_the_best_are_returned(reranker: RerankerRig, top_n: int, count: int) -> None:
    """`top_n` cuts the ranking and never the computation: flags count pairs that are not returned."""
    texts = ("panda", LONG, "tea", LONG)
    every = await reranker.rerank(QUESTION, *texts)
    best = await reranker.rerank(QUESTION, *texts, top_n=top_n)
    assert [one.index for one in best.ranked] == [one.index for one in every.ranked][:count]
    assert (best.truncated, best.truncated_count) == (True, 2)


@pytest.mark.parametrize(
    ("query", "texts", "fields", "reason", "field"),
    [
        ("", ("tea",), {}, "TEXT_BLANK", "query"),
        ("\u200b", ("tea",), {"skip_blank": True}, "TEXT_BLANK", "query"),
        (QUESTION, ("tea", "\u200b "), {}, "TEXT_BLANK", "candidates[1].text"),
        (QUESTION, ("tea", ""), {}, "TEXT_BLANK", "candidates[1].text"),
        ("q" * 65_537, ("tea",), {}, "TEXT_TOO_LARGE", "query"),
        (QUESTION, ("tea", "\u718a" * 21_846), {}, "TEXT_TOO_LARGE", "candidates[1].text"),
        (QUESTION, ("tea",) * 257, {}, "TOO_MANY_CANDIDATES", "candidates"),
        (QUESTION, ("tea",), {"top_n": 0}, "TOP_N_RANGE", "top_n"),
        (QUESTION, ("tea",), {"top_n": -1}, "TOP_N_RANGE", "top_n"),
        (QUESTION, (), {"top_n": 0}, "TOP_N_RANGE", "top_n"),
        (QUESTION, ("tea",), {"truncation": 9}, "ENUM_UNKNOWN", "truncation"),
        (QUESTION, ("tea", LONG), {"truncation": pb.TRUNCATION_REJECT}, "PAIR_TOO_LONG", "candidates[1].text"),
    ],
)
async def test_a_wrong_request_is_named(
    reranker: RerankerRig, query: str, texts: tuple[str, ...], fields: dict[str, Any], reason: str, field: str
) -> None:
    """Everything refused says which field of which candidate, and the next call works (40, 27)."""
    failed = await failure(reranker.rerank(query, *texts, **fields))
    assert (failed.code, failed.reason, failed.info["field"]) == (CODE.INVALID_ARGUMENT, reason, field)
    assert failed.details.startswith(f"{field}: ")
    assert len((await reranker.rerank(QUESTION, "tea")).ranked) == 1


async def test_an_id_that_would_swell_the_answer_is_refused(reranker: RerankerRig) -> None:
    """Ids have up to 512 bytes, and those of 512 come back whole (14)."""
    answer = await reranker.rerank(QUESTION, candidates=candidates(("\u718a" * 170, "tea")))
    assert answer.ranked[0].id == "\u718a" * 170
    failed = await failure(reranker.rerank(QUESTION, candidates=candidates(("\u718a" * 171, "tea"))))
    assert (failed.reason, failed.info["field"]) == ("TEXT_TOO_LARGE", "candidates[0].id")


async def test_blank_candidates_may_be_left_out(reranker: RerankerRig) -> None:
    """With `skip_blank` they are named, the rest is ranked under its own positions (40, 33)."""
    answer = await reranker.rerank(QUESTION, "", "tea", "\u200b", "panda", " \n", skip_blank=True)
    assert list(answer.skipped_indices) == [0, 2, 4]
    assert sorted(one.index for one in answer.ranked) == [1, 3]
    alone = await reranker.rerank(QUESTION, "tea", "panda")
    assert [one.logit for one in answer.ranked] == pytest.approx([one.logit for one in alone.ranked], abs=1e-5)


async def test_only_blank_candidates_are_an_empty_ranking(reranker: RerankerRig) -> None:
    """Where all are left out nothing is computed and nothing fails."""
    answer = await reranker.rerank(QUESTION, "", " ", skip_blank=True)
    assert (list(answer.skipped_indices), len(answer.ranked)) == ([0, 1], 0)


async def test_one_long_candidate_does_not_refuse_the_others(reranker: RerankerRig) -> None:
    """By default it is cut, flagged, and scored as the library cuts it; its neighbours are whole (27, 25)."""
    answer = await reranker.rerank(QUESTION, "tea", LONG, "panda")
    by_index = {one.index: one for one in answer.ranked}
    assert [by_index[index].truncated for index in range(3)] == [False, True, False]
    assert (answer.truncated, answer.truncated_count, answer.query_truncated) == (True, 1, False)
    assert by_index[1].token_count == 64
    assert by_index[1].logit == pytest.approx(reference_logit(reference_ids(QUESTION, LONG)), abs=1e-4)


async def test_a_long_query_is_cut_and_reported(reranker: RerankerRig) -> None:
    """Longest first leaves both sides half of the room; ONLY_PASSAGE leaves the query three quarters (26)."""
    for truncation in (pb.TRUNCATION_LONGEST_FIRST, pb.TRUNCATION_ONLY_PASSAGE):
        answer = await reranker.rerank(LONG, LONG, "tea", truncation=truncation)
        assert answer.query_truncated
        by_index = {one.index: one for one in answer.ranked}
        assert by_index[0].truncated
        assert by_index[0].token_count == 64
    longest = await reranker.rerank(LONG, LONG)
    assert longest.ranked[0].logit == pytest.approx(reference_logit(reference_ids(LONG, LONG)), abs=1e-4)
    only = await reranker.rerank(LONG, LONG, truncation=pb.TRUNCATION_ONLY_PASSAGE)
    content = reference_ids(LONG, max_tokens=1_000)[1:-1]
    bos, eos = reference_ids("tea")[0], reference_ids("tea")[-1]
    row = [bos, *content[:45], eos, eos, *content[:15], eos]
    assert only.ranked[0].logit == pytest.approx(reference_logit(row), abs=1e-4)


async def test_only_passage_cuts_the_passage_and_not_the_query(reranker: RerankerRig) -> None:
    """A query within three quarters of the limit stays whole under ONLY_PASSAGE (26)."""
    query = "panda " * 40
    answer = await reranker.rerank(query, LONG, truncation=pb.TRUNCATION_ONLY_PASSAGE)
    assert (answer.query_truncated, answer.truncated) == (False, True)
    cut = await reranker.rerank(query, LONG, truncation=pb.TRUNCATION_LONGEST_FIRST)
    assert cut.query_truncated


async def test_reject_takes_what_fits(reranker: RerankerRig) -> None:
    """Under REJECT pairs within the limit are scored as ever, and the refusal says both counts."""
    answer = await reranker.rerank(QUESTION, "tea", truncation=pb.TRUNCATION_REJECT)
    assert len(answer.ranked) == 1
    failed = await failure(reranker.rerank(QUESTION, LONG, truncation=pb.TRUNCATION_REJECT))
    whole = len(reference_ids(QUESTION, LONG, max_tokens=10_000))
    assert f"{whole} tokens" in failed.details
    assert "limit is 64" in failed.details


async def test_text_that_spells_special_tokens_stays_text(reranker: RerankerRig) -> None:
    """`</s></s>` in a text is no separator: three end tokens per pair, whatever the texts say (field failure 28)."""
    seen: list[list[int]] = []
    model = reranker.server.engine.model
    prepare = model.prepare

    def spy(rows: Any) -> Any:
        seen.extend(row.ids for row in rows)
        return prepare(rows)

    model.prepare = spy  # type: ignore[method-assign]
    await reranker.rerank("what is panda</s></s>panda bear", "<s>tea</s>", "<pad><unk><mask>", "tea")
    pieces = vocabulary()
    bos, eos, pad, mask = (pieces.index(piece) for piece in ("<s>", "</s>", "<pad>", "<mask>"))
    for row in seen:
        assert (row[0], row[-1]) == (bos, eos)
        assert (row.count(bos), row.count(eos), row.count(pad), row.count(mask)) == (1, 3, 0, 0)
    forged = await reranker.rerank("what is panda</s></s>panda bear", "tea")
    split = await reranker.rerank("what is panda", "panda bear</s>tea")
    assert forged.ranked[0].logit != pytest.approx(split.ranked[0].logit, abs=1e-3)


@pytest.mark.parametrize(("word", "reason"), [("poison", "NON_FINITE"), ("crash", "INFERENCE_FAILED")])
async def test_a_pair_that_fails_concerns_its_own_request(reranker: RerankerRig, word: str, reason: str) -> None:
    """A NaN is never ranked: INTERNAL for its request, while the request beside it is answered (22, 23)."""
    valve = Valve(reranker.server)
    running = reranker.rerank(QUESTION, "river")
    await valve.wait_entered()
    bad = asyncio.create_task(failure(reranker.rerank(QUESTION, "tea", word)))
    good = reranker.rerank(QUESTION, "tea", "panda")
    await reranker.waiting(4)
    valve.opened.set()
    await running
    failed = await bad
    assert (failed.code, failed.reason) == (CODE.INTERNAL, reason)
    assert len((await good).ranked) == 2
    assert valve.batches[1] == 4


async def test_concurrent_requests_keep_their_own_scores(reranker: RerankerRig) -> None:
    """Many requests computed in shared batches answer as they do alone, to 1e-5 (3, 11)."""
    texts = [tuple(f"{'panda ' * (1 + row * shift % 9)}tea {shift}" for row in range(6)) for shift in range(10)]
    alone = [await reranker.rerank(QUESTION, *row) for row in texts]
    valve = Valve(reranker.server)
    running = reranker.rerank(QUESTION, "river")
    await valve.wait_entered()
    together = [asyncio.create_task(_answered(reranker, row)) for row in texts]
    await reranker.waiting(60)
    valve.opened.set()
    await running
    for task, expected in zip(together, alone, strict=True):
        answer = {one.index: one.logit for one in (await task).ranked}
        assert answer == pytest.approx({one.index: one.logit for one in expected.ranked}, abs=1e-5)
    assert max(valve.batches) > 6


async def _answered(rig: RerankerRig, texts: tuple[str, ...]) -> pb.RerankResponse:
    answer: pb.RerankResponse = await rig.rerank(QUESTION, *texts)
    return answer


async def test_a_hopeless_request_is_refused_before_it_is_tokenized(tiny_reranker: Bundle) -> None:
    """Overload costs no tokenizing: a passage that only the tokenizer could refuse is not looked at (15)."""
    async with open_reranker(reranker_settings(tiny_reranker, max_waiting_tokens=4)) as reranker:
        valve = Valve(reranker.server)
        running = reranker.rerank(QUESTION, "tea")
        await valve.wait_entered()
        queued = reranker.rerank(QUESTION, "river")  # over the limit, which an empty queue allows
        await reranker.waiting(1)
        assert (await failure(reranker.rerank(QUESTION, " "))).reason == "QUEUE_FULL"
        valve.opened.set()
        assert len((await running).ranked) == len((await queued).ranked) == 1
        assert (await failure(reranker.rerank(QUESTION, " "))).code == CODE.INVALID_ARGUMENT


async def test_a_full_queue_refuses_and_health_stays_fine(tiny_reranker: Bundle) -> None:
    """The excess is RESOURCE_EXHAUSTED with RetryInfo; what was taken is answered (15, 16)."""
    async with open_reranker(reranker_settings(tiny_reranker, max_waiting_tokens=60)) as reranker:
        valve = Valve(reranker.server)
        running = reranker.rerank(QUESTION, "tea")
        await valve.wait_entered()
        queued = reranker.rerank(QUESTION, "tea", "river")
        await reranker.waiting(2)
        failed = await failure(reranker.rerank(QUESTION, *["panda"] * 9))
        assert (failed.code, failed.reason) == (CODE.RESOURCE_EXHAUSTED, "QUEUE_FULL")
        assert failed.retry_after_s is not None
        assert await health(reranker.channel, SERVICE) == 1
        assert not (await reranker.rerank(QUESTION)).ranked  # an empty list needs no room
        valve.opened.set()
        assert len((await running).ranked) == 1
        assert len((await queued).ranked) == 2


async def test_what_is_too_late_is_never_computed(reranker: RerankerRig) -> None:
    """A queued request whose deadline passed does not reach the device (field failure 10)."""
    valve = Valve(reranker.server)
    running = reranker.rerank(QUESTION, "tea")
    await valve.wait_entered()
    failed = await failure(reranker.rerank(QUESTION, *["river"] * 7, deadline_s=0.2))
    assert failed.code is CODE.DEADLINE_EXCEEDED
    valve.opened.set()
    await running
    await reranker.rerank(QUESTION, "panda", "paper", deadline_s=None)
    assert valve.batches == [1, 2]


async def test_bytes_that_are_no_text_are_refused(reranker: RerankerRig) -> None:
    """A query that is not UTF-8 is the caller's fault and not UNKNOWN (41)."""
    raw = reranker.channel.unary_unary(f"/{SERVICE}/Rerank")
    failed = await failure(raw(b"\x0a\x02\xff\xfe"))
    assert (failed.code, failed.reason) == (CODE.INVALID_ARGUMENT, "REQUEST_MALFORMED")
    assert len((await reranker.rerank(QUESTION, "nul \x00 in it")).ranked) == 1


async def test_the_model_and_the_limits_are_told(tiny_reranker: Bundle) -> None:
    """GetModel says all that a client needs, and answers name the same model."""
    settings = reranker_settings(tiny_reranker, max_candidates=9, max_text_bytes=99, max_waiting_tokens=999)
    async with open_reranker(settings) as reranker:
        reference = pb.ModelReference(
            id="tiny-reranker", revision="1", digest=tiny_reranker.digest, precision="fp32", device="cpu"
        )
        assert await reranker.stub.GetModel(pb.GetModelRequest()) == pb.GetModelResponse(
            model=reference,
            limits=pb.Limits(max_tokens=64, max_candidates=9, max_text_bytes=99, max_waiting_tokens=999),
        )
        assert (await reranker.rerank(QUESTION, "tea")).model == reference
        assert (await failure(reranker.rerank(QUESTION, *["tea"] * 10))).reason == "TOO_MANY_CANDIDATES"


async def test_times_do_not_exceed_the_total_and_are_trailed(reranker: RerankerRig) -> None:
    """The parts add up to at most the total, and trailing metadata tells the message's numbers (73)."""
    call = reranker.rerank(QUESTION, "tea", "panda")
    timings = (await call).timings
    spans = {part: getattr(timings, part).ToNanoseconds() for part in ("total", "tokenize", "queue", "compute")}
    assert spans["tokenize"] + spans["queue"] + spans["compute"] <= spans["total"]
    assert min(spans["tokenize"], spans["compute"]) > 0
    trailed = {key: value for key, value in await call.trailing_metadata() if key.startswith("twostage-")}
    assert trailed == {f"twostage-{part}-us": str(span // 1_000) for part, span in spans.items()}
