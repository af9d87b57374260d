"""`twostage load`: call a server as many would, and see which stage is slow."""

import asyncio
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NoReturn

import typer
from google.protobuf.message import Message

from cli import load_options, options
from cli.access import access
from cli.calls import reported, run
from cli.console import EXIT_NOT_SO, answers, print_json
from cli.loading import ghz, pages
from cli.loading.client import TARGETS, Target, open_call
from cli.loading.generator import Call, WallClock, generate
from cli.loading.profile import Profile, profile_of
from cli.loading.questions import Ask, Method, read_texts, requests_of
from cli.loading.report import Report, Served, document, print_report
from cli.loading.summary import Run, bottleneck, summarize
from serving.errors import Misconfigured

SEED = 20_240_601


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Everything that a run is told."""

    method: Method
    address: str
    profile: Profile
    generator: Literal["ghz", "built-in"]
    connections: int
    timeout_s: float
    warm_up: int
    metrics: Sequence[str]

    @property
    def target(self) -> Target:
        """What is called."""
        return TARGETS[self.method]

    def __str__(self) -> str:
        return f"{self.method} at {self.address}, {self.profile}, {self.generator} generator"


def load(
    method: load_options.Called,
    questions: load_options.Questions,
    target: load_options.Target = "",
    collection: load_options.Collection = "",
    passages: load_options.Passages = None,
    duration: load_options.Duration = None,
    calls: load_options.Calls = None,
    concurrency: load_options.Concurrency = 8,
    rps: load_options.Rps = None,
    steps: load_options.Steps = None,
    pool_size: load_options.PoolSize = 20,
    top_k: load_options.TopK = 5,
    priority: load_options.CallPriority = "interactive",
    rerank: load_options.Rerank = "required",
    connections: load_options.Connections = 1,
    metrics: load_options.Metrics = None,
    warm_up: load_options.WarmUp = 5,
    generator: load_options.With = "auto",
    timeout: options.Timeout = 10.0,
    as_json: options.AsJson = False,
) -> None:
    """Call a server as many would: client percentiles beside the servers' own stages, and which one is slow.

    Exits 1 where a call failed, or where the server counted other calls than these.
    """
    with reported():
        ask = Ask(
            method=method, collection=collection, pool_size=pool_size, top_k=top_k, priority=priority, rerank=rerank
        )
        profile = profile_of(concurrency=concurrency, rps=rps, steps=steps, seconds=duration, count=calls)
        requests = requests_of(ask, read_texts(questions), read_texts(passages) if passages else ())
        plan = Plan(
            method=method,
            address=target or f"127.0.0.1:{TARGETS[method].port}",
            profile=profile,
            generator=_chosen(generator),
            connections=connections,
            timeout_s=timeout,
            warm_up=warm_up,
            metrics=metrics or (),
        )
    _end(run(measure(plan, requests), plan.address), as_json=as_json)


def _end(report: Report, *, as_json: bool) -> NoReturn:
    if as_json:
        print_json(document(report))
    else:
        print_report(answers(), report)
    raise typer.Exit(0 if report.good else EXIT_NOT_SO)


def _chosen(asked: load_options.Generator) -> Literal["ghz", "built-in"]:
    if asked == "ghz" and ghz.find() is None:
        raise Misconfigured("GHZ_MISSING", "ghz is not on the PATH; see ghz.sh, or take --with built-in")
    if asked == "auto":
        return "ghz" if ghz.find() else "built-in"
    return asked


async def measure(plan: Plan, requests: Sequence[Message]) -> Report:
    """Warm up, make the calls, and put together what client and servers say.

    Raises:
        CallFailed: A call of the warm-up failed, so that the run would only count errors.
        Misconfigured: A page cannot be read, or ghz fails.
    """
    opened = open_call(plan.method, plan.address, requests, connections=plan.connections, timeout_s=plan.timeout_s)
    async with opened as call:
        before = await _ready(plan, call)
        made = await (_by_ghz(plan, requests) if plan.generator == "ghz" else _built_in(plan, call))
    stages, served = made.stages, None
    source = "of the calls that were OK, as their answers say" if made.ok_count else "of the calls that failed"
    if before is not None:
        page = await pages.fetch_settled(plan.metrics, plan.target, before=before, expected=made.call_count)
        added = page.since(before)
        served = Served(codes=added.calls(plan.target), expected=made.call_count)
    if stages is None and before is not None:
        stages, source = added.stages(plan.target), "of all calls, by the server's histograms: approximate"
    elif stages is None:
        source = "ghz cannot read answers; give --metrics" if plan.generator == "ghz" else "no answer said it"
    found = bottleneck(stages, made.latency) if stages else None
    return Report(title=str(plan), run=made, stages=stages, stages_from=source, bottleneck=found, served=served)


async def _ready(plan: Plan, call: Call) -> pages.Page | None:
    """Warm up, and return what the server has counted until then, where it can be asked."""
    if not plan.metrics:
        await _warm_up(plan, call)
        return None
    start = await pages.fetch(plan.metrics, plan.target)
    await _warm_up(plan, call)
    return await pages.fetch_settled(plan.metrics, plan.target, before=start, expected=plan.warm_up)


async def _warm_up(plan: Plan, call: Call) -> None:
    """Make the first calls, so that neither connections nor first runs are measured, and a wrong target shows."""
    for number in range(plan.warm_up):
        reply = await call(number)
        if reply.failure is not None:
            raise reply.failure


async def _built_in(plan: Plan, call: Call) -> Run:
    samples = await generate(call, plan.profile, clock=WallClock(), seed=SEED)
    return summarize(samples, plan.profile, whole=plan.target.whole)


async def _by_ghz(plan: Plan, requests: Sequence[Message]) -> Run:
    program = ghz.find()
    if program is None:
        raise Misconfigured("GHZ_MISSING", "ghz is not on the PATH any more")
    with tempfile.TemporaryDirectory(prefix="twostage-load-") as directory:
        data = Path(directory) / "requests.json"
        data.write_text(ghz.data_of(requests), encoding="utf-8")
        asked = ghz.command(
            plan.method,
            plan.address,
            profile=plan.profile,
            data=data,
            connections=plan.connections,
            timeout_s=plan.timeout_s,
        )
        let_in = ghz.let_in(access.get(), Path(directory))
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(program, *let_in, *asked, stdout=pipe, stderr=pipe)
        output, problems = await process.communicate()
    if process.returncode:
        raise Misconfigured("GHZ_FAILED", f"ghz: {problems.decode(errors='replace').strip()}"[-256:])
    return ghz.read_report(output.decode())
