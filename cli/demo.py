"""`twostage demo`: the whole system once through, on ten questions, with nothing to set up."""

import asyncio
import signal
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from cli import options
from cli.addresses import free_ports
from cli.calls import gateway_at, reported, run
from cli.console import EXIT_NOT_SO, answers, fail, note
from cli.demo_questions import Question, find_data, read_questions
from cli.demo_report import Answered, print_answer, print_summary
from cli.home import Home, require_bundles
from cli.index import Indexed, index_lines
from cli.lines import Fields
from cli.processes import ServerEnded, System, SystemConfig, running_system
from retrieval.gateway.v1 import gateway_pb2 as pb

COLLECTION = "helpcentre"
POOL_SIZE = 20
TOP_K = 5
SEARCH_TIMEOUT_S = 60.0
CLOSING_LINE = "demo: ok"


def demo(
    home: options.HomeDirectory = options.DEFAULT_HOME,
    data: Annotated[Path | None, typer.Option(metavar="DIR", help="Where the help centre's files are.")] = None,
    keep: Annotated[bool, typer.Option("--keep", help="Leave the servers running until Ctrl-C.")] = False,
) -> None:
    """Start everything, index a help centre, search ten questions, show what the reranker changed, stop everything."""
    place = Home(path=home)
    with reported():
        found = find_data(data)
        questions = read_questions(found)
    run(_interruptible(place, found, questions, keep=keep))
    answers().print(CLOSING_LINE)


async def _interruptible(home: Home, data: Path, questions: Sequence[Question], *, keep: bool) -> None:
    """Run the demo so that SIGTERM ends it as Ctrl-C does, the servers first."""
    work = asyncio.create_task(_demo(home, data, questions, keep=keep))
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, work.cancel)
    try:
        await work
    except asyncio.CancelledError:
        fail(EXIT_NOT_SO, "interrupted")
    except ServerEnded as error:
        for line in error.tail:
            note(f"  | {line}", "dim")
        fail(EXIT_NOT_SO, error.message)


async def _demo(home: Home, data: Path, questions: Sequence[Question], *, keep: bool) -> None:
    console = answers()
    console.print(Text("models", "bold"))
    await asyncio.to_thread(require_bundles, home, "demo", lambda line: console.print(Text(f"  {line}")))
    console.print(Text("servers", "bold"))
    home.demo.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix="store-", dir=home.demo) as store:
        await _with_servers(console, _config(home, Path(store)), data, questions, keep=keep)


async def _with_servers(
    console: Console, config: SystemConfig, data: Path, questions: Sequence[Question], *, keep: bool
) -> None:
    async with running_system(config) as system:
        console.print(Text(f"  gateway, encoder and reranker are serving; gateway at {system.gateway}"))
        failing = asyncio.create_task(system.ended())
        working = asyncio.create_task(_work(console, system, data, questions))
        try:
            await asyncio.wait({failing, working}, return_when=asyncio.FIRST_COMPLETED)
            await (working if working.done() else failing)
            if keep:
                await _kept(console, system)
        finally:
            for task in (failing, working):
                task.cancel()
            await asyncio.gather(failing, working, return_exceptions=True)


def _config(home: Home, store: Path) -> SystemConfig:
    gateway, encoder, reranker = free_ports(3)
    return SystemConfig(
        encoder_bundle=home.bundle("demo", "encoder"),
        reranker_bundle=home.bundle("demo", "reranker"),
        store=store,
        gateway_port=gateway,
        encoder_port=encoder,
        reranker_port=reranker,
    )


async def _work(console: Console, system: System, data: Path, questions: Sequence[Question]) -> None:
    console.print(Text("documents", "bold"))
    indexed = await _index(system.gateway, data)
    rate = indexed.outcome.stored_count / indexed.seconds
    truncated = indexed.outcome.counts.truncated
    console.print(
        Text(f"  {indexed.document_count} indexed, {rate:.0f}/s; {truncated} cut at the encoder's 512 tokens")
    )
    console.print(Text("questions", "bold"))
    answered = []
    async with gateway_at(system.gateway) as gateway:
        warm_up = pb.SearchRequest(query="warm-up", collection=COLLECTION, pool_size=POOL_SIZE)
        await gateway.search.Search(warm_up, timeout=SEARCH_TIMEOUT_S)
        for question in questions:
            response = await gateway.search.Search(_request(question), timeout=SEARCH_TIMEOUT_S)
            answered.append(Answered(question=question, response=response))
            print_answer(console, answered[-1], f"{len(answered)}/{len(questions)}")
    print_summary(console, answered, TOP_K)


async def _index(address: str, data: Path) -> Indexed:
    with (data / "documents.jsonl").open("rb") as source:
        indexed = await index_lines(address, COLLECTION, source, Fields(), truncate=True)
    if not indexed.complete:
        outcome = indexed.outcome
        lost = outcome.rejected_count + indexed.missing_count
        fail(EXIT_NOT_SO, f"{lost} of {outcome.line_count} documents were not indexed")
    return indexed


def _request(question: Question) -> pb.SearchRequest:
    return pb.SearchRequest(
        query=question.query,
        collection=COLLECTION,
        pool_size=POOL_SIZE,
        top_k=TOP_K,
        include_pool=True,
        include_text=False,
    )


async def _kept(console: Console, system: System) -> None:
    command = f'twostage search "..." --collection {COLLECTION} --gateway {system.gateway}'
    console.print(Text.assemble("still serving until Ctrl-C: ", (command, "bold")), soft_wrap=True)
    with suppress(asyncio.CancelledError):  # that is how it ends
        await system.ended()
