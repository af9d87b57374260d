"""A fake reranker as a process of its own that never answers, to be killed with calls in its hands."""

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from fakes import FakeReranker, serve

BEGUN = b"begun\n"


@asynccontextmanager
async def replica() -> AsyncIterator[tuple[asyncio.subprocess.Process, int]]:
    """Start one; gives the process, which writes a line for every call that has begun, and its port."""
    process = await asyncio.create_subprocess_exec(sys.executable, Path(__file__), stdout=asyncio.subprocess.PIPE)
    try:
        assert process.stdout is not None
        async with asyncio.timeout(60):
            port = int(await process.stdout.readline())
        yield process, port
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def _hang(_request: Any, _context: Any, _answer: Any) -> Any:
    sys.stdout.buffer.write(BEGUN)
    sys.stdout.buffer.flush()
    await asyncio.Event().wait()


async def _main() -> None:
    fake = FakeReranker()
    fake.always = _hang
    async with serve(fake) as port:
        print(port, flush=True)  # noqa: T201 - how the parent learns it
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(_main())
