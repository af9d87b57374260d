"""`twostage preflight`: before a deployment, on the machine that will serve, would these servers start and serve?

`twostage doctor` looks at a person's own machine, and whether `twostage up` would work there. Preflight reads the
environment that the servers will be started with, and does what they do at their start, the port excepted: it loads
each model on its device, meets its golden outputs, and runs the shapes that it will serve. It leaves nothing behind.
"""

import json
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated

import typer
from rich.text import Text

from cli import checks, options, preflight_checks
from cli.calls import run
from cli.console import EXIT_MISCONFIGURED, EXIT_NOT_SO, answers, print_json
from cli.findings import Finding, Sections, bad_of, document, print_findings
from encoder_server.settings import EncoderSettings
from gateway.settings import GatewaySettings
from reranker_server.settings import RerankerSettings
from serving.settings import ModelServerSettings, ServerSettings, load


class Server(StrEnum):
    """A server that can be checked."""

    ENCODER = "encoder"
    RERANKER = "reranker"
    GATEWAY = "gateway"


SETTINGS: dict[Server, type[ServerSettings]] = {
    Server.ENCODER: EncoderSettings,
    Server.RERANKER: RerankerSettings,
    Server.GATEWAY: GatewaySettings,
}
SAID_LINES = 3
"""Last lines of what a process wrote that are shown when it was taken down."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """What came of loading a model in a process of its own."""

    findings: Sequence[Finding]
    peak_bytes: int | None


def preflight(
    servers: Annotated[
        list[Server] | None,
        typer.Argument(
            metavar="[encoder|reranker|gateway]...", help="What this machine will run; default is all three."
        ),
    ] = None,
    as_json: options.AsJson = False,
) -> None:
    """Check, with the servers' own TWOSTAGE_ environment, that they would start on this machine; changes nothing.

    Exits 1 where one would not, and 2 where its settings are wrong.
    """
    settings = _settings(list(dict.fromkeys(servers or SETTINGS)))
    tried = {name: _try(name) for name, one in settings.items() if isinstance(one, ModelServerSettings)}
    peaks = {name: one.peak_bytes for name, one in tried.items() if one.peak_bytes is not None}
    sections: dict[str, Sequence[Finding]] = {
        "installed": list(checks.serving(_packages(settings))),
        **{name: one.findings for name, one in tried.items()},
        "machine": [
            *preflight_checks.processors(settings),
            *preflight_checks.memory(peaks, settings),
            *preflight_checks.disk(settings),
            *preflight_checks.limits(),
        ],
        "network": [*preflight_checks.ports(settings), *preflight_checks.secrets(settings)],
    }
    gateway = settings.get("gateway")
    if isinstance(gateway, GatewaySettings):
        sections["gateway"] = [run(preflight_checks.store(gateway))]
    _show(sections, list(settings), as_json=as_json)
    raise typer.Exit(EXIT_NOT_SO if bad_of(sections) else 0)


def _packages(settings: Mapping[str, ServerSettings]) -> Sequence[str]:
    """Return the packages that these servers need; an image of one server has no others."""
    models = any(isinstance(one, ModelServerSettings) for one in settings.values())
    embedded = any(isinstance(one, GatewaySettings) and one.store == "edge" for one in settings.values())
    return [
        *(("onnxruntime", "tokenizers") if models else ()),
        "grpcio",
        *(("qdrant-edge-py",) if embedded else ()),
    ]


def _settings(servers: Sequence[Server]) -> dict[str, ServerSettings]:
    """Read the settings of every server; where any are wrong, all have been named on standard error."""
    settings: dict[str, ServerSettings] = {}
    for name in servers:
        try:
            settings[name] = load(SETTINGS[name])
        except SystemExit:
            continue  # its problems are written; those of the others are wanted, too
    if len(settings) < len(servers):
        raise typer.Exit(EXIT_MISCONFIGURED)
    return settings


def _try(name: str) -> Tried:
    """Load a model in a process of its own, which writes no bytecode either."""
    command = [sys.executable, "-B", "-m", "cli.preflight_model", name]
    done = subprocess.run(command, capture_output=True, check=False)  # noqa: S603 - our own module
    if done.returncode:
        return Tried(findings=[_taken_down(done)], peak_bytes=None)
    document = json.loads(done.stdout)
    return Tried(findings=[Finding(**one) for one in document["findings"]], peak_bytes=document["peak_bytes"])


def _taken_down(done: "subprocess.CompletedProcess[bytes]") -> Finding:
    said = " / ".join(done.stderr.decode(errors="replace").strip().splitlines()[-SAID_LINES:])
    if done.returncode > 0:
        return Finding(name="model", value=f"loading ended with status {done.returncode}: {said}", state="bad")
    killer = signal.Signals(-done.returncode).name
    todo = "there was not enough memory" if killer == "SIGKILL" else "the driver or onnxruntime failed under it"
    return Finding(name="model", value=f"loading was ended by {killer} {said}".strip(), state="bad", todo=todo)


def _show(sections: Sections, servers: Sequence[str], *, as_json: bool) -> None:
    if as_json:
        print_json(document(sections))
        return
    print_findings(answers(), sections)
    bad = [finding.name for finding in bad_of(sections)]
    words = f"would not start or not serve: {', '.join(bad)}" if bad else f"{', '.join(servers)} can start here"
    answers().print(Text(words, "bold red" if bad else "bold green"))
