"""The servers that an evaluation talks to: running ones, or ones that are started for it and stopped after it."""

import asyncio
import signal
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TextIO, TypeVar

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from cli.addresses import free_ports
from cli.calls import let_in_channel, run
from cli.console import EXIT_NOT_SO, fail, note, notes
from cli.home import DEFAULT_HOME, Device, Home, Profile, require_bundles
from cli.processes import ServerEnded, SystemConfig, running_system

if TYPE_CHECKING:
    from evaluation.system import System

T = TypeVar("T")
Work = Callable[["System"], Awaitable[T]]

DEFAULT_RERANKER = "127.0.0.1:50053"
STORE = "store"
"""Directory in the outputs where documents are kept between phases that start the servers themselves."""

LOG = "servers.log"
"""What started servers say, in the outputs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Servers:
    """Which servers to use."""

    gateway: str
    """Address of a running gateway; empty starts everything."""
    reranker: str
    outputs: Path
    profile: Profile = "demo"
    home: Path = DEFAULT_HOME
    device: Device = "auto"
    encoder: str = ""
    """Address of the encoder behind a running gateway; empty where no vectors are needed."""
    synonyms: Path | None = None
    """Directory of synonyms for a gateway that is started."""


def with_system(servers: Servers, work: Work[T]) -> T:
    """Run some work with open channels to the servers; Ctrl-C and SIGTERM end it, started servers first.

    Raises:
        typer.Exit: It was interrupted, a server ended, or a call failed; one line has said so.
    """
    return run(_interruptible(servers, _with_encoder(work, servers.encoder)), servers.gateway)


def progress(phase: str) -> Callable[[int, int], None]:
    """Return what shows the progress of a phase: a bar on a terminal, nothing elsewhere."""
    console = notes()
    bar = Progress(
        TextColumn(phase),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )
    task = bar.add_task("")

    def told(done: int, count: int) -> None:
        if done == 1:
            bar.start()
        bar.update(task, completed=done, total=count)
        if done == count:
            bar.stop()

    return told


async def _interruptible(servers: Servers, work: Work[T]) -> T:
    task = asyncio.ensure_future(_open(servers, work))
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    try:
        return await task
    except asyncio.CancelledError:
        fail(EXIT_NOT_SO, "interrupted")
    except ServerEnded as error:
        for line in error.tail:
            note(f"  | {line}", "dim")
        fail(EXIT_NOT_SO, error.message)


async def _open(servers: Servers, work: Work[T]) -> T:
    from evaluation.system import open_system  # noqa: PLC0415 - see cli.evaluate

    if servers.gateway:
        async with open_system(servers.gateway, servers.reranker, let_in_channel) as system:
            return await work(system)
    return await _started(servers, work)


async def _started(servers: Servers, work: Work[T]) -> T:
    (servers.outputs / STORE).mkdir(parents=True, exist_ok=True)
    # In a thread: making models must not keep Ctrl-C waiting.
    await asyncio.to_thread(require_bundles, Home(path=servers.home), servers.profile, note)
    note(f"starting gateway, encoder and reranker; their log is {servers.outputs / LOG}")
    with (servers.outputs / LOG).open("w", encoding="utf-8") as file:
        return await _working(servers, work, file)


async def _working(servers: Servers, work: Work[T], log: TextIO) -> T:
    """Start the servers, and give up where one ends before the work does."""
    from evaluation.system import open_system  # noqa: PLC0415 - see cli.evaluate

    def on_line(name: str, line: str) -> None:
        log.write(f"{name} | {line}\n")
        log.flush()

    async with (
        running_system(_config(servers), on_line) as running,
        open_system(running.gateway, running.config.address("reranker"), let_in_channel) as system,
    ):
        ending = asyncio.ensure_future(running.ended())
        working = asyncio.ensure_future(_with_encoder(work, running.config.address("encoder"))(system))
        try:
            await asyncio.wait({ending, working}, return_when=asyncio.FIRST_COMPLETED)
            if not working.done():
                await ending
            return await working
        finally:
            for task in (ending, working):
                task.cancel()
            await asyncio.gather(ending, working, return_exceptions=True)


def _with_encoder(work: Work[T], address: str) -> Work[T]:
    """Give some work an encoder as well; none where there is no address."""

    async def wrapped(system: "System") -> T:
        from evaluation.first_stage.exact import with_encoder  # noqa: PLC0415 - see cli.evaluate

        async with with_encoder(system, address, let_in_channel) as whole:
            return await work(whole)

    return wrapped


def _config(servers: Servers) -> SystemConfig:
    home = Home(path=servers.home)
    gateway, encoder, reranker = free_ports(3)
    return SystemConfig(
        encoder_bundle=home.bundle(servers.profile, "encoder"),
        reranker_bundle=home.bundle(servers.profile, "reranker"),
        store=servers.outputs / STORE,
        synonyms=servers.synonyms,
        gateway_port=gateway,
        encoder_port=encoder,
        reranker_port=reranker,
        device=servers.device,
    )
