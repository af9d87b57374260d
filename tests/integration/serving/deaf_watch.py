"""A client of health checks that leaves the server no room to write; HTTP/2 by hand, for no library is so rude."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress

# RFC 9113, 6: types and flags of frames, and the setting.
DATA, HEADERS, SETTINGS, PING = 0, 1, 4, 6
ACK = END_STREAM = 1
END_HEADERS = 4
NO_WINDOW = b"\x00\x04" + bytes(4)
WATCH = {
    ":method": "POST",
    ":scheme": "http",
    ":path": "/grpc.health.v1.Health/Watch",
    ":authority": "localhost",
    "te": "trailers",
    "content-type": "application/grpc",
}


@asynccontextmanager
async def deaf_watch(port: int) -> AsyncIterator[None]:
    """Watch the overall health with a window of no bytes; the server has begun to answer, and can write nothing."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + _frame(SETTINGS, 0, 0, NO_WINDOW))
    writer.write(_frame(HEADERS, END_HEADERS, 1, _encoded(WATCH)))
    writer.write(_frame(DATA, END_STREAM, 1, bytes(5)))  # an empty message, not compressed
    begun = asyncio.Event()
    living = asyncio.create_task(_live(reader, writer, begun))
    await begun.wait()
    try:
        yield
    finally:
        living.cancel()
        writer.close()


async def _live(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, begun: asyncio.Event) -> None:
    """Answer what a connection has to, so that the server does not take it for dead, until the server ends it."""
    with suppress(asyncio.IncompleteReadError, ConnectionError):
        while True:
            head = await reader.readexactly(9)
            payload = await reader.readexactly(int.from_bytes(head[:3], "big"))
            kind, flags = head[3], head[4]
            if kind == HEADERS:
                begun.set()
            elif kind in (SETTINGS, PING) and not flags & ACK:
                writer.write(_frame(kind, ACK, 0, payload if kind == PING else b""))


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return len(payload).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big") + payload


def _encoded(headers: Mapping[str, str]) -> bytes:
    """Write every header as a literal that is not indexed (RFC 7541, 6.2.2); all are shorter than 127 bytes."""
    return b"".join(
        b"\x00" + b"".join(bytes((len(text),)) + text.encode() for text in pair) for pair in headers.items()
    )
