"""A run of indexing: where it goes on or begins, what it stores, and whether all of it is there afterwards."""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import IO

import grpc

from cli.calls import CallFailed, Gateway, failed, gateway_at
from cli.console import note
from cli.journal import Journal, Run
from cli.lexical import Lexical
from cli.lines import Fields, Line, Malformed, read_lines
from cli.long_texts import LongTexts, long_texts
from cli.record import Outcome, Record
from cli.upsert import upsert
from retrieval.gateway.v1 import gateway_pb2 as pb
from serving.errors import Misconfigured

CALL_TIMEOUT_S = 30.0
Progress = Callable[[Outcome], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What a run is asked to do."""

    name: str
    """Collection or alias."""
    file: str
    digest: str
    options: dict[str, str]
    long_texts: LongTexts


@dataclass(frozen=True, slots=True, kw_only=True)
class Indexed:
    """What a run did."""

    collection: str
    outcome: Outcome
    document_count: int
    """Documents in the collection afterwards, counted by the store; parts are counted one by one."""
    missing_count: int
    """Documents that were acknowledged and are not there."""
    unexpected_count: int
    """Documents that are there and are not of this run; 0 where the collection was not empty before."""
    exact: bool
    """Whether every document of the collection is accounted for: where it was empty before."""
    seconds: float

    @property
    def counted(self) -> bool:
        """Whether the collection holds what was acknowledged."""
        return not (self.missing_count or self.unexpected_count)

    @property
    def complete(self) -> bool:
        """Whether, besides, every line is a document in the collection."""
        return self.counted and not self.outcome.rejected_count


async def index_lines(
    address: str,
    collection: str,
    source: IO[bytes],
    fields: Fields,
    *,
    truncate: bool = False,
    recreate: bool = False,
    progress: Progress = lambda _: None,
) -> Indexed:
    """Index every line of JSON of a file, then count; without journal or reject file.

    Raises:
        CallFailed: The gateway cannot store documents now.
        grpc.aio.AioRpcError: A call failed.
    """
    wanted = Wanted(name=collection, file="", digest="", options={}, long_texts=long_texts(truncate=truncate))
    async with gateway_at(address) as gateway:
        run = run_of(wanted, await open_collection(gateway, collection, recreate=recreate))
    return await store(address, run, read_lines(source, fields), wanted.long_texts, Record(), progress)


async def store(
    address: str,
    run: Run,
    lines: Iterable[Line | Malformed],
    long_texts: LongTexts,
    record: Record,
    progress: Progress,
) -> Indexed:
    """Store documents, then count.

    Raises:
        CallFailed: The gateway cannot store documents now.
        grpc.aio.AioRpcError: A call failed.
    """
    begun, outcome = time.monotonic(), record.outcome
    progress(outcome)
    try:
        await upsert(address, run.collection, lines, long_texts=long_texts, record=record, progress=progress)
    except (grpc.aio.AioRpcError, CallFailed):
        note(f"stopped after {outcome.stored_count} stored documents; the same command goes on, and does no harm")
        raise
    async with gateway_at(address) as gateway:
        request = pb.DescribeCollectionRequest(collection=run.collection)
        after = (await gateway.collections.DescribeCollection(request, timeout=CALL_TIMEOUT_S)).collection
    return counted(run, outcome, after.document_count, long_texts, time.monotonic() - begun)


def counted(run: Run, outcome: Outcome, document_count: int, long_texts: LongTexts, seconds: float) -> Indexed:
    """Compare what was acknowledged with what is there.

    Where documents were there before, those of this run may have replaced any number of them.
    """
    exact, entries = run.before_count == 0, outcome.counts.entries
    # Split documents take the parts of their earlier text away.
    least = entries if exact or long_texts.split else max(run.before_count, entries)
    return Indexed(
        collection=run.collection,
        outcome=outcome,
        document_count=document_count,
        missing_count=max(0, least - document_count),
        unexpected_count=max(0, document_count - entries) if exact else 0,
        exact=exact,
        seconds=seconds,
    )


async def interrupted(gateway: Gateway, journal: Journal, wanted: Wanted) -> Run | None:
    """Return the run that goes on; None where there is none, or where the collection is no longer what it left.

    Raises:
        Misconfigured: `INPUT_CHANGED`; `JOURNAL_OF_ANOTHER_RUN`.
    """
    run = journal.unfinished
    if run is None:
        return None
    if (run.name, run.options) != (wanted.name, wanted.options):
        raise Misconfigured(
            "JOURNAL_OF_ANOTHER_RUN",
            f"{journal.path} is of an unfinished run with other options; name another, or begin anew with --restart",
        )
    if run.digest != wanted.digest:
        raise Misconfigured(
            "INPUT_CHANGED",
            f"{wanted.file} is no longer what the unfinished run of {journal.path} has read; "
            "put it back, or index all of it anew with --restart",
        )
    found = await find_collection(gateway, run.collection)
    least = journal.counts.entries if run.before_count == 0 else 0
    if found is None or found.encoder.digest != run.encoder_digest or found.document_count < least:
        note(f"{run.collection} is no longer what the interrupted run left; beginning anew", "yellow")
        return None
    note(f"going on after {journal.counts.stored} documents of an interrupted run ({journal.path})")
    return run


async def open_collection(
    gateway: Gateway, name: str, *, recreate: bool, lexical: Lexical | None = None
) -> pb.Collection:
    """Return a collection; one that is made where there is none, or made anew, kept as the old one was.

    Args:
        gateway: Where it is.
        name: Its own.
        recreate: Whether it is made anew where there is one.
        lexical: How its words are to be indexed; None leaves that as it is.

    Raises:
        Misconfigured: It is there and its words are indexed otherwise, or not at all.
        InvalidRequest: They cannot be indexed in that way; what was there stays.
    """
    found = await find_collection(gateway, name)
    if found is not None and not recreate:
        if lexical is not None:
            lexical.require_same(found)
        return found
    parameters = parameters_after(found, lexical)
    if found is not None:
        await gateway.collections.DropCollection(pb.DropCollectionRequest(collection=name), timeout=CALL_TIMEOUT_S)
    create = pb.CreateCollectionRequest(collection=name, parameters=parameters)
    return (await gateway.collections.CreateCollection(create, timeout=CALL_TIMEOUT_S)).collection


def parameters_after(old: pb.Collection | None, lexical: Lexical | None) -> pb.CollectionParameters:
    """Return how the collection is kept that takes the place of another one, or of none: as that was.

    Args:
        old: The other one.
        lexical: How its words are to be indexed; None leaves that as it is.

    Raises:
        InvalidRequest: They cannot be indexed in that way.
    """
    parameters = pb.CollectionParameters()
    if old is not None:
        parameters.CopyFrom(old.parameters)
    if lexical is not None:
        parameters.lexical.CopyFrom(lexical.over(parameters.lexical))
    return parameters


async def find_collection(gateway: Gateway, name: str) -> pb.Collection | None:
    """Return a collection, or None where there is none of that name or alias."""
    request = pb.DescribeCollectionRequest(collection=name)
    try:
        return (await gateway.collections.DescribeCollection(request, timeout=CALL_TIMEOUT_S)).collection
    except grpc.aio.AioRpcError as error:
        if failed(error).code is not grpc.StatusCode.NOT_FOUND:
            raise
    return None


def run_of(wanted: Wanted, collection: pb.Collection) -> Run:
    """Return the run that begins in a collection."""
    return Run(
        name=wanted.name,
        collection=collection.name or wanted.name,
        file=wanted.file,
        digest=wanted.digest,
        options=wanted.options,
        encoder_digest=collection.encoder.digest,
        before_count=collection.document_count,
    )
