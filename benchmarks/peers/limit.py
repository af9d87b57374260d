"""The bare limit, asked for figures from here: the work itself is done in a process of its own, `limit_worker`."""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import psutil

MIB = 2**20


class LimitProcess:
    """The worker of one bundle.

    Args:
        bundle: Whose graph is run.
        corpus: What texts are made of.
    """

    def __init__(self, bundle: Path, corpus: Path) -> None:
        self._arguments = ("--bundle", str(bundle), "--corpus", str(corpus))
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> float:
        """Start and wait until the session is loaded; return the seconds that took."""
        begun = asyncio.get_running_loop().time()
        self._process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "benchmarks.peers.limit_worker", *self._arguments),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
        await self._line()
        return asyncio.get_running_loop().time() - begun

    async def measure(self, what: str, *, workload: str, seed: int, requests: int, seconds: float) -> dict[str, Any]:
        """Have `throughput` or `latency` measured."""
        assert self._process is not None  # noqa: S101 - the harness's own order
        assert self._process.stdin is not None  # noqa: S101 - asked for above
        command = {"measure": what, "workload": workload, "seed": seed, "requests": requests, "seconds": seconds}
        self._process.stdin.write(json.dumps(command).encode() + b"\n")
        return await self._line()

    def resident_mib(self) -> float:
        """Return its memory."""
        return float(psutil.Process(self._process.pid).memory_info().rss) / MIB if self._process else 0.0

    def cpu_s(self) -> float:
        """Return the processor time used so far."""
        times = psutil.Process(self._process.pid).cpu_times() if self._process else None
        return float(times.user + times.system) if times else 0.0

    async def stop(self) -> None:
        """End it."""
        if self._process is not None and self._process.returncode is None:
            self._process.kill()
            await self._process.wait()

    async def _line(self) -> dict[str, Any]:
        assert self._process is not None  # noqa: S101 - the harness's own order
        assert self._process.stdout is not None  # noqa: S101 - asked for above
        line = await self._process.stdout.readline()
        if not line:
            raise RuntimeError("the bare loop ended")
        answer: dict[str, Any] = json.loads(line)
        return answer
