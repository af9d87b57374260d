"""`twostage load` as a process against a gateway in this one, between fakes that do as they are told."""

import asyncio
import json
import os
import stat
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest
from fakes import Hang, status
from patience import Late, with_more_time
from rigs import COLLECTION, Rig, free_port, open_rig
from up_process import TWOSTAGE

from cli.addresses import free_ports

pytestmark = pytest.mark.timeout(60)
QUESTIONS = ["alpha beta", '{"query": "beta gamma", "id": 3}', '{"text": "gamma"}', "", "δέλτα"]
FAKE_GHZ = """#!{python}
import json, sys, time
import grpc
from google.protobuf.json_format import ParseDict
from retrieval.gateway.v1 import gateway_pb2 as pb
options = dict(one.split("=", 1) for one in sys.argv[1:-1] if "=" in one)
messages = json.load(open(options["--data-file"]))
json.dump({{"arguments": sys.argv[1:], "data": messages}}, open({seen!r}, "w"))
details = []
with grpc.insecure_channel(sys.argv[-1]) as channel:
    call = channel.unary_unary("/" + options["--call"], request_serializer=pb.SearchRequest.SerializeToString)
    for number in range(int(options["--total"])):
        begun = time.perf_counter_ns()
        call(ParseDict(messages[number % len(messages)], pb.SearchRequest()))
        took = time.perf_counter_ns() - begun
        details.append({{"timestamp": "2024-05-01T12:00:00.123456789Z", "latency": took, "error": "", "status": "OK"}})
print(json.dumps({{"endReason": "normal", "count": len(details), "total": 1000000000, "average": 1, "slowest": 1,
  "statusCodeDistribution": {{"OK": len(details)}}, "errorDistribution": {{}}, "latencyDistribution": [],
  "details": details}}))
"""
"""Calls as ghz does, and writes the part of its JSON that is read."""


@dataclass
class Ran:
    status: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        return json.loads(self.out)


class Loaded:
    """A gateway with two documents, and the command that calls it."""

    def __init__(self, rig: Rig, port: int, metrics_port: int, questions: Path) -> None:
        self.rig, self.port, self.questions = rig, port, questions
        self.metrics = f"127.0.0.1:{metrics_port}"

    async def load(self, *arguments: str, env: Mapping[str, str] | None = None) -> Ran:
        """Run it as a process, without keeping the gateway here from answering."""
        given = [*TWOSTAGE, "load", "search", "--questions", str(self.questions), "--target", f"127.0.0.1:{self.port}"]
        pipe = asyncio.subprocess.PIPE
        # A ghz that this machine happens to have is not what is tested.
        process = await asyncio.create_subprocess_exec(
            *given, *arguments, stdout=pipe, stderr=pipe, env={**os.environ, "PATH": "/nowhere", **(env or {})}
        )
        out, err = await process.communicate()
        return Ran(status=process.returncode or 0, out=out.decode(), err=err.decode())


@asynccontextmanager
async def open_loaded(directory: Path, **settings: Any) -> AsyncIterator[Loaded]:
    """Open a gateway with such settings."""
    port, metrics_port = free_ports(2)
    questions = directory / "questions.txt"
    questions.write_text("\n".join(QUESTIONS), encoding="utf-8")
    async with open_rig(port=port, metrics_port=metrics_port, **settings) as rig:
        await rig.fill("alpha beta", "beta gamma")
        yield Loaded(rig, port, metrics_port, questions)


@pytest.fixture
async def loaded(tmp_path: Path) -> AsyncIterator[Loaded]:
    async with open_loaded(tmp_path) as opened:
        yield opened


async def test_closed_loop_agrees_with_the_servers_own_count(loaded: Loaded) -> None:
    """Every call is made, answered, counted by both sides, and its stages add up; the warm-up is in no figure."""
    options = ("-c", COLLECTION, "-n", "30", "--concurrency", "3", "--metrics", loaded.metrics, "--json")
    ran = await loaded.load(*options, "--warm-up", "4")
    assert ran.status == 0, ran.err
    found = ran.document
    assert (found["generator"], found["calls"], found["ok"], found["errors"]) == ("built-in", 30, 30, 0)
    assert found["served"] == {"codes": {"OK": 30}, "expected": 30, "agrees": True}
    assert found["latency"]["count"] == found["stages"]["rerank"]["queue"]["count"] == 30
    means = {stage: found["stages"][stage]["total"]["mean"] for stage in ("encode", "search", "rerank", "all")}
    other = found["stages"]["all"]["other"]["mean"]
    assert means["encode"] + means["search"] + means["rerank"] + other == pytest.approx(means["all"], abs=1e-6)
    assert means["all"] <= found["latency"]["mean"]
    assert found["bottleneck"]["stage"] in {"encode", "search", "rerank", "gateway", "outside"}
    assert len(loaded.rig.reranker.requests) == 34


async def test_questions_are_sent_in_turn(loaded: Loaded) -> None:
    """Field failure 72: lines, queries and texts all are questions, one after the other and not one again and again."""
    ran = await loaded.load("-c", COLLECTION, "-n", "8", "--concurrency", "1", "--warm-up", "0", "--json")
    assert ran.status == 0, ran.err
    sent = [request.query for request in loaded.rig.reranker.requests]
    assert sent == ["alpha beta", "beta gamma", "gamma", "δέλτα"] * 2


async def test_errors_fail_the_run_and_are_named(loaded: Loaded) -> None:
    """The code of every failed call is counted, and client and server agree about them."""
    refuse = status(grpc.StatusCode.RESOURCE_EXHAUSTED, "QUEUE_FULL", retry_after_s=1)
    loaded.rig.reranker.script.extend([refuse] * 4)
    options = ("-c", COLLECTION, "-n", "20", "--warm-up", "0", "--metrics", loaded.metrics)
    ran = await loaded.load(*options, "--json")
    assert ran.status == 1
    assert ran.document["codes"] == {"OK": 16, "RESOURCE_EXHAUSTED": 4}
    assert ran.document["served"]["codes"] == {"OK": 16, "RESOURCE_EXHAUSTED": 4}
    assert ran.document["served"]["agrees"]


async def test_a_run_without_any_answer_says_which_stage_failed_it(loaded: Loaded) -> None:
    """Where no call was OK the time of those that failed is told, by their trailers."""
    loaded.rig.reranker.always = status(grpc.StatusCode.RESOURCE_EXHAUSTED, "QUEUE_FULL", retry_after_s=1)
    ran = await loaded.load("-c", COLLECTION, "-n", "5", "--warm-up", "0", "--json")
    found = ran.document
    assert (ran.status, found["codes"], found["latency"]) == (1, {"RESOURCE_EXHAUSTED": 5}, None)
    assert found["stages_from"] == "of the calls that failed"
    assert found["stages"]["rerank"]["unaccounted"]["count"] == 5
    assert found["bottleneck"]["stage"] in {"encode", "search", "rerank", "gateway"}


async def test_answers_in_part_are_told_from_whole_ones(loaded: Loaded) -> None:
    """A search without its reranker is OK where that is allowed, and no run passes it off as a whole one."""
    loaded.rig.reranker.always = status(grpc.StatusCode.UNAVAILABLE)
    options = ("-c", COLLECTION, "-n", "6", "--warm-up", "0", "--rerank", "best-effort")
    ran = await loaded.load(*options, "--json")
    assert (ran.status, ran.document["ok"], ran.document["degraded_count"]) == (0, 6, 6)


@pytest.mark.timeout(180)
async def test_a_late_reranker_is_the_bottleneck_and_no_slow_network(tmp_path: Path) -> None:
    """Searches that wait for it in vain name it, to programs and to people; the wire to it is not blamed."""
    options = ("-c", COLLECTION, "-n", "4", "--concurrency", "4", "--timeout", "60", "--warm-up", "0")

    async def attempt(seconds: float) -> tuple[Ran, Ran]:
        async with open_loaded(tmp_path, rerank_cap_s=seconds) as loaded:
            loaded.rig.reranker.always = Hang()
            asked = (*options, "--rerank", "best-effort")
            told, shown = await loaded.load(*asked, "--json"), await loaded.load(*asked)
        assert (told.status, told.document["degraded_count"]) == (0, 4), told.err
        if told.document["bottleneck"]["stage"] != "rerank" or "\nbottleneck: rerank, " not in shown.out:
            raise Late(shown.out)  # a machine that stands still for longer than that is the slower one
        return told, shown

    told, shown = await with_more_time(attempt)
    found, rerank = told.document["bottleneck"], told.document["stages"]["rerank"]
    assert (found["stage"], found["part"]) == ("rerank", "unaccounted")
    assert (rerank["network"]["max"], rerank["unaccounted"]["count"]) == (0, 4)
    assert rerank["unaccounted"]["mean"] == pytest.approx(rerank["total"]["mean"])
    assert {"network", "unaccounted"} <= set(shown.out.split()), "all columns fit into a terminal"
    (verdict,) = [line for line in shown.out.splitlines() if line.startswith("bottleneck: ")]
    assert verdict.startswith("bottleneck: rerank, ")
    assert verdict.endswith("% of the time, mostly unaccounted")


@pytest.mark.timeout(180)
async def test_ghz_is_told_of_a_late_reranker_by_the_page(tmp_path: Path) -> None:
    """The servers' histograms lead to the same verdict as answers do, though few searches were late."""
    program = tmp_path / "ghz"
    program.write_text(FAKE_GHZ.format(python=sys.executable, seen=str(tmp_path / "seen.json")))
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    options = ("-c", COLLECTION, "-n", "8", "--warm-up", "0", "--rerank", "best-effort", "--json")

    async def attempt(seconds: float) -> Any:
        async with open_loaded(tmp_path, rerank_cap_s=seconds) as loaded:
            loaded.rig.reranker.script.extend([Hang(), Hang()])
            ran = await loaded.load(*options, "--metrics", loaded.metrics, env={"PATH": str(tmp_path)})
        assert ran.status == 0, ran.err
        if ran.document["bottleneck"]["stage"] != "rerank":
            raise Late(ran.out)
        return ran.document

    found = await with_more_time(attempt)
    assert (found["bottleneck"]["stage"], found["bottleneck"]["part"]) == ("rerank", "unaccounted")
    parts = [found["stages"]["rerank"][part] for part in ("queue", "tokenize", "compute", "network", "unaccounted")]
    assert {part["count"] for part in parts} == {8}
    assert sum(part["mean"] for part in parts) == pytest.approx(found["stages"]["rerank"]["total"]["mean"])


async def test_calls_of_others_show_as_disagreement(loaded: Loaded) -> None:
    """A server that counted more than was sent was called by somebody else, and the run fails."""

    async def also_ask(request: Any, context: Any, answer: Any) -> Any:
        await loaded.rig.ask("alpha")
        return answer

    loaded.rig.reranker.script.append(also_ask)
    ran = await loaded.load("-c", COLLECTION, "-n", "3", "--warm-up", "0", "--metrics", loaded.metrics)
    assert ran.status == 1
    assert "the server counted 4 calls (OK 4), 3 were made" in " ".join(ran.out.split())


async def test_open_loop_shows_every_step(loaded: Loaded) -> None:
    """The table has a line per rate, the stages and the verdict, for people."""
    ran = await loaded.load("-c", COLLECTION, "--steps", "20:40:20:0.5", "--connections", "2")
    assert ran.status == 0, ran.err
    words = ran.out.split()
    assert {"20/s", "40/s", "encode", "rerank", "gateway", "outside", "bottleneck:"} <= set(words)
    assert "30 calls" in ran.out
    assert "30 OK (100.00%)" in ran.out


async def test_a_wrong_collection_is_known_before_the_run(loaded: Loaded) -> None:
    """The first call of the warm-up fails the command with the server's own words, not ten thousand times."""
    ran = await loaded.load("-c", "other", "-n", "1000")
    assert ran.status == 1
    assert "COLLECTION_NOT_FOUND" in ran.err
    assert not ran.out


async def test_nobody_at_the_address_is_a_status_of_its_own(loaded: Loaded) -> None:
    """A server that cannot be reached is no result."""
    ran = await loaded.load("-c", COLLECTION, "-n", "1", "--target", f"127.0.0.1:{free_port()}", "--timeout", "5")
    assert ran.status == 69
    assert "UNAVAILABLE" in ran.err


async def test_contradictions_are_refused(loaded: Loaded) -> None:
    """Neither time nor number, no collection, no ghz where it is asked for: each is said and nothing is called."""
    calls = len(loaded.rig.encoder.requests)
    for options in (("-c", COLLECTION), ("-n", "1"), ("-c", COLLECTION, "-n", "1", "--with", "ghz")):
        ran = await loaded.load(*options)
        assert (ran.status, ran.out) == (2, "")
    assert len(loaded.rig.encoder.requests) == calls


async def test_ghz_makes_the_calls_where_it_is_installed(loaded: Loaded, tmp_path: Path) -> None:
    """It is given the same requests; what it cannot read is taken from the server's page, whose count must agree."""
    program, seen = tmp_path / "ghz", tmp_path / "seen.json"
    program.write_text(FAKE_GHZ.format(python=sys.executable, seen=str(seen)))
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    options = ("-c", COLLECTION, "-n", "9", "--warm-up", "1", "--json")
    ran = await loaded.load(*options, "--metrics", loaded.metrics, env={"PATH": str(tmp_path)})
    assert ran.status == 0, ran.err
    found = ran.document
    assert (found["generator"], found["ok"], found["latency"]["count"]) == ("ghz", 9, 9)
    assert found["served"] == {"codes": {"OK": 9}, "expected": 9, "agrees": True}
    assert found["stages"]["rerank"]["queue"]["count"] == 9
    given = json.loads(seen.read_text())
    assert {"--total=9", "--duration-stop=wait", "--insecure", f"127.0.0.1:{loaded.port}"} <= set(given["arguments"])
    assert [one["query"] for one in given["data"]] == ["alpha beta", "beta gamma", "gamma", "δέλτα"]
    blind = await loaded.load(*options, env={"PATH": str(tmp_path)})
    assert (blind.status, blind.document["stages"], blind.document["served"]) == (0, None, None)
