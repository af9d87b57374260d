"""`twostage index`: a file of documents into a collection, and whether all of it arrived."""

from functools import partial
from typing import Annotated

import typer

from cli import options
from cli.calls import reported, run
from cli.console import EXIT_NOT_SO, print_json
from cli.index_report import as_document, print_indexed
from cli.indexing import Indexed, index_lines, open_collection
from cli.jobs import Request, open_job
from cli.lexical_options import lexical_options
from cli.lines import Fields
from cli.long_texts import long_texts
from retrieval.gateway.v1 import gateway_pb2 as pb

__all__ = ["Indexed", "index", "index_lines"]


@lexical_options
def index(
    file: options.File,
    collection: options.Collection,
    gateway: options.Gateway = options.DEFAULT_GATEWAY,
    format: options.GivenFormat = None,  # noqa: A002 - the option's word
    text_field: options.TextField = "text",
    id_field: options.IdField = "id",
    truncate: options.Truncate = False,
    split: options.Split = False,
    part_tokens: options.PartTokens = None,
    part_per_sentence: options.PartPerSentence = False,
    lexical: pb.LexicalParameters | None = None,
    recreate: Annotated[bool, typer.Option("--recreate", help="Drop the collection first, with all in it.")] = False,
    journal: options.JournalFile = None,
    rejects: options.RejectFile = None,
    restart: options.Restart = False,
    home: options.HomeDirectory = options.DEFAULT_HOME,
    as_json: options.AsJson = False,
) -> None:
    """Index documents: every field but id and text is kept as payload.

    Creates the collection where there is none. Documents with a known id are replaced. A run that was killed goes on
    when the same command is given again. Exits 1 where a line was malformed or refused, or the count is not right.
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
        target = partial(open_collection, name=collection, recreate=recreate, lexical=job.lexical)
        indexed = run(job.run(gateway, target), gateway)
    if as_json:
        print_json(as_document(indexed, job.rejects))
    else:
        print_indexed(indexed, job.rejects)
    raise typer.Exit(0 if indexed.complete else EXIT_NOT_SO)
