"""A channel that is renewed when the files with its certificates change."""

from pathlib import Path
from typing import Any

import pytest

from gateway.backends import RenewedChannel
from serving.watched import Watched


class FakeChannel:
    """Makes calls that answer with what the channel was opened with."""

    def __init__(self, pem: bytes) -> None:
        self.pem = pem
        self.closed = False

    def unary_unary(self, _method: str) -> Any:
        return self.answer

    def answer(self) -> bytes:
        if self.closed:
            raise ConnectionError
        return self.pem

    async def close(self, _grace: float | None = None) -> None:
        self.closed = True


async def test_the_old_channel_is_closed_only_once_the_new_one_is_open(tmp_path: Path) -> None:
    """Where opening fails nothing is closed, and one new channel takes over once the files can be used again."""
    file = tmp_path / "pem"
    file.write_bytes(b"good")
    opened: list[FakeChannel] = []

    def open_channel(pem: Any) -> Any:
        if pem == b"bad":
            raise ValueError(pem)
        opened.append(FakeChannel(pem))
        return opened[-1]

    watched: Any = Watched([file], lambda contents: contents[0], every_s=0)
    async with RenewedChannel(open_channel, watched) as channel:
        call = channel.unary_unary("/a")
        assert call() == b"good"
        file.write_bytes(b"bad")
        for _ in range(3):
            with pytest.raises(ValueError, match="bad"):
                call()
        assert not channel._closing
        file.write_bytes(b"better")
        assert call() == b"better"
    assert [(one.pem, one.closed) for one in opened] == [(b"good", True), (b"better", True)]
