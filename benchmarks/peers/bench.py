"""Starts everything, checks the peers' results, and measures: every target under one load, then under the next."""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from benchmarks.peers import check, installs, weights
from benchmarks.peers.cells import LIMIT, OURS, Cell, Load, Notebook, Started
from benchmarks.peers.http_client import HttpFailure
from benchmarks.peers.http_peers import PEERS, HttpPeer
from benchmarks.peers.installs import NotInstalled
from benchmarks.peers.limit import LimitProcess
from benchmarks.peers.measure import Measure
from benchmarks.peers.ours import Ours
from benchmarks.peers.process import NotServing
from benchmarks.peers.rows import Rower
from benchmarks.peers.target import FloatArray, Target
from benchmarks.peers.turn import Turn
from benchmarks.peers.workload import WORKLOADS, read_words
from serving.bundle import Bundle, Kind

CAPACITY_LOAD = "c32"
"""The load whose throughput of ours is what open loops are a share of."""
CELL_MARGIN_S = 20.0
QUIET = 0.06
"""Share of the processors' time that others may use while a cell is measured."""
TRIES = 2

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What to measure."""

    bundles: Mapping[Kind, Path]
    corpus: Path
    work: Path
    """Where environments, weights and logs are kept."""
    targets: Sequence[str]
    workloads: Sequence[str]
    loads: Sequence[Load]
    rounds: int
    seconds: float
    forms: Mapping[str, Mapping[str, str]]
    """Our servers: name to settings."""


class Bench:
    """Measures a plan.

    Args:
        plan: What to measure.
        notebook: Where cells are written down.
        turn: When.
        say: Told of every step in one line.
    """

    def __init__(self, plan: Plan, notebook: Notebook, turn: Turn, say: Say) -> None:
        self._plan = plan
        self._notebook = notebook
        self._turn = turn
        self._say = say
        self._words = read_words(plan.corpus)
        self._rates: dict[str, float] = {}

    async def run(self) -> None:
        """Measure everything, the encoder's workloads first."""
        kinds: tuple[Kind, ...] = ("encoder", "reranker")
        try:
            for kind in kinds:
                if workloads := [name for name in self._plan.workloads if WORKLOADS[name].kind == kind]:
                    await self._kind(kind, workloads)
        finally:
            self._turn.give()

    async def _kind(self, kind: Kind, workloads: Sequence[str]) -> None:
        rower = Rower(Bundle(self._plan.bundles[kind]))
        measure = Measure(self._words, self._plan.seconds, rower.token_counts)
        async with self._targets(kind) as (targets, limit):
            for turn in range(self._plan.rounds):
                for name in workloads:
                    for load in self._plan.loads:
                        await self._row(measure, targets, limit, name, load, turn)

    async def _row(
        self, measure: Measure, targets: Sequence[Target], limit: LimitProcess | None, name: str, load: Load, turn: int
    ) -> None:
        """Measure all targets under one load, one after the other, the limit right after our own server."""
        for place, target in enumerate(targets):
            rate = None if load.share is None else load.share * self._capacity(name)
            target.resume()
            await self._quiet(partial(measure.server, target, name, load, turn, rate))
            target.pause()
            if place == 0 and limit is not None and load.share is None:
                await self._quiet(partial(measure.limit, limit, name, load, turn))

    async def _quiet(self, measure: Callable[[], Awaitable[Cell]]) -> None:
        """Measure, and again where others kept the machine busy; the quietest is written down."""
        cells: list[Cell] = []
        while len(cells) < TRIES and min((cell.others for cell in cells), default=1.0) > QUIET:
            await self._turn.take(self._plan.seconds + CELL_MARGIN_S)
            cells.append(await measure())
        self._note(min(cells, key=lambda cell: cell.others))

    def _capacity(self, workload: str) -> float:
        """Return what our server answers per second when it always has enough to do; measured once and then kept."""
        if workload not in self._rates:
            cells = self._notebook.of(OURS, workload, CAPACITY_LOAD)
            found = [one.figures.calls_per_s for one in cells if one.figures.calls_per_s]
            if not found:
                raise SystemExit(f"open loops are a share of {OURS} under {CAPACITY_LOAD}: measure that first")
            self._rates[workload] = float(np.median(found))
        return self._rates[workload]

    def _note(self, cell: Cell) -> None:
        self._notebook.add(cell)
        figures = cell.figures
        shown = {name: value for name, value in figures.model_dump().items() if value}
        text = " ".join(f"{name} {value:.4g}" for name, value in shown.items())
        busy = f" (others {cell.others:.0%})" if cell.others > QUIET else ""
        self._say(f"{cell.workload} {cell.load} round {cell.round} {cell.target}: {text}{busy}")

    @asynccontextmanager
    async def _targets(self, kind: Kind) -> AsyncIterator[tuple[list[Target], LimitProcess | None]]:
        """Start all, drop those that do not serve or compute something else, and stop all on leaving."""
        requests = check.samples(kind, self._words)
        async with AsyncExitStack() as stack:
            targets: list[Target] = []
            expected: list[FloatArray] = []
            for name in (OURS, *(one for one in self._plan.targets if one not in (OURS, LIMIT))):
                await self._turn.take(CELL_MARGIN_S)
                try:
                    target = self._make(name, kind)
                    stack.push_async_callback(target.stop)
                    seconds = await target.start()
                    expected = expected or [await target.answer(request) for request in requests]
                    agreement = await check.agreement(target, requests, expected)
                except (NotInstalled, NotServing, check.Disagrees, HttpFailure, OSError) as error:
                    self._drop(name, kind, error)
                    continue
                self._started(target, kind, seconds, agreement)
                target.pause()
                targets.append(target)
            limit = await self._limit(kind, stack) if LIMIT in self._plan.targets else None
            yield targets, limit

    async def _limit(self, kind: Kind, stack: AsyncExitStack) -> LimitProcess:
        limit = LimitProcess(self._plan.bundles[kind], self._plan.corpus)
        stack.push_async_callback(limit.stop)
        seconds = await limit.start()
        self._notebook.add(
            Started(target=LIMIT, kind=kind, start_s=seconds, resident_mib=limit.resident_mib(), agreement="", fit=True)
        )
        return limit

    def _make(self, name: str, kind: Kind) -> Target:
        log = self._plan.work / "logs" / f"{name.replace(' ', '_')}-{kind}.log"
        if name not in PEERS:
            return Ours(name, kind, self._plan.bundles[kind], self._plan.forms[name], log)
        programs = installs.prepare(PEERS[name].environment, self._plan.work)
        model = weights.prepare(self._plan.work / "weights")[kind]
        return HttpPeer(name, kind, programs, model, log)

    def _started(self, target: Target, kind: Kind, seconds: float, agreement: str) -> None:
        peer = PEERS.get(target.name)
        found = installs.versions(peer.environment, self._plan.work) if peer else {}
        record = Started(
            target=target.name,
            kind=kind,
            start_s=seconds,
            resident_mib=target.resident_mib(),
            agreement=agreement,
            versions=found,
            fit=True,
        )
        self._notebook.add(record)
        self._say(f"{kind} {target.name}: started in {seconds:.1f} s, {record.resident_mib:.0f} MiB, {agreement}")

    def _drop(self, name: str, kind: Kind, error: Exception) -> None:
        text = f"{type(error).__name__}: {error}".replace(str(Path.cwd()), ".")
        self._notebook.add(Started(target=name, kind=kind, agreement=text[:600], fit=False))
        self._say(f"{kind} {name}: not measured: {text}")
        if name == OURS:
            raise SystemExit("nothing to compare with")
