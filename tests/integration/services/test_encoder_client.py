"""The encoder port over gRPC: what is asked for, and under which name a refusal comes back."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import grpc
import numpy as np
import pytest
from fakes import FakeEncoder, serve, status, word_vector

from gateway import encoder_client
from gateway.channels import open_channel
from gateway.encoder_client import EncoderClient
from retrieval.encoder.v1 import encoder_pb2 as pb
from serving.batching import Priority
from serving.deadline import Deadline
from serving.errors import InvalidRequest

TEXTS = ["alpha beta", "gamma", "alpha"]


@asynccontextmanager
async def open_client(fake: FakeEncoder) -> AsyncIterator[EncoderClient]:
    """Call a fake encoder."""
    async with serve(fake) as port, open_channel(f"dns:///127.0.0.1:{port}", encoder_client.SERVICE) as channel:
        yield EncoderClient(channel)


def soon() -> Deadline:
    """Return a deadline that is not reached."""
    return Deadline.after(20)


async def test_several_queries_are_one_call_with_one_vector_each() -> None:
    """Queries are encoded together, as queries and without a cut, and the vectors come in their order."""
    fake = FakeEncoder()
    async with open_client(fake) as encoder:
        encoded = await encoder.encode_queries(TEXTS, deadline=soon())
    (asked,) = fake.requests
    assert (list(asked.texts), asked.input_type) == (TEXTS, pb.INPUT_TYPE_QUERY)
    assert asked.overlong in {pb.OVERLONG_UNSPECIFIED, pb.OVERLONG_REJECT}
    assert np.array_equal(encoded.vectors, [word_vector(text) for text in TEXTS])


@pytest.mark.parametrize(("priority", "told"), [(Priority.INTERACTIVE, 1), (Priority.BULK, 2)])
async def test_priorities_are_handed_on(priority: Priority, told: int) -> None:
    """Queries and passages come with the priority that was given."""
    fake = FakeEncoder()
    async with open_client(fake) as encoder:
        await encoder.encode_queries(TEXTS, priority=priority, deadline=soon())
        await encoder.encode_passages(TEXTS, truncate=False, priority=priority, deadline=soon())
    assert [request.priority for request in fake.requests] == [told, told]


async def test_queries_are_interactive_and_passages_bulk_unless_said_otherwise() -> None:
    """Somebody waits for a query; passages are to be stored."""
    fake = FakeEncoder()
    async with open_client(fake) as encoder:
        await encoder.encode_queries(TEXTS, deadline=soon())
        await encoder.encode_passages(TEXTS, truncate=False, deadline=soon())
    assert [request.priority for request in fake.requests] == [pb.PRIORITY_INTERACTIVE, pb.PRIORITY_BULK]


async def test_a_refused_query_is_named_as_the_encoder_named_it() -> None:
    """Which of the caller's fields `texts[1]` was, only the one who put the list together knows."""
    fake = FakeEncoder()
    fake.always = status(grpc.StatusCode.INVALID_ARGUMENT, "TEXT_TOO_LONG", field="texts[1]", message="600 tokens")
    async with open_client(fake) as encoder:
        with pytest.raises(InvalidRequest) as caught:
            await encoder.encode_queries(TEXTS, deadline=soon())
    assert (caught.value.reason, caught.value.field) == ("TEXT_TOO_LONG", "texts[1]")


async def test_a_split_says_how_large_passages_are_only_where_that_was_said() -> None:
    """By default the encoder's own limit holds, and sentences fill passages."""
    fake = FakeEncoder()
    async with open_client(fake) as encoder:
        whole = await encoder.split(["a b. c d."], deadline=soon())
        sentences = await encoder.split(["a b. c d."], per_sentence=True, deadline=soon())
        small = await encoder.split(["a b. c d."], max_tokens=3, deadline=soon())
    assert (whole, sentences, small) == ([["a b. c d."]], [["a b.", "c d."]], [["a b. c", "d."]])
    assert [request.HasField("max_tokens") for request in fake.requests] == [False, False, True]
