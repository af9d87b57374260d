"""The least that an HTTP client can be: JSON posted over kept connections, so that no peer pays for a slow client."""

import asyncio
import json
from typing import Any

MAX_LINE_BYTES = 64 * 1024


class HttpFailure(Exception):
    """An answer whose status is not 200."""

    def __init__(self, status: int, body: str) -> None:
        super().__init__(f"{status}: {body[:200]}")
        self.status = status


class HttpClient:
    """Keeps as many connections to one server as there were calls at once."""

    def __init__(self, host: str, port: int) -> None:
        self._host = host
        self._port = port
        self._idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []

    async def post(self, path: str, body: Any) -> Any:
        """Post JSON and return the JSON of the answer.

        Raises:
            HttpFailure: The status is not 200.
            OSError: There is no connection.
        """
        return await self._exchange("POST", path, json.dumps(body).encode())

    async def get(self, path: str) -> str:
        """Return the text of a page."""
        return str(await self._exchange("GET", path, b"", plain=True))

    def close(self) -> None:
        """Close all connections that are not in use."""
        for _, writer in self._idle:
            writer.close()
        self._idle.clear()

    async def _exchange(self, method: str, path: str, payload: bytes, *, plain: bool = False) -> Any:
        reader, writer = await self._connection()
        try:
            writer.write(self._head(method, path, len(payload)) + payload)
            status, keep, answer = await _read(reader)
        except BaseException:
            writer.close()  # a call that was given up leaves an answer on the wire
            raise
        if keep:
            self._idle.append((reader, writer))
        else:
            writer.close()
        text = answer.decode()
        if status != 200:  # noqa: PLR2004 - OK
            raise HttpFailure(status, text)
        return text if plain else json.loads(text)

    async def _connection(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Take a kept connection that the server has not closed meanwhile, or open one."""
        while self._idle:
            reader, writer = self._idle.pop()
            if not reader.at_eof():
                return reader, writer
            writer.close()
        return await asyncio.open_connection(self._host, self._port, limit=MAX_LINE_BYTES)

    def _head(self, method: str, path: str, length: int) -> bytes:
        return (
            f"{method} {path} HTTP/1.1\r\nHost: {self._host}:{self._port}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {length}\r\n\r\n"
        ).encode()


async def _read(reader: asyncio.StreamReader) -> tuple[int, bool, bytes]:
    """Read one answer: status, whether the connection stays open, body."""
    lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    pairs = (line.partition(":") for line in lines[1:] if line)
    headers = {name.strip().lower(): value.strip().lower() for name, _, value in pairs}
    if headers.get("transfer-encoding") == "chunked":
        body = await _read_chunks(reader)
    elif "content-length" in headers:
        body = await reader.readexactly(int(headers["content-length"]))
    else:
        body = await reader.read()
    framed = "content-length" in headers or "transfer-encoding" in headers
    keep = framed and lines[0].startswith("HTTP/1.1") and headers.get("connection") != "close"
    return int(lines[0].split()[1]), keep, body


async def _read_chunks(reader: asyncio.StreamReader) -> bytes:
    body = b""
    while size := int((await reader.readline()).split(b";")[0], 16):
        body += await reader.readexactly(size)
        await reader.readline()
    await reader.readline()
    return body
