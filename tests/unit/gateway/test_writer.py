"""The writer's hook: a real HTTP server that answers as told, and what is made of that."""

from collections.abc import Sequence
from typing import Any

import pytest
from chat_endpoint import Endpoint, completion

from cli.addresses import free_ports
from gateway.writer import MAX_ANSWER_BYTES, MAX_PASSAGE_BYTES, ChatWriter
from serving.deadline import Deadline
from serving.errors import DeadlineSpent, InferenceFailed, Overloaded, ServiceError, Unavailable


async def write(endpoint: Endpoint, seconds: float = 10, **options: Any) -> Sequence[str]:
    async with endpoint.serving() as url, ChatWriter(url, "m", **options) as writer:
        return await writer.write("why?", deadline=Deadline.after(seconds))


async def test_passages_come_back_and_the_question_went_out():
    """One request asks for so many passages about the question; they come back without blanks around them."""
    endpoint = Endpoint(completion(" first ", "second"))
    assert await write(endpoint, passage_count=2, max_tokens=50, key=lambda: "secret") == ["first", "second"]
    assert endpoint.heads[0].startswith("POST /v1/chat/completions ")
    assert "authorization: bearer secret" in endpoint.heads[0].lower()
    sent = endpoint.bodies[0]
    assert (sent["model"], sent["n"], sent["max_tokens"]) == ("m", 2, 50)
    assert sent["messages"][-1] == {"role": "user", "content": "why?"}


async def test_no_more_than_was_asked_for():
    """An endpoint that writes more, or long ones, costs no more: the rest is dropped, by whole characters."""
    passages = await write(Endpoint(completion("é" * MAX_PASSAGE_BYTES, "b", "c")), passage_count=2)
    assert passages == ["é" * (MAX_PASSAGE_BYTES // 2), "b"]


async def test_what_cannot_be_seen_is_no_passage():
    """Surrogates alone, and characters without a glyph, are left out, and a visible passage beside them stays."""
    endpoint = Endpoint(completion("\ud800", "\u200b\ufeff \u2060", "seen\udfff", "\x00"))
    assert await write(endpoint, passage_count=4) == ["seen"]


@pytest.mark.parametrize(
    ("endpoint", "kind"),
    [
        (Endpoint(status=429), Overloaded),
        (Endpoint(status=500), Unavailable),
        (Endpoint(status=401), InferenceFailed),
        (Endpoint(status=302), InferenceFailed),
        (Endpoint(b"no json"), InferenceFailed),
        (Endpoint(b"[]"), InferenceFailed),
        (Endpoint(b'{"choices": [1]}'), InferenceFailed),
        (Endpoint(completion("  ", None)), InferenceFailed),
        (Endpoint(completion("\ud800")), InferenceFailed),
        (Endpoint(completion("\u200b\u200d")), InferenceFailed),
        (Endpoint(b"[" * 100_000), InferenceFailed),
        (Endpoint(b" " * (MAX_ANSWER_BYTES + 1)), InferenceFailed),
    ],
)
async def test_what_goes_wrong_is_typed(endpoint, kind):
    """Every answer that is no passage is one of our errors, and none repeats the question."""
    with pytest.raises(ServiceError) as raised:
        await write(endpoint)
    assert type(raised.value) is kind
    assert "why?" not in str(raised.value)


async def test_a_silent_endpoint_costs_no_more_than_the_deadline():
    """An endpoint that never answers ends with the deadline."""
    with pytest.raises(DeadlineSpent):
        await write(Endpoint(silent=True), seconds=0.05)


async def test_nobody_there():
    """An endpoint that cannot be reached is unavailable."""
    (port,) = free_ports(1)
    async with ChatWriter(f"http://127.0.0.1:{port}/v1", "m") as writer:
        with pytest.raises(Unavailable):
            await writer.write("why?", deadline=Deadline.after(10))


@pytest.mark.parametrize(
    "url",
    [
        "http://[::1",
        "http://h\x00st/v1",
        "http://999.1.1.1/v1",
        "http://xn--/v1",
        "http://\N{SNOWMAN}/v1",
        "http://a..b",
    ],
)
async def test_an_address_that_is_none_is_unavailable(url: str):
    """A URL that cannot be called lets the writer open, and fails every call with one of our errors."""
    async with ChatWriter(url, "m") as writer:
        with pytest.raises(Unavailable):
            await writer.write("why?", deadline=Deadline.after(10))


async def test_a_key_that_fits_no_header_is_unavailable():
    """A key beyond ASCII cannot be sent, which is one of our errors and holds nothing of the key."""
    endpoint = Endpoint(completion("a"))
    with pytest.raises(Unavailable) as raised:
        await write(endpoint, key=lambda: "s\N{LATIN SMALL LETTER E WITH ACUTE}cret")
    assert "cret" not in str(raised.value)
    assert raised.value.__cause__ is None
    assert endpoint.bodies == []
