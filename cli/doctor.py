"""`twostage doctor`: what is here, what it really is, and whether `twostage up` would work."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict

import typer
from rich.table import Table
from rich.text import Text

from cli import checks, options
from cli.calls import run
from cli.checks import Finding
from cli.console import EXIT_NOT_SO, answers, print_json
from cli.home import Home

MARKS = {"good": ("ok", "green"), "note": ("note", "yellow"), "bad": ("BAD", "bold red")}


def doctor(
    profile: options.ProfileName = "demo",
    home: options.HomeDirectory = options.DEFAULT_HOME,
    host: options.Host = "127.0.0.1",
    gateway_port: options.GatewayPort = 50_051,
    encoder_port: options.EncoderPort = 50_052,
    reranker_port: options.RerankerPort = 50_053,
    as_json: options.AsJson = False,
) -> None:
    """Check installation, machine, models and ports; exits 1 where `twostage up` would stop.

    A system that is already up is such a case: it holds the ports, and what it serves is shown.
    """
    place = Home(path=home)
    ports = {"gateway": gateway_port, "encoder": encoder_port, "reranker": reranker_port}
    sections = {
        "installed": list(checks.installation()),
        "machine": list(checks.machine(place, profile)),
        f"models of profile {profile}": [*checks.bundles(place, profile), checks.device(place, profile)],
        "ports": run(checks.ports(host, ports)),
    }
    bad = [finding for findings in sections.values() for finding in findings if finding.state == "bad"]
    if as_json:
        found = {name: [asdict(finding) for finding in findings] for name, findings in sections.items()}
        print_json({"ready": not bad, "sections": found})
    else:
        _print(sections, bad)
    raise typer.Exit(EXIT_NOT_SO if bad else 0)


def _print(sections: Mapping[str, Sequence[Finding]], bad: Sequence[Finding]) -> None:
    console = answers()
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for name, findings in sections.items():
        table.add_row("", Text(name, "bold not dim"), "")
        for finding in findings:
            mark, style = MARKS[finding.state]
            value = Text(finding.value)
            if finding.todo:
                value.append(f"\n-> {finding.todo}", style)
            table.add_row(Text(mark, style), finding.name, value)
    console.print(table)
    if bad:
        console.print(Text(f"`twostage up` would stop at: {', '.join(finding.name for finding in bad)}", "bold red"))
    else:
        console.print(Text("`twostage up` can start", "bold green"))
