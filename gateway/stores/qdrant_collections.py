"""What a collection on a Qdrant server is, as the server keeps it and as we remember it."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from qdrant_client import grpc as pb

from gateway.ports import Model
from gateway.stores.qdrant_values import from_pb_payload, to_pb_value
from serving.errors import Misconfigured

METADATA_KEY = "twostage"
"""Key of our entry in the collection's metadata; a collection without it is another program's."""

SCHEMA_VERSION = 1

REMEMBERED_S = 10.0
"""How long a collection is taken for what it was. A collection that another gateway drops and makes again with another
encoder of the same dimension goes unnoticed for that long; of another dimension, the server notices at once."""

MAX_REMEMBERED = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class QdrantIndex:
    """The approximate index of a collection; Qdrant builds it above some 10 MB of vectors and compares all below.

    Qdrant's own defaults are m = 16, ef_construct = 100 and ef = ef_construct.
    """

    m: int = 16
    """Links per vector."""
    ef_construct: int = 128
    """Neighbours looked at while building."""
    ef: int = 128
    """Neighbours looked at while searching; never less than what is asked for."""
    exact: bool = False
    """Whether searches compare every vector, index or not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """What is known of a collection."""

    name: str
    dimension: int
    encoder: Model


@dataclass(frozen=True, slots=True)
class Memory:
    """Collections seen lately, so that a search is one call."""

    kept_s: float = REMEMBERED_S
    _seen: dict[str, tuple[float, Known]] = field(default_factory=dict)

    def get(self, name: str) -> Known | None:
        """Return a collection seen lately."""
        at, known = self._seen.get(name, (0.0, None))
        return known if known is not None and time.monotonic() - at < self.kept_s else None

    def put(self, known: Known) -> None:
        """Remember a collection."""
        if len(self._seen) >= MAX_REMEMBERED:
            self._seen.clear()
        self._seen[known.name] = (time.monotonic(), known)

    def forget(self, name: str) -> None:
        """Forget a collection."""
        self._seen.pop(name, None)


def creation(name: str, dimension: int, encoder: Model, index: QdrantIndex, timeout_s: int) -> pb.CreateCollection:
    """Return the request that makes a collection which remembers its encoder, without its device."""
    entry = {
        "schema_version": SCHEMA_VERSION,
        "encoder_id": encoder.id,
        "encoder_revision": encoder.revision,
        "encoder_digest": encoder.digest,
        "encoder_precision": encoder.precision,
    }
    return pb.CreateCollection(
        collection_name=name,
        vectors_config=pb.VectorsConfig(params=pb.VectorParams(size=dimension, distance=pb.Distance.Cosine)),
        hnsw_config=pb.HnswConfigDiff(m=index.m, ef_construct=index.ef_construct),
        metadata={METADATA_KEY: to_pb_value(entry)},
        timeout=timeout_s,
    )


def read_known(name: str, config: pb.CollectionConfig) -> Known:
    """Read what a collection is.

    Raises:
        Misconfigured: `COLLECTION_MALFORMED`, it is not ours or from another version.
    """
    entry = from_pb_payload(config.metadata).get(METADATA_KEY)
    params = config.params.vectors_config.params
    if not isinstance(entry, Mapping) or not _ours(entry) or params.distance != pb.Distance.Cosine or not params.size:
        raise Misconfigured(
            "COLLECTION_MALFORMED",
            f"collection {name} on the Qdrant server was not made by this version of twostage; use another name",
            collection=name,
        )
    encoder = Model(
        id=entry["encoder_id"],
        revision=entry["encoder_revision"],
        digest=entry["encoder_digest"],
        precision=entry["encoder_precision"],
    )
    return Known(name=name, dimension=params.size, encoder=encoder)


def _ours(entry: Mapping[str, Any]) -> bool:
    words = ("encoder_id", "encoder_revision", "encoder_digest", "encoder_precision")
    return entry.get("schema_version") == SCHEMA_VERSION and all(isinstance(entry.get(word), str) for word in words)
