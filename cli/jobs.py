"""What `index` and `reindex` share: the input that is opened, where notes are taken, and the run between."""

import hashlib
import json
import re
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from cli.average_words import average_words
from cli.calls import Gateway, gateway_at
from cli.home import Home
from cli.index_report import progress_bar
from cli.indexing import Indexed, Progress, Wanted, interrupted, run_of, store
from cli.journal import Journal
from cli.lexical import Lexical, as_option
from cli.lines import Fields
from cli.long_texts import LongTexts
from cli.record import Record
from cli.rejects import Rejects
from cli.sources import STDIN, Format, Source, open_source
from retrieval.gateway.v1 import gateway_pb2 as pb
from serving.errors import Misconfigured

Target = Callable[[Gateway], Awaitable[pb.Collection]]
Finish = Callable[[Gateway, Indexed], Awaitable[bool]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What the command line says."""

    name: str
    """Collection or alias."""
    file: str
    format: Format | None
    fields: Fields
    long_texts: LongTexts
    lexical: pb.LexicalParameters | None
    """What is said of how words are indexed; None is nothing."""
    journal: Path | None
    rejects: Path | None
    restart: bool
    home: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A request whose files are open."""

    request: Request
    wanted: Wanted
    source: Source
    journal: Journal | None
    """None for standard input, which cannot be read again."""
    rejects: Path
    progress: Progress

    async def run(self, address: str, target: Target, finish: Finish | None = None) -> Indexed:
        """Go on with what was interrupted, or begin in the collection that `target` gives; then count.

        Args:
            address: Of the gateway.
            target: Asked for a collection where nothing goes on.
            finish: What is left to do; the run goes on next time where it says that it has not done it.

        Raises:
            Misconfigured: The journal is of something else, or the input is not of its format.
            CallFailed: The gateway cannot store documents now.
            grpc.aio.AioRpcError: A call failed.
        """
        async with gateway_at(address) as gateway:
            going_on = None
            if self.journal is not None and not self.request.restart:
                going_on = await interrupted(gateway, self.journal, self.wanted)
            run = going_on or run_of(self.wanted, await target(gateway))
        if self.journal is not None and going_on is None:
            self.journal.begin(run)
        with Rejects(self.rejects, goes_on=going_on is not None) as rejects:
            lines = self.source.lines(self.request.fields)
            record = Record(self.journal, rejects)
            indexed = await store(address, run, lines, self.wanted.long_texts, record, self.progress)
        if await self._finished(address, indexed, finish) and self.journal is not None:
            self.journal.end(indexed.document_count)
        return indexed

    @property
    def lexical(self) -> Lexical | None:
        """How words are to be indexed; None leaves that as it is."""
        given = self.request.lexical
        return None if given is None else Lexical(given=given, count=self._average_words)

    def _average_words(self, lexical: pb.LexicalParameters) -> float | None:
        return average_words(self.source, self.request.fields, self.request.long_texts, lexical)

    async def _finished(self, address: str, indexed: Indexed, finish: Finish | None) -> bool:
        if finish is None:
            return indexed.counted
        async with gateway_at(address) as gateway:
            return await finish(gateway, indexed)


@contextmanager
def open_job(request: Request) -> Iterator[Job]:
    """Open input, journal and bar.

    Raises:
        Misconfigured: One cannot be opened, or options contradict each other.
    """
    if request.fields.id == request.fields.text:
        raise Misconfigured("OPTIONS_CONTRADICT", f'"{request.fields.text}" cannot be both id and text')
    if request.file == STDIN and request.journal is not None:
        raise Misconfigured("OPTIONS_CONTRADICT", "standard input cannot be read again, so that --journal needs a file")
    with ExitStack() as stack:
        source = stack.enter_context(open_source(request.file, request.format))
        wanted = Wanted(
            name=request.name,
            file=request.file,
            digest=source.digest,
            options=_options(request, source),
            long_texts=request.long_texts,
        )
        path = request.journal or _default_journal(request, wanted)
        rejects = request.rejects or path.with_name(path.name.removesuffix(".jsonl") + ".rejects.jsonl")
        _require_apart(path, rejects, source)
        journal = stack.enter_context(Journal(path)) if source.path is not None else None
        progress = stack.enter_context(progress_bar(source.line_count))
        yield Job(request=request, wanted=wanted, source=source, journal=journal, rejects=rejects, progress=progress)


def _options(request: Request, source: Source) -> dict[str, str]:
    return {
        "id_field": request.fields.id,
        "text_field": request.fields.text,
        "format": source.format,
        **request.long_texts.in_words(),
        **as_option(request.lexical),
    }


def _default_journal(request: Request, wanted: Wanted) -> Path:
    """Return a name that the same command gives again, and no other."""
    place = STDIN if request.file == STDIN else str(Path(request.file).resolve())
    told = json.dumps([place, wanted.options], sort_keys=True)
    name = re.sub(r"[^A-Za-z0-9._-]", "_", request.name)  # it is no path, whatever somebody types
    return Home(path=request.home).journals / f"{name}-{hashlib.sha256(told.encode()).hexdigest()[:12]}.jsonl"


def _require_apart(journal: Path, rejects: Path, source: Source) -> None:
    paths = [path.resolve() for path in (journal, rejects, source.path) if path is not None]
    if len(set(paths)) < len(paths):
        raise Misconfigured("OPTIONS_CONTRADICT", "input, journal and reject file have to be different files")
