"""How a collection is kept: options of `twostage collections create`, and the same in words."""

from collections.abc import Sequence
from enum import StrEnum
from typing import Annotated

import typer

from cli import lexical
from retrieval.gateway.v1 import gateway_pb2 as pb


class Quantization(StrEnum):
    """How vectors are held for the first pass of a search."""

    NONE = "none"
    INT8 = "int8"
    BINARY = "binary"


INDEX_TYPES = ("keyword", "integer", "float", "bool", "datetime", "text")

HnswM = Annotated[int | None, typer.Option("--hnsw-m", help="Links per vector in the approximate index.")]
HnswEfConstruct = Annotated[
    int | None, typer.Option("--hnsw-ef-construct", help="Neighbours looked at in building it.")
]
OnDisk = Annotated[bool, typer.Option("--on-disk", help="Read vectors from disk as needed.")]
Quantized = Annotated[Quantization, typer.Option("--quantization", help="How vectors are held for the first pass.")]
Shards = Annotated[int | None, typer.Option("--shards", help="Parts that a cluster spreads over its nodes.")]
Replicas = Annotated[int | None, typer.Option("--replicas", help="Copies of every shard.")]
Indexes = Annotated[
    list[str] | None,
    typer.Option(
        "--index", metavar="KEY:TYPE", help=f"Payload key to index, as one of {', '.join(INDEX_TYPES)}; several times."
    ),
]


def parameters_of(
    *,
    hnsw_m: int | None,
    hnsw_ef_construct: int | None,
    on_disk: bool,
    quantization: Quantization,
    shards: int | None,
    replicas: int | None,
    indexes: Sequence[str],
    words: pb.LexicalParameters | None,
) -> pb.CollectionParameters:
    """Write parameters; their ranges are the gateway's to check.

    Raises:
        typer.BadParameter: An index is not KEY:TYPE.
    """
    return pb.CollectionParameters(
        hnsw_m=hnsw_m,
        hnsw_ef_construct=hnsw_ef_construct,
        on_disk=on_disk,
        quantization=pb.Quantization.Value(f"QUANTIZATION_{quantization.name}"),
        shard_count=shards,
        replication_factor=replicas,
        payload_indexes=[_index(one) for one in indexes],
        lexical=words,
    )


def in_words(parameters: pb.CollectionParameters) -> Sequence[tuple[str, str]]:
    """Return name and value of each parameter."""
    indexes = (f"{one.key} ({_word(pb.PayloadIndexType.Name(one.type))})" for one in parameters.payload_indexes)
    return (
        ("approximate index", f"m {parameters.hnsw_m}, ef_construct {parameters.hnsw_ef_construct}"),
        ("vectors", "read from disk" if parameters.on_disk else "in memory"),
        ("quantization", _word(pb.Quantization.Name(parameters.quantization))),
        ("shards, copies", f"{parameters.shard_count}, {parameters.replication_factor}"),
        ("payload indexes", ", ".join(indexes) or "none"),
        ("words", lexical.in_words(parameters)),
    )


def _index(given: str) -> pb.PayloadIndex:
    key, _, kind = given.rpartition(":")
    if not key or kind not in INDEX_TYPES:
        raise typer.BadParameter(
            f"{given!r} is not KEY:TYPE with one of {', '.join(INDEX_TYPES)}", param_hint="--index"
        )
    return pb.PayloadIndex(key=key, type=pb.PayloadIndexType.Value(f"PAYLOAD_INDEX_TYPE_{kind.upper()}"))


def _word(name: str) -> str:
    return name.rpartition("_")[2].lower()
