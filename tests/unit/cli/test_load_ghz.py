"""ghz's command line, and its JSON read honestly. The reports are hand-made in the form that ghz documents."""

import json
import subprocess
import sys
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from cli.access import ClientAccess
from cli.loading import ghz
from cli.loading.profile import Closed, Open, Profile, Step, stairs
from cli.loading.questions import Ask, requests_of
from serving.errors import Misconfigured
from serving.tls import TlsFiles

BEGUN = datetime(2024, 5, 1, 12, 0, 0, 123456, tzinfo=UTC)
CLOSING = "rpc error: code = Canceled desc = grpc: the client connection is closing"
BROKEN = "rpc error: code = Unavailable desc = transport is closing"


def detail(at_s: float, latency_ms: float = 10, status: str = "OK", error: str = "") -> dict[str, Any]:
    """One call as ghz lists it: the moment is that of its end, with nanoseconds."""
    moment = (BEGUN + timedelta(seconds=at_s)).isoformat().replace("+00:00", "789Z")
    return {"timestamp": moment, "latency": int(latency_ms * 1e6), "error": error, "status": status}


def report(details: Sequence[dict[str, Any]], /, **changes: Any) -> str:
    """A report whose counts are those of its calls."""
    statuses = [one["status"] for one in details]
    errors = [one["error"] for one in details if one["error"]]
    return json.dumps(
        {
            "endReason": "normal",
            "options": {"call": "x", "duration": 0},
            "date": "2024-05-01T12:00:10Z",
            "count": len(details),
            "total": 10_000_000_000,
            "average": 7_000_000,
            "fastest": 1_000_000,
            "slowest": 90_000_000,
            "rps": 1.0,
            "errorDistribution": {error: errors.count(error) for error in errors},
            "statusCodeDistribution": {status: statuses.count(status) for status in statuses},
            "latencyDistribution": [{"percentage": p, "latency": p * 1_000_000} for p in (10, 25, 50, 75, 90, 95, 99)],
            "histogram": [],
            "details": list(details),
            **changes,
        }
    )


def test_failures_are_counted_by_their_canonical_code() -> None:
    """Field failure 71: ghz's percentiles leave failures out, so the counts of every code come along."""
    late, refused = "rpc error: code = DeadlineExceeded desc = x", "rpc error: code = ResourceExhausted desc = y"
    calls = [detail(1, 10), detail(2, 30), detail(3, 1, "ResourceExhausted", refused)]
    run = ghz.read_report(report([*calls, detail(4, 1, "DeadlineExceeded", late)]))
    assert run.codes == {"OK": 2, "RESOURCE_EXHAUSTED": 1, "DEADLINE_EXCEEDED": 1}
    assert (run.error_count, run.cut_off_count, run.seconds) == (2, 0, 10.0)
    assert (run.latency.count, run.latency.mean) == (2, pytest.approx(20))


def test_calls_that_ghz_cut_off_at_its_end_are_told_apart() -> None:
    """Field failure 70: a run that ends by time reports the calls under way as canceled; no server failed them."""
    calls = [detail(1), detail(9.9), detail(10.01, 5, "Canceled", CLOSING), detail(10.01, 5, "Unavailable", BROKEN)]
    run = ghz.read_report(report(calls, endReason="timeout"))
    assert (run.codes, run.cut_off_count, run.error_count, run.call_count) == ({"OK": 2}, 2, 0, 4)


def test_a_connection_that_broke_in_the_middle_is_an_error() -> None:
    """The same words long before the end are the server's failure, whatever ended the run."""
    calls = [detail(1), detail(3, 5, "Unavailable", BROKEN), detail(9)]
    run = ghz.read_report(report(calls, endReason="timeout"))
    assert (run.codes, run.cut_off_count) == ({"OK": 2, "UNAVAILABLE": 1}, 0)


def test_cancellations_of_a_run_that_was_not_cut_off_are_errors() -> None:
    """Where every call was waited for, nothing was cut off."""
    calls = [detail(1), detail(1.1, 5, "Canceled", CLOSING)]
    run = ghz.read_report(report(calls, endReason="normal"))
    assert (run.codes, run.cut_off_count) == ({"OK": 1, "CANCELLED": 1}, 0)


def test_without_a_list_of_calls_ghz_own_percentiles_are_taken() -> None:
    """Of more than a million calls ghz lists a part only."""
    codes = {"OK": 3_000_000, "Unavailable": 2}
    run = ghz.read_report(report([detail(1)], count=3_000_002, statusCodeDistribution=codes))
    assert (run.latency.count, run.latency.p50, run.latency.p99) == (3_000_000, 50, 99)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"count": 3}',
        report([detail(1)], count=2),
        report([detail(1)], endReason="timeout", details=[{}]),
    ],
)
def test_what_is_no_report_is_not_read_as_one(text: str) -> None:
    """Neither another document nor one whose counts contradict each other gives figures."""
    with pytest.raises(Misconfigured):
        ghz.read_report(text)


@pytest.mark.parametrize(("ok", "failed", "status"), [(600, 0, 0), (999, 1, 0), (598, 2, 1), (0, 0, 1)], ids=str)
def test_a_report_on_standard_input_passes_or_fails(ok: int, failed: int, status: int) -> None:
    """Failures are not averaged away: under 99.9 % of OK calls, or without any, the status is 1 (field failure 71)."""
    calls = [detail(1)] * ok + [detail(2, 1, "Unavailable", "rpc error: code = Unavailable desc = x")] * failed
    found = printed(report(calls))
    assert found.returncode == status, found.stderr
    assert f"{ok + failed} calls in 10.0 s: {ok} OK" in found.stdout
    assert ("UNAVAILABLE" in found.stdout) is (failed > 0)


def test_what_is_no_report_on_standard_input_is_the_operators() -> None:
    """A ghz that failed wrote no JSON: one line and status 2, no stack trace."""
    found = printed("connection refused")
    assert (found.returncode, "GHZ_REPORT" in found.stderr, "Traceback" in found.stderr) == (2, True, False)


def printed(page: str) -> subprocess.CompletedProcess[str]:
    """Run the module as compose's `load-report` does."""
    command = [sys.executable, "-m", "cli.loading.ghz"]
    return subprocess.run(command, input=page, capture_output=True, text=True, check=False)


def arguments(profile: Profile, connections: int = 1) -> list[str]:
    return ghz.command("search", "h:1", profile=profile, data=Path("d.json"), connections=connections, timeout_s=2.5)


def test_the_command_names_protos_that_exist() -> None:
    """Field failure 69: ghz finds the method in files, not by reflection, and waits for the last answers."""
    given = arguments(Closed(concurrency=4, seconds=5.0), 9)
    options = dict(one.split("=", 1) for one in given if "=" in one)
    assert Path(options["--proto"]).is_file()
    assert Path(options["--proto"]).is_relative_to(options["--import-paths"])
    assert options["--call"] == "retrieval.gateway.v1.GatewayService/Search"
    assert (options["--duration"], options["--duration-stop"], options["--timeout"]) == ("5s", "wait", "2500ms")
    assert (options["--concurrency"], options["--connections"], given[-1]) == ("4", "4", "h:1")


def test_every_method_has_its_proto() -> None:
    """Encoder and reranker are called as the gateway is."""
    for method in ("encode", "rerank"):
        made = ghz.command(
            method, "h:1", profile=Closed(concurrency=1, count=1), data=Path("d"), connections=1, timeout_s=1
        )
        assert Path(next(one for one in made if one.startswith("--proto=")).partition("=")[2]).is_file()


def test_open_loops_are_asynchronous() -> None:
    """Without --async ghz would wait for answers and so spare a slow server."""
    given = arguments(Open(steps=(Step(rate=20, seconds=3),)), 2)
    assert {"--async", "--rps=20", "--total=60", "--connections=2"} <= set(given)
    stepped = arguments(stairs("10:30:10:2"))
    wanted = {"--load-schedule=step", "--load-start=10", "--load-end=30", "--load-step=10", "--load-step-duration=2s"}
    assert {"--async", "--total=120", *wanted} <= set(stepped)


def test_a_rate_that_ghz_cannot_make_is_refused() -> None:
    """It is not rounded behind the caller's back."""
    with pytest.raises(Misconfigured, match="whole numbers"):
        arguments(Open(steps=(Step(rate=2.5, seconds=2),)))


def test_requests_are_written_as_ghz_reads_them() -> None:
    """An array of messages, in protobuf's JSON, with the texts as they are."""
    (one,) = json.loads(ghz.data_of(requests_of(Ask(method="search", collection="c"), ["où ?"], ())))
    assert (one["query"], one["collection"], one["poolSize"], one["priority"]) == (
        "où ?",
        "c",
        20,
        "PRIORITY_INTERACTIVE",
    )


def test_ghz_is_let_in_as_the_command_is(tmp_path: Path) -> None:
    """TLS is named by its files; a key is in a file and on no command line, where everybody could read it."""
    assert ghz.let_in(ClientAccess(), tmp_path) == ["--insecure"]
    files = TlsFiles(ca=Path("ca.pem"), cert=Path("c.pem"), key=Path("k.pem"))
    options = ghz.let_in(ClientAccess(files=files, api_key="secret"), tmp_path)
    assert options[:3] == ["--cacert=ca.pem", "--cert=c.pem", "--key=k.pem"]
    assert "secret" not in " ".join(options)
    name = options[3].removeprefix("--metadata-file=")
    assert json.loads(Path(name).read_text()) == {"authorization": "Bearer secret"}
    assert ghz.let_in(ClientAccess(tls=True), tmp_path) == []
