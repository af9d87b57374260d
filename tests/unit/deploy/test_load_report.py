"""The report on ghz's figures: the rate of success first, and a failure where it is low."""

import json
import subprocess
import sys
from typing import Any

import pytest
from deploy_files import REPOSITORY

SCRIPT = REPOSITORY / "compose" / "load" / "report.py"


def reported(**counts: Any) -> subprocess.CompletedProcess[str]:
    """Run the script over a report of ghz's shape."""
    latencies = [{"percentage": p, "latency": p * 1_000_000} for p in (10, 50, 95, 99)]
    report = {"statusCodeDistribution": {}, "errorDistribution": {}, "latencyDistribution": latencies, **counts}
    command, page = [sys.executable, SCRIPT], json.dumps(report)
    return subprocess.run(command, input=page, capture_output=True, text=True, check=False)


def test_all_well_is_status_0_with_percentiles():
    """Calls that were all OK pass, and latencies are milliseconds."""
    found = reported(statusCodeDistribution={"OK": 600})
    assert found.returncode == 0
    assert "600 ok, 0 failed, 0 cut off at the end: 100.00% ok" in found.stdout
    assert "p50 50.0  p95 95.0  p99 99.0" in found.stdout


def test_failures_are_not_averaged_away():
    """Two failures in 600 are under 99.9 %: status 1, and the error is shown (field failure 71)."""
    found = reported(
        statusCodeDistribution={"OK": 598, "Unavailable": 2},
        errorDistribution={"rpc error: code = Unavailable desc = the reranker cannot be reached": 2},
    )
    assert found.returncode == 1
    assert "598 ok, 2 failed" in found.stdout
    assert "the reranker cannot be reached" in found.stdout


def test_calls_that_ghz_cut_off_are_told_apart():
    """Calls that ended with ghz's own connection count neither as OK nor as failed (field failure 70)."""
    found = reported(
        statusCodeDistribution={"OK": 590, "Unavailable": 6, "Canceled": 4},
        errorDistribution={
            "rpc error: code = Unavailable desc = transport is closing": 6,
            "rpc error: code = Canceled desc = grpc: the client connection is closing": 4,
        },
    )
    assert found.returncode == 0
    assert "590 ok, 0 failed, 10 cut off at the end: 100.00% ok" in found.stdout


@pytest.mark.parametrize("counts", [{}, {"statusCodeDistribution": None, "latencyDistribution": None}])
def test_no_calls_at_all_is_a_failure(counts: dict[str, None]):
    """A run in which nothing was answered does not pass."""
    found = reported(**counts)
    assert found.returncode == 1
    assert "0 ok, 0 failed" in found.stdout
