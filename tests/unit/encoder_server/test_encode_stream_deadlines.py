"""How long a message of a stream of texts may take, and that it waits for room.

Numbers in brackets are those of field failures.
"""

from collections.abc import AsyncIterator, Callable, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from encoder_server.service import EncoderService
from encoder_server.settings import EncoderSettings
from retrieval.encoder.v1 import encoder_pb2 as pb
from serving.batching import Priority
from serving.deadline import Deadline
from serving.metrics import ServerMetrics
from serving.requests import Answer
from serving.tokens import Tokens


class NotingEngine:
    """Computes zeros and notes how it was asked."""

    def __init__(self) -> None:
        manifest = SimpleNamespace(query_prefix="q ", passage_prefix="p ")
        self.model = SimpleNamespace(bundle=SimpleNamespace(manifest=manifest))
        self.reference: dict[str, str] = {"id": "noting"}
        self.deadlines: list[Deadline] = []
        self.waits: list[bool] = []
        self.priorities: list[Priority] = []

    async def tokenize(self, call: Callable[[Any], list[Tokens]], *, characters: int) -> list[Tokens]:
        return [Tokens([0, 2], untruncated_count=2)]

    async def compute(
        self, rows: Sequence[Tokens], deadline: Deadline, *, priority: Priority, wait: bool = False
    ) -> Answer[Any]:
        self.deadlines.append(deadline)
        self.priorities.append(priority)
        self.waits.append(wait)
        return Answer(outputs=[np.zeros(4, np.float32)], queue=0, compute=0)


class Caller:
    """What gRPC says of a caller: the seconds left, or None."""

    def __init__(self, remaining: float | None) -> None:
        self.remaining = remaining

    def time_remaining(self) -> float | None:
        return self.remaining


async def streamed(tmp_path: Any, remaining: float | None) -> NotingEngine:
    """Send two messages over a stream."""
    engine = NotingEngine()
    slot: Any = SimpleNamespace(engine=engine)
    service = EncoderService(slot, EncoderSettings(bundle=tmp_path, stream_deadline_s=100), ServerMetrics("encoder"))

    async def messages() -> AsyncIterator[pb.EncodeStreamRequest]:
        for number in range(2):
            request = pb.EncodeRequest(texts=["t"], input_type=pb.INPUT_TYPE_QUERY)
            yield pb.EncodeStreamRequest(sequence=number, request=request)

    caller: Any = Caller(remaining)
    answers = [answer async for answer in service.EncodeStream(messages(), caller)]
    assert [(one.sequence, len(one.response.embeddings)) for one in answers] == [(0, 1), (1, 1)]
    return engine


@pytest.mark.parametrize("remaining", [7.0, 0.0])
async def test_the_callers_deadline_is_one_instant_for_all_messages(tmp_path: Any, remaining: float) -> None:
    """A message that comes late does not get the whole budget anew, and none left is not taken for none set (10)."""
    before = Deadline.after(remaining)
    engine = await streamed(tmp_path, remaining)
    first, second = engine.deadlines
    assert first == second
    assert before <= first <= Deadline.after(remaining)


async def test_without_a_deadline_every_message_has_its_own(tmp_path: Any) -> None:
    """A stream may run as long as it likes; each of its messages gets the default, and waits for room (10, 15)."""
    before = Deadline.after(100)
    engine = await streamed(tmp_path, None)
    first, second = engine.deadlines
    assert before <= first < second <= Deadline.after(100)
    assert engine.waits == [True, True]


async def test_what_a_stream_brings_is_bulk_unless_it_says_otherwise(tmp_path: Any) -> None:
    """A message without a priority does not go before what people wait for."""
    engine = await streamed(tmp_path, None)
    assert engine.priorities == [Priority.BULK, Priority.BULK]
