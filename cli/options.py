"""Options that several commands share."""

from pathlib import Path
from typing import Annotated

import typer

from cli.calls import DEFAULT_GATEWAY
from cli.home import DEFAULT_HOME, Device, Profile
from cli.sources import Format

Gateway = Annotated[str, typer.Option("--gateway", metavar="HOST:PORT", help="Address of the gateway.")]
Collection = Annotated[str, typer.Option("--collection", "-c", metavar="NAME", help="Name of the collection.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else.")]
Timeout = Annotated[float, typer.Option("--timeout", min=0.001, metavar="SECONDS", help="Give up after this time.")]
HomeDirectory = Annotated[Path, typer.Option("--home", metavar="DIR", help="Where bundles and the store are kept.")]
Host = Annotated[str, typer.Option("--host", help="Address that the servers listen on.")]
GatewayPort = Annotated[int, typer.Option("--gateway-port", min=1, max=65_535)]
EncoderPort = Annotated[int, typer.Option("--encoder-port", min=1, max=65_535)]
RerankerPort = Annotated[int, typer.Option("--reranker-port", min=1, max=65_535)]
ProfileName = Annotated[Profile, typer.Option("--profile", help="Which pair of models: demo or full.")]

File = Annotated[
    str, typer.Argument(metavar="FILE", help="JSON lines, CSV, TSV or Parquet, by its ending; - reads standard input.")
]
GivenFormat = Annotated[Format | None, typer.Option("--format", help="What the file is, whatever its name.")]
TextField = Annotated[str, typer.Option(metavar="FIELD", help="Field that is searched and shown.")]
IdField = Annotated[str, typer.Option(metavar="FIELD", help="Field that is the id: text or a number.")]
Truncate = Annotated[bool, typer.Option("--truncate", help="Encode only the beginning of too long texts.")]
Split = Annotated[bool, typer.Option("--split", help="Split too long texts at sentence ends into parts that overlap.")]
PartTokens = Annotated[
    int | None,
    typer.Option("--part-tokens", min=16, metavar="N", help="Split texts into parts of at most so many tokens."),
]
PartPerSentence = Annotated[bool, typer.Option("--part-per-sentence", help="Split texts into their sentences.")]
JournalFile = Annotated[
    Path | None, typer.Option("--journal", metavar="FILE", help="Where to note what is stored; default is in --home.")
]
RejectFile = Annotated[
    Path | None,
    typer.Option("--rejects", metavar="FILE", help="Where refused lines go; default is beside the journal."),
]
Restart = Annotated[bool, typer.Option("--restart", help="Begin anew instead of going on with an interrupted run.")]

__all__ = [
    "DEFAULT_GATEWAY",
    "DEFAULT_HOME",
    "AsJson",
    "Collection",
    "Device",
    "EncoderPort",
    "File",
    "Gateway",
    "GatewayPort",
    "GivenFormat",
    "HomeDirectory",
    "Host",
    "IdField",
    "JournalFile",
    "PartPerSentence",
    "PartTokens",
    "ProfileName",
    "RejectFile",
    "RerankerPort",
    "Restart",
    "Split",
    "TextField",
    "Timeout",
    "Truncate",
]
