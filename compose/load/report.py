"""ghz's JSON on standard input to three lines for people; exits 1 where fewer than 99.9 % of the calls were OK.

ghz's mean and rate leave failed calls out, so a server that refuses most calls looks fast: the rate of success comes
first. Calls that ghz itself cut off when it stopped are told apart from those that the server failed.
"""
# ruff: noqa: INP001 - a script, in no package

import json
import sys
from collections.abc import Mapping
from typing import Any

LEAST_OK = 0.999
CUT_OFF = ("Canceled", "the client connection is closing", "transport is closing")
NANOSECONDS_PER_MS = 1e6
SHOWN = (50, 95, 99)


def success(report: Mapping[str, Any]) -> tuple[int, int, int]:
    """Return calls that were OK, calls that the server failed, and calls that ghz cut off at its end."""
    counts: Mapping[str, int] = report.get("statusCodeDistribution") or {}
    errors: Mapping[str, int] = report.get("errorDistribution") or {}
    cut_off = sum(count for text, count in errors.items() if any(words in text for words in CUT_OFF))
    ok = counts.get("OK", 0)
    return ok, sum(counts.values()) - ok - cut_off, cut_off


def lines(report: Mapping[str, Any]) -> list[str]:
    """Return the report for people."""
    ok, failed, cut_off = success(report)
    latencies = {each["percentage"]: each["latency"] for each in report.get("latencyDistribution") or []}
    percentiles = "  ".join(f"p{p} {latencies[p] / NANOSECONDS_PER_MS:.1f}" for p in SHOWN if p in latencies)
    return [
        f"calls        {ok} ok, {failed} failed, {cut_off} cut off at the end: {_share(ok, failed):.2%} ok",
        f"milliseconds {percentiles or 'none'}  (of the calls that were ok)",
        f"errors       {report.get('errorDistribution') or 'none'}",
    ]


def _share(ok: int, failed: int) -> float:
    return ok / (ok + failed) if ok + failed else 0.0


def main() -> int:
    """Read, write, and return the exit status."""
    report = json.load(sys.stdin)
    sys.stdout.write("\n".join(lines(report)) + "\n")
    ok, failed, _ = success(report)
    return 0 if _share(ok, failed) >= LEAST_OK else 1


if __name__ == "__main__":
    raise SystemExit(main())
