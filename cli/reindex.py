"""`twostage reindex`: a new collection built beside the one that is searched, then taken in its place in one step."""

from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Annotated, Any

import grpc
import typer

from cli import options
from cli.calls import Gateway, failed, reported, run
from cli.console import EXIT_NOT_SO, answers, note, print_json
from cli.index_report import as_document, print_indexed
from cli.indexing import CALL_TIMEOUT_S, Indexed, find_collection, parameters_after
from cli.jobs import Job, Request, open_job
from cli.lexical_options import lexical_options
from cli.lines import Fields
from cli.long_texts import long_texts
from retrieval.gateway.v1 import gateway_pb2 as pb
from serving.errors import Misconfigured

Alias = Annotated[str, typer.Option("--collection", "-c", metavar="ALIAS", help="Name that is searched; an alias.")]
DropOld = Annotated[bool, typer.Option("--drop-old", help="Delete the collection that it pointed at before.")]
AcceptRejects = Annotated[bool, typer.Option("--accept-rejects", help="Point there although lines were refused.")]


@dataclass(slots=True, kw_only=True)
class Switch:
    """Builds where nobody searches, and points the alias there once everything is in order."""

    alias: str
    job: Job
    drop_old: bool
    accept_rejects: bool
    old: str = field(default="", init=False)
    """The collection that the alias pointed at; empty where there was none."""
    moved: bool = field(default=False, init=False)
    dropped: bool = field(default=False, init=False)

    async def target(self, gateway: Gateway) -> pb.Collection:
        """Make the new collection, kept as the old one is but for what was said of its words.

        Raises:
            Misconfigured: `NOT_AN_ALIAS`, a collection has that name.
            InvalidRequest: Words cannot be indexed in that way; what an abandoned run has left stays.
        """
        old = await self._old(gateway)
        parameters = parameters_after(old, self.job.lexical)
        if self.job.journal is not None and (abandoned := self.job.journal.unfinished) is not None:
            await _drop_unused(gateway, abandoned.collection)
        name = f"{self.alias}-{datetime.now(UTC):%Y%m%dT%H%M%S}"
        for suffix in ("", *(f"-{number}" for number in range(2, 100))):
            if await find_collection(gateway, name + suffix) is None:
                name += suffix
                break
        create = pb.CreateCollectionRequest(collection=name, parameters=parameters)
        return (await gateway.collections.CreateCollection(create, timeout=CALL_TIMEOUT_S)).collection

    async def finish(self, gateway: Gateway, indexed: Indexed) -> bool:
        """Point the alias at the new collection where it is in order; tell whether it does."""
        if not indexed.counted or (indexed.outcome.rejected_count and not self.accept_rejects):
            return False
        old = await self._old(gateway)
        assign = pb.AssignAliasRequest(alias=self.alias, collection=indexed.collection)
        await gateway.collections.AssignAlias(assign, timeout=CALL_TIMEOUT_S)
        self.moved = True
        if old is not None and old.name != indexed.collection:
            self.old = old.name
            self.dropped = self.drop_old and await _drop_unused(gateway, old.name)
        return True

    async def _old(self, gateway: Gateway) -> pb.Collection | None:
        old = await find_collection(gateway, self.alias)
        if old is not None and old.name == self.alias:
            raise Misconfigured(
                "NOT_AN_ALIAS",
                f"{self.alias} is a collection, and only an alias can point elsewhere; reindex under a new name and "
                "search that",
            )
        return old


@lexical_options
def reindex(
    file: options.File,
    collection: Alias,
    gateway: options.Gateway = options.DEFAULT_GATEWAY,
    format: options.GivenFormat = None,  # noqa: A002 - the option's word
    text_field: options.TextField = "text",
    id_field: options.IdField = "id",
    truncate: options.Truncate = False,
    split: options.Split = False,
    part_tokens: options.PartTokens = None,
    part_per_sentence: options.PartPerSentence = False,
    lexical: pb.LexicalParameters | None = None,
    drop_old: DropOld = False,
    accept_rejects: AcceptRejects = False,
    journal: options.JournalFile = None,
    rejects: options.RejectFile = None,
    restart: options.Restart = False,
    home: options.HomeDirectory = options.DEFAULT_HOME,
    as_json: options.AsJson = False,
) -> None:
    """Index a file into a new collection, count, and only then let the alias point at it.

    Whoever searches the alias meanwhile sees the old collection, then the new one, never a mixture. The new one is kept
    as the old one was, but for what --lexical-* says. A run that was killed goes on when the same command is given
    again. Exits 1 where the alias was left as it is.
    """
    with reported(gateway):
        texts = long_texts(truncate=truncate, split=split, part_tokens=part_tokens, part_per_sentence=part_per_sentence)
    request = Request(
        name=collection,
        file=file,
        format=format,
        fields=Fields(id=id_field, text=text_field),
        long_texts=texts,
        lexical=lexical,
        journal=journal,
        rejects=rejects,
        restart=restart,
        home=home,
    )
    with reported(gateway), open_job(request) as job:
        switch = Switch(alias=collection, job=job, drop_old=drop_old, accept_rejects=accept_rejects)
        indexed = run(job.run(gateway, switch.target, switch.finish), gateway)
    if as_json:
        print_json(_document(switch, indexed))
    else:
        _print(switch, indexed)
    raise typer.Exit(0 if switch.moved else EXIT_NOT_SO)


def _document(switch: Switch, indexed: Indexed) -> dict[str, Any]:
    told = {"alias": switch.alias, "moved": switch.moved, "old": switch.old or None, "old_dropped": switch.dropped}
    return {**told, **as_document(indexed, switch.job.rejects)}


def _print(switch: Switch, indexed: Indexed) -> None:
    print_indexed(indexed, switch.job.rejects)
    if switch.moved:
        old = f"; {switch.old} is {'dropped' if switch.dropped else 'kept'}" if switch.old else ""
        answers().print(f"{switch.alias} now points at {indexed.collection}{old}", soft_wrap=True)
        return
    note(f"{switch.alias} was left as it is; {indexed.collection} is there beside it", "bold red")
    if indexed.counted:
        note("the same command with --accept-rejects points it there; with a mended file, --restart begins anew", "red")


async def _drop_unused(gateway: Gateway, name: str) -> bool:
    """Drop a collection that no alias points at; tell whether it went."""
    try:
        await gateway.collections.DropCollection(pb.DropCollectionRequest(collection=name), timeout=CALL_TIMEOUT_S)
    except grpc.aio.AioRpcError as error:
        if failed(error).code not in {grpc.StatusCode.NOT_FOUND, grpc.StatusCode.FAILED_PRECONDITION}:
            raise
        return False
    return True
