"""`twostage doctor`: what is here, what it really is, and whether `twostage up` would work."""

from collections.abc import Sequence

import typer
from rich.text import Text

from cli import checks, options
from cli.calls import run
from cli.console import EXIT_NOT_SO, answers, print_json
from cli.findings import Finding, bad_of, document, print_findings
from cli.health import ASK_TIMEOUT_S
from cli.home import Home


def doctor(
    profile: options.ProfileName = "demo",
    home: options.HomeDirectory = options.DEFAULT_HOME,
    host: options.Host = "127.0.0.1",
    gateway_port: options.GatewayPort = 50_051,
    encoder_port: options.EncoderPort = 50_052,
    reranker_port: options.RerankerPort = 50_053,
    timeout: options.Timeout = ASK_TIMEOUT_S,
    as_json: options.AsJson = False,
) -> None:
    """Check installation, machine, models and ports; exits 1 where `twostage up` would stop.

    A system that is already up is such a case: it holds the ports, and what it serves is shown. Behind TLS it is asked
    as `twostage --tls-ca FILE doctor`.
    """
    place = Home(path=home)
    ports = {"gateway": gateway_port, "encoder": encoder_port, "reranker": reranker_port}
    sections = {
        "installed": list(checks.installation()),
        "machine": list(checks.machine(place, profile)),
        f"models of profile {profile}": list(checks.models(place, profile)),
        "ports": run(checks.ports(host, ports, timeout)),
    }
    bad = bad_of(sections)
    if as_json:
        print_json(document(sections))
    else:
        print_findings(answers(), sections)
        answers().print(_verdict(bad))
    raise typer.Exit(EXIT_NOT_SO if bad else 0)


def _verdict(bad: Sequence[Finding]) -> Text:
    if bad:
        return Text(f"`twostage up` would stop at: {', '.join(finding.name for finding in bad)}", "bold red")
    return Text("`twostage up` can start", "bold green")
