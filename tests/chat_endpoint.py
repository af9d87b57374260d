"""An HTTP server that answers chat completions as it is told, for tests of the writer's hook."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any


class Endpoint:
    """Answers every request with one status and body, or not at all; keeps what it was sent."""

    def __init__(self, body: bytes = b"", status: int = 200, *, silent: bool = False) -> None:
        self.body, self.status, self.silent = body, status, silent
        self.heads: list[str] = []
        self.bodies: list[Any] = []
        self.calls: list[asyncio.Task[Any] | None] = []

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.calls.append(asyncio.current_task())
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        length = next(
            int(line.split(":")[1]) for line in head.splitlines() if line.lower().startswith("content-length")
        )
        self.heads.append(head)
        self.bodies.append(json.loads(await reader.readexactly(length)))
        if self.silent:
            await reader.read()
        else:
            writer.write(f"HTTP/1.1 {self.status} X\r\nContent-Length: {len(self.body)}\r\n\r\n".encode() + self.body)
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[str]:
        """Listen on a free port; yield the URL of the API."""
        server = await asyncio.start_server(self.handle, "127.0.0.1", 0)
        try:
            async with server:
                yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
        finally:
            await asyncio.gather(*filter(None, self.calls), return_exceptions=True)


def completion(*contents: Any) -> bytes:
    return json.dumps({"choices": [{"message": {"content": content}} for content in contents]}).encode()
