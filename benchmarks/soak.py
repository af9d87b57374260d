"""Whether memory stays where it is: under the largest calls, long traffic of all lengths, and thousands of ended calls.

Starts an encoder and a reranker on the demo bundles. Largest: one call to each with as many texts as it takes, all of
them cut at the model's limit. Traffic: texts of 1 to some 500 words, alone, in batches, in streams and as candidates,
from 4 callers per server; memory is read once a second. Cancels: calls that are ended by their caller or by their
deadline before they are sent, while they wait, while they are computed and while a stream is idle, with others keeping
the device busy; at the end the queue has to be empty and the answers the same. Memory is what the processes have
written themselves, without mapped files; that of the largest calls is the kernel's peak, with them.

    .venv/bin/python benchmarks/soak.py [--no-largest] [--minutes 20] [--cancels 20000] [--output .twostage/soak.json]
"""

import argparse
import asyncio
import itertools
import json
import os
import platform
import re
import sys
import time
import urllib.request
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import psutil
from rich.console import Console
from soak_calls import ENDED_CALLS, PATIENCE_S, WAYS, Clients, EndedCall, callers, end_early

from cli.addresses import free_ports
from cli.health import until_serving
from models import demo
from serving.cpu import usable_cpus

ROOT = Path(__file__).parents[1]
MODULES = {"encoder": "encoder_server", "reranker": "reranker_server"}
MIB = 2**20
CALLERS = 4
CANCELLERS = 48
TURN = 4
"""Calls that each of them ends before the servers are asked how many they saw."""
BUSY_CALLERS = 2
WARM_UP_SHARE, WARM_UP_MOST_S = 0.25, 300.0
"""Of the traffic, this much and no more is warm-up: the first batch of every shape."""
WINDOW_S = 60.0
TEXTS = 256
"""Of the largest call: the most that either server takes."""
STEPS = 20
"""Readings of memory over all cancelled calls."""
GAUGE = re.compile(r"^\w+_waiting_(?:rows|tokens)(?:\{.*\})? (\S+)$", re.MULTILINE)
PEAK = re.compile(r"^VmHWM:\s+(\d+) kB$", re.MULTILINE)
CALLS = re.compile(r'^\w+_calls_total\{code="(\w+)",method="\w+"\} (\S+)$', re.MULTILINE)

console = Console(width=110)


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """A server in a process of its own."""

    process: psutil.Process
    address: str
    metrics_port: int

    @property
    def memory_mib(self) -> float:
        """Resident memory less that of mapped files, which the system takes away and gives back as it likes."""
        info = self.process.memory_info()
        return float(info.rss - info.shared) / MIB

    @property
    def peak_mib(self) -> float:
        """The most resident memory so far, mapped files included, as the kernel counts it."""
        (found,) = PEAK.findall(Path(f"/proc/{self.process.pid}/status").read_text(encoding="ascii"))
        return int(found) / 1024

    async def page(self) -> str:
        """Read the Prometheus page."""
        return await asyncio.to_thread(_read, f"http://127.0.0.1:{self.metrics_port}/metrics")

    async def waiting(self) -> float:
        """Read the gauges of the queue, rows and tokens together."""
        return sum(map(float, GAUGE.findall(await self.page())))

    async def idle(self) -> None:
        """Wait until nothing is in the queue, or patience ends."""
        with suppress(TimeoutError):
            async with asyncio.timeout(PATIENCE_S):
                while await self.waiting():  # noqa: ASYNC110 - a gauge of another process
                    await asyncio.sleep(0.1)


@dataclass
class Memory:
    """Memory of the servers over time."""

    servers: dict[str, Server]
    seconds: list[float] = field(default_factory=list)
    mib: dict[str, list[float]] = field(default_factory=dict)

    async def watch(self) -> None:
        """Read once a second until cancelled."""
        begun = time.monotonic()
        while True:
            self.seconds.append(time.monotonic() - begun)
            for name, server in self.servers.items():
                self.mib.setdefault(name, []).append(server.memory_mib)
            await asyncio.sleep(1)

    def summary(self, name: str) -> dict[str, float]:
        """Compare what was resident after the warm-up with the end; the slope is that of least squares after it."""
        seconds, mib = np.array(self.seconds), np.array(self.mib[name])
        warm_up = min(WARM_UP_SHARE * seconds[-1], WARM_UP_MOST_S)
        window = min(WINDOW_S, warm_up)
        after = seconds >= warm_up
        first = float(mib[after & (seconds < warm_up + window)].mean())
        last = float(mib[seconds >= seconds[-1] - window].mean())
        return {
            "start_mib": mib[0],
            "warm_up_s": warm_up,
            "after_warm_up_mib": first,
            "end_mib": last,
            "growth_percent": 100 * (last / first - 1),
            "slope_mib_per_hour": float(np.polyfit(seconds[after], mib[after], 1)[0]) * 3600,
            "max_mib": mib.max(),
        }


def _read(url: str) -> str:
    with urllib.request.urlopen(url) as page:  # noqa: S310 - our own server
        text: str = page.read().decode()
    return text


@asynccontextmanager
async def running(name: str, bundle: Path) -> AsyncIterator[Server]:
    """Run a server on a bundle."""
    port, metrics_port = free_ports(2)
    settings = {"bundle": bundle, "host": "127.0.0.1", "port": port, "metrics_port": metrics_port}
    own = {f"TWOSTAGE_{name}_{key}".upper(): str(value) for key, value in {**settings, "log_level": "WARNING"}.items()}
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "cli.tether", MODULES[name]), env={**os.environ, **own}, stdin=asyncio.subprocess.PIPE
    )
    try:
        await until_serving(f"127.0.0.1:{port}")
        yield Server(process=psutil.Process(process.pid), address=f"127.0.0.1:{port}", metrics_port=metrics_port)
    finally:
        process.terminate()
        await process.wait()


async def largest(servers: dict[str, Server], clients: Clients) -> dict[str, Any]:
    """Make the largest call to each server and see what it adds to the most that was resident."""
    before = {name: server.peak_mib for name, server in servers.items()}
    cut = await clients.largest(TEXTS)
    after = {name: server.peak_mib for name, server in servers.items()}
    return {"texts": TEXTS, "of_them_cut": cut, "peak_mib_before": before, "peak_mib_after": after}


async def traffic(servers: dict[str, Server], clients: Clients, minutes: float) -> dict[str, Any]:
    """Send traffic of all lengths and see what it does to memory."""
    memory, counts = Memory(servers), Counter[str]()
    calls = [clients.encode, clients.stream] * (CALLERS // 2) + [clients.rerank] * CALLERS
    async with callers(calls, counts):
        watching = asyncio.create_task(memory.watch())
        await asyncio.sleep(60 * minutes)
        watching.cancel()
    return {"minutes": minutes, "calls": dict(counts), "memory": {name: memory.summary(name) for name in servers}}


async def cancels(servers: dict[str, Server], clients: Clients, count: int) -> dict[str, Any]:
    """End calls in every phase and see what is left of them."""
    expected = await clients.known()
    before, codes, busy = _state(servers), Counter[str](), Counter[str]()
    steps = [{name: server.memory_mib for name, server in servers.items()}]
    async with callers([clients.encode] * BUSY_CALLERS + [clients.rerank] * BUSY_CALLERS, busy):
        turns = itertools.cycle(itertools.product(ENDED_CALLS, WAYS))
        for step in range(STEPS):
            while await _ended_count(servers) < count * (step + 1) // STEPS:
                await asyncio.gather(*(_end_some(clients, turns, codes) for _ in range(CANCELLERS)))
            steps.append({name: server.memory_mib for name, server in servers.items()})
    await asyncio.gather(*(server.idle() for server in servers.values()))
    return {
        "client_codes": dict(codes),
        "server_codes": {name: _codes(await server.page()) for name, server in servers.items()},
        "other_calls": dict(busy),
        "waiting_rows_and_tokens": {name: await server.waiting() for name, server in servers.items()},
        "largest_change_of_a_known_answer": float(np.abs(await clients.known() - expected).max()),
        "before": before,
        "after": _state(servers),
        "growth_mib": {name: steps[-1][name] - steps[0][name] for name in servers},
        "growth_in_second_half_mib": {name: steps[-1][name] - steps[STEPS // 2][name] for name in servers},
        "steps_mib": steps,
    }


async def _ended_count(servers: dict[str, Server]) -> int:
    """Count the calls that the servers saw ended; others never reached one, or were answered first."""
    codes = [_codes(await server.page()) for server in servers.values()]
    return sum(one.get(code, 0) for one in codes for code in ("CANCELLED", "DEADLINE_EXCEEDED"))


async def _end_some(clients: Clients, turns: Iterator[tuple[EndedCall, str]], codes: Counter[str]) -> None:
    for call, way in itertools.islice(turns, TURN):
        codes[await end_early(clients, call, way)] += 1


def _state(servers: dict[str, Server]) -> dict[str, dict[str, float]]:
    return {
        name: {
            "memory_mib": server.memory_mib,
            "threads": server.process.num_threads(),
            "descriptors": server.process.num_fds(),
        }
        for name, server in servers.items()
    }


def _codes(page: str) -> dict[str, int]:
    codes = Counter[str]()
    for code, count in CALLS.findall(page):
        codes[code] += int(float(count))
    return dict(codes)


async def measure(minutes: float, count: int, *, with_largest: bool) -> dict[str, Any]:
    """Start the servers and do what was asked for."""
    encoder, reranker = demo.prepare(ROOT / ".twostage/bundles/demo", lambda line: console.print(line, style="dim"))
    result: dict[str, Any] = {
        "machine": f"{usable_cpus()} usable CPUs, {platform.machine()}",
        "versions": {name: version(name) for name in ("grpcio", "onnxruntime", "tokenizers")},
    }
    async with AsyncExitStack() as stack:
        servers = {
            name: await stack.enter_async_context(running(name, bundle))
            for name, bundle in (("encoder", encoder), ("reranker", reranker))
        }
        options = [("grpc.enable_http_proxy", 0)]
        channels = [grpc.aio.insecure_channel(server.address, options=options) for server in servers.values()]
        clients = Clients(*[await stack.enter_async_context(channel) for channel in channels], seed=1)
        phases = {
            "largest": largest,
            "traffic": partial(traffic, minutes=minutes),
            "cancels": partial(cancels, count=count),
        }
        for (name, phase), wanted in zip(phases.items(), (with_largest, minutes, count), strict=True):
            if wanted:
                begun = time.monotonic()
                result[name] = {**await phase(servers, clients), "took_s": time.monotonic() - begun}
    return result


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--largest", action=argparse.BooleanOptionalAction, default=True, help="one call to each")
    parser.add_argument("--minutes", type=float, default=20.0, help="of traffic; 0 is none")
    parser.add_argument("--cancels", type=int, default=20_000, help="calls to end early; 0 is none")
    parser.add_argument("--output", type=Path, default=ROOT / ".twostage/soak.json")
    options = parser.parse_args()
    result = asyncio.run(measure(options.minutes, options.cancels, with_largest=options.largest))
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps(result, indent=1), encoding="utf-8")
    console.print_json(data=result)


if __name__ == "__main__":
    main()
