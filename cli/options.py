"""Options that several commands share."""

from pathlib import Path
from typing import Annotated

import typer

from cli.calls import DEFAULT_GATEWAY
from cli.home import DEFAULT_HOME, Device, Profile

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

__all__ = [
    "DEFAULT_GATEWAY",
    "DEFAULT_HOME",
    "AsJson",
    "Collection",
    "Device",
    "EncoderPort",
    "Gateway",
    "GatewayPort",
    "HomeDirectory",
    "Host",
    "ProfileName",
    "RerankerPort",
    "Timeout",
]
