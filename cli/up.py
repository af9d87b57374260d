"""`twostage up`: encoder, reranker and gateway on this machine, until Ctrl-C."""

import asyncio
import os
import signal
from typing import Annotated, Literal

import typer
from rich.text import Text

from cli import options
from cli.addresses import require_free
from cli.calls import run
from cli.console import EXIT_NOT_SO, answers, fail, note, notes
from cli.home import Home, require_bundles
from cli.processes import OnLine, ServerEnded, System, SystemConfig

STYLES = {"gateway": "cyan", "encoder": "green", "reranker": "magenta"}
NAME_WIDTH = max(map(len, STYLES))
LogFormat = Literal["text", "json"]


def up(
    profile: options.ProfileName = "demo",
    home: options.HomeDirectory = options.DEFAULT_HOME,
    host: options.Host = "127.0.0.1",
    gateway_port: options.GatewayPort = 50_051,
    encoder_port: options.EncoderPort = 50_052,
    reranker_port: options.RerankerPort = 50_053,
    device: Annotated[options.Device, typer.Option(help="Where models compute: auto, cpu or cuda.")] = "auto",
    log_format: Annotated[LogFormat, typer.Option(help="text, or json: the servers' own lines, unprefixed.")] = "text",
) -> None:
    """Start encoder, reranker and gateway; Ctrl-C stops them in order, a second one at once.

    Makes the demo models where they are missing. The servers also read `TWOSTAGE_ENCODER_*`, `TWOSTAGE_RERANKER_*` and
    `TWOSTAGE_GATEWAY_*` from the environment. Exits 0 after Ctrl-C or SIGTERM, 1 where a server ended on its own.
    """
    place = Home(path=home)
    config = SystemConfig(
        encoder_bundle=place.bundle(profile, "encoder"),
        reranker_bundle=place.bundle(profile, "reranker"),
        store=place.store,
        host=host,
        gateway_port=gateway_port,
        encoder_port=encoder_port,
        reranker_port=reranker_port,
        device=device,
        log_format=log_format,
    )
    run(_up(place, profile, config))


async def _up(home: Home, profile: Literal["demo", "full"], config: SystemConfig) -> None:
    system = System(config, _printer(config.log_format))
    serving = asyncio.create_task(_serve(system, home, profile))
    stopping = False

    def on_signal() -> None:
        nonlocal stopping
        if stopping:
            system.kill()
            os._exit(128 + signal.SIGINT)
        stopping = True
        note("stopping; once more to end all at once")
        serving.cancel()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, on_signal)
    await asyncio.wait([serving])
    if not serving.cancelled():
        _report(serving.exception())


async def _serve(system: System, home: Home, profile: Literal["demo", "full"]) -> None:
    require_free(system.config.host, system.config.ports)
    # In a thread: making models must not keep Ctrl-C waiting.
    await asyncio.to_thread(require_bundles, home, profile, note)
    async with system.running():
        answers().print(_ready(system), soft_wrap=True)
        await system.ended()


def _report(error: BaseException | None) -> None:
    if isinstance(error, ServerEnded):
        for line in error.tail:
            note(f"  | {line}", "dim")
        fail(EXIT_NOT_SO, f"{error.message}; the others were stopped")
    if error is not None:
        raise error


def _ready(system: System) -> Text:
    config = system.config
    parts: list[tuple[str, str] | str] = [("ready", "bold green"), "  "]
    for name, style in STYLES.items():
        parts += [(name, style), f" {config.address(name)}  "]
    where = "" if system.gateway == options.DEFAULT_GATEWAY else f" --gateway {system.gateway}"
    parts.append((f'try: twostage search "..." --collection NAME{where}', "bold"))
    return Text.assemble(*parts)


def _printer(log_format: LogFormat) -> OnLine:
    console = notes()

    def with_name(name: str, line: str) -> None:
        console.print(Text.assemble((f"{name:<{NAME_WIDTH}} | ", STYLES[name]), line), soft_wrap=True)

    def plain(_name: str, line: str) -> None:
        console.print(Text(line), soft_wrap=True)

    return plain if log_format == "json" else with_name
