"""ghz as the generator: its command line, and the JSON that it writes read without its flattery.

ghz leaves failed calls out of its percentiles, and a run that ends by time may report the calls that it cut off itself
as errors of the server. Here the rate of success comes first, and what was cut off at the end is told apart.

`python -m cli.loading.ghz` reads that JSON from standard input and prints it; it exits 1 where fewer than 99.9 % of the
calls were OK.

Source: the options and the JSON as ghz 0.120 documents them (ghz.sh).
"""

import json
import re
import shutil
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import typer
from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message

from cli.access import ClientAccess
from cli.calls import reported
from cli.console import EXIT_NOT_SO, answers
from cli.loading.client import TARGETS
from cli.loading.generator import OK
from cli.loading.profile import Closed, Open, Profile
from cli.loading.questions import Method
from cli.loading.report import print_run
from cli.loading.summary import Run, Spread, spread
from retrieval.gateway.v1 import gateway_pb2
from serving.auth import HEADER
from serving.errors import Misconfigured

NANOSECONDS = 1e9
NS_PER_MS = 1e6
AT_END_S = 1.0
"""A call that ended canceled earlier than this before the last one was not cut off by the end of the run."""
CLOSING = ("connection is closing", "transport is closing")
LEAST_OK = 0.999
BY_ITSELF = ("timeout", "cancel")
"""Why a run ended, where ghz ended it before all calls were answered; else it is "normal"."""


def find() -> str | None:
    """Return the path of ghz, or None where it is not installed."""
    return shutil.which("ghz")


def protos() -> Path:
    """Return the directory that our .proto files are imported from, in a checkout and in an installed wheel alike."""
    return Path(gateway_pb2.__file__).parents[3]


def command(
    method: Method, address: str, *, profile: Profile, data: Path, connections: int, timeout_s: float
) -> list[str]:
    """Return ghz's options and the address; it writes its JSON to standard output.

    Args:
        method: What to call.
        address: HOST:PORT.
        profile: How often; whole numbers of calls a second.
        data: File of the requests, which ghz sends in turn.
        connections: It shares one among all callers unless told otherwise.
        timeout_s: Of each call.

    Raises:
        Misconfigured: ghz cannot make calls by the profile.
    """
    target = TARGETS[method]
    # The proto is named: ghz asks for a version of reflection that Python servers do not have.
    return [
        f"--proto={protos() / target.service.replace('.', '/').rpartition('/')[0] / target.server}.proto",
        f"--import-paths={protos()}",
        f"--call={target.service}/{target.rpc}",
        f"--data-file={data}",
        *_pace(profile, connections),
        f"--timeout={timeout_s * 1e3:.0f}ms",
        "--duration-stop=wait",
        # A question with {{ in it is a question and no template.
        "--disable-template-data",
        "--disable-template-functions",
        "--format=json",
        address,
    ]


def let_in(access: ClientAccess, directory: Path) -> list[str]:
    """Return the options by which ghz is let in as the command is.

    Args:
        access: What the command shows the server.
        directory: Where a file with the API key may be put, which other people cannot read: options they can.
    """
    files = access.files
    given = [("cacert", files.ca), ("cert", files.cert), ("key", files.key)]
    options = [f"--{name}={path}" for name, path in given if path is not None]
    if not (access.tls or options):
        options = ["--insecure"]
    if access.api_key is not None:
        metadata = directory / "metadata.json"
        metadata.write_text(json.dumps({HEADER: f"Bearer {access.api_key}"}), encoding="ascii")
        options.append(f"--metadata-file={metadata}")
    return options


def _pace(profile: Profile, connections: int) -> list[str]:
    if isinstance(profile, Closed):
        amount = f"--total={profile.count}" if profile.count is not None else f"--duration={profile.seconds:g}s"
        connections = min(connections, profile.concurrency)  # it refuses more
        return [f"--concurrency={profile.concurrency}", f"--connections={connections}", amount]
    total = sum(step.count for step in profile.steps)
    shared = ["--async", f"--concurrency={connections}", f"--connections={connections}", f"--total={total}"]
    return [*shared, *_rate(profile)]


def _rate(profile: Open) -> list[str]:
    rates = [step.rate for step in profile.steps]
    if any(rate != round(rate) for rate in rates):
        raise Misconfigured("PROFILE", "ghz makes whole numbers of calls a second; --with built-in makes any")
    if len(rates) == 1:
        return [f"--rps={rates[0]:g}"]
    return [
        "--load-schedule=step",
        f"--load-start={rates[0]:g}",
        f"--load-end={rates[-1]:g}",
        f"--load-step={rates[1] - rates[0]:g}",
        f"--load-step-duration={profile.steps[0].seconds:g}s",
    ]


def data_of(requests: Sequence[Message]) -> str:
    """Return the requests as ghz reads them: an array of messages in protobuf's JSON."""
    return json.dumps([MessageToDict(request) for request in requests], ensure_ascii=False)


def read_report(text: str) -> Run:
    """Read the JSON of one run.

    Raises:
        Misconfigured: `GHZ_REPORT`, it is none, or its counts contradict each other.
    """
    try:
        report = json.loads(text)
        counts = {_code(name): int(count) for name, count in (report["statusCodeDistribution"] or {}).items()}
        details = report.get("details") or []
        cut_off = _cut_off(report, details)
        seconds, count = report["total"] / NANOSECONDS, int(report["count"])
        latency = _latency(report, details, counts.get(OK, 0))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise Misconfigured("GHZ_REPORT", "what ghz wrote is not its JSON report") from error
    if sum(counts.values()) != count:
        raise Misconfigured("GHZ_REPORT", f"ghz says {count} calls, its codes add up to {sum(counts.values())}")
    codes = {code: left for code, made in counts.items() if (left := made - cut_off[code])}
    return Run(generator="ghz", seconds=seconds, codes=codes, cut_off_count=cut_off.total(), latency=latency)


def _code(name: str) -> str:
    """Turn Go's name of a status code into the canonical one: "DeadlineExceeded" is "DEADLINE_EXCEEDED"."""
    return {"OK": OK, "Canceled": "CANCELLED"}.get(name) or re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).upper()


def _cut_off(report: Mapping[str, Any], details: Sequence[Mapping[str, Any]]) -> Counter[str]:
    """Count, by code, the calls that ghz itself cut off: canceled at the very end of a run that it ended."""
    cut_off: Counter[str] = Counter()
    if report.get("endReason") not in BY_ITSELF or not details:
        return cut_off
    ends = [datetime.fromisoformat(one["timestamp"]).timestamp() for one in details]
    for end, one in zip(ends, details, strict=True):
        ended_so = one["status"] == "Canceled" or any(words in one["error"] for words in CLOSING)
        if ended_so and end >= max(ends) - AT_END_S:
            cut_off[_code(one["status"])] += 1
    return cut_off


def _latency(report: Mapping[str, Any], details: Sequence[Mapping[str, Any]], ok_count: int) -> Spread | None:
    """Return the latency of the calls that were OK; of ghz's own percentiles where it listed too many calls to list."""
    good = [one["latency"] / NANOSECONDS for one in details if one["status"] == "OK"]
    if len(good) == ok_count:
        return spread(good)
    told = {one["percentage"]: one["latency"] / NS_PER_MS for one in report["latencyDistribution"] or []}
    mean, most = report["average"] / NS_PER_MS, report["slowest"] / NS_PER_MS
    return Spread(count=ok_count, mean=mean, p50=told[50], p95=told[95], p99=told[99], max=most)


def main() -> None:
    """Print the report on standard input; exits 1 where fewer than 99.9 % of the calls were OK."""
    with reported():
        run = read_report(sys.stdin.read())
    print_run(answers(), run)
    answered = run.ok_count + run.error_count
    raise typer.Exit(0 if answered and run.ok_count >= LEAST_OK * answered else EXIT_NOT_SO)


if __name__ == "__main__":
    typer.run(main)
