"""What a collection on a Qdrant server is, as the server keeps it and as we remember it."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from qdrant_client import grpc as pb

from gateway.parameters import (
    DEFAULT_PARAMETERS,
    CollectionParameters,
    CollectionStatus,
    IndexKind,
    LexicalParameters,
    LexicalTokenizer,
    PayloadIndex,
    Quantization,
)
from gateway.ports import Collection, Model
from gateway.stores.conditions import payload_path
from gateway.stores.lexical import VECTOR_NAME
from gateway.stores.qdrant_values import from_pb_payload, to_pb_value
from serving.errors import Misconfigured

METADATA_KEY = "twostage"
"""Key of our entry in the collection's metadata; a collection without it is another program's."""

SCHEMA_VERSION = 1

REMEMBERED_S = 10.0
"""How long a collection is taken for what it was, and an alias for what it pointed at. A collection that another
gateway drops and makes again with another encoder of the same dimension goes unnoticed for that long; of another
dimension, the server notices at once. An alias that another gateway points elsewhere is searched as it was."""

MAX_REMEMBERED = 1_000

STATUSES: Mapping[Any, CollectionStatus] = {
    pb.CollectionStatus.Green: CollectionStatus.GREEN,
    pb.CollectionStatus.Yellow: CollectionStatus.YELLOW,
    pb.CollectionStatus.Grey: CollectionStatus.GREY,
    pb.CollectionStatus.Red: CollectionStatus.RED,
}

_FIELD_TYPES = {
    IndexKind.KEYWORD: pb.FieldType.FieldTypeKeyword,
    IndexKind.INTEGER: pb.FieldType.FieldTypeInteger,
    IndexKind.FLOAT: pb.FieldType.FieldTypeFloat,
    IndexKind.BOOL: pb.FieldType.FieldTypeBool,
    IndexKind.DATETIME: pb.FieldType.FieldTypeDatetime,
    IndexKind.TEXT: pb.FieldType.FieldTypeText,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class QdrantIndex:
    """How collections are searched; Qdrant builds the index above some 10 MB of vectors and compares all below."""

    ef: int = 128
    """Neighbours looked at while searching; never less than what is asked for."""
    exact: bool = False
    """Whether searches compare every vector, index or not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """What is known of a collection."""

    name: str
    """Its own name."""
    dimension: int
    encoder: Model
    passage_prefix: str = ""
    parameters: CollectionParameters = DEFAULT_PARAMETERS
    hidden: bool = False
    incarnation: str = ""
    """Which one of its name it is; empty where an older gateway made it."""


@dataclass(frozen=True, slots=True)
class Memory:
    """Collections seen lately by the name that was asked for, so that a search is one call."""

    kept_s: float = REMEMBERED_S
    _seen: dict[str, tuple[float, Known]] = field(default_factory=dict)

    def get(self, name: str) -> Known | None:
        """Return a collection seen lately."""
        at, known = self._seen.get(name, (0.0, None))
        return known if known is not None and time.monotonic() - at < self.kept_s else None

    def put(self, name: str, known: Known) -> None:
        """Remember a collection under its name or an alias."""
        if len(self._seen) >= MAX_REMEMBERED:
            self._seen.clear()
        self._seen[name] = (time.monotonic(), known)

    def forget(self, name: str) -> None:
        """Forget what a name stands for, and the collection of that name under any alias."""
        for asked in [asked for asked, (_, known) in self._seen.items() if name in (asked, known.name)]:
            del self._seen[asked]


def creation(known: Known, timeout_s: int) -> pb.CreateCollection:
    """Return the request that makes a collection which remembers its encoder, without its device."""
    parameters = known.parameters
    vectors = pb.VectorParams(size=known.dimension, distance=pb.Distance.Cosine, on_disk=parameters.on_disk)
    return pb.CreateCollection(
        collection_name=known.name,
        vectors_config=pb.VectorsConfig(params=vectors),
        sparse_vectors_config=_words_config(parameters),
        hnsw_config=pb.HnswConfigDiff(m=parameters.hnsw_m, ef_construct=parameters.hnsw_ef_construct),
        quantization_config=_quantization(parameters.quantization),
        shard_number=parameters.shard_count,
        replication_factor=parameters.replication_factor,
        # Most copies, so that what is acknowledged outlives the loss of one.
        write_consistency_factor=parameters.replication_factor // 2 + 1,
        metadata=metadata_of(known),
        timeout=timeout_s,
    )


def index_creation(name: str, index: PayloadIndex, timeout_s: int) -> pb.CreateFieldIndexCollection:
    """Return the request that makes a payload index, answered when it is there."""
    request = pb.CreateFieldIndexCollection(
        collection_name=name,
        wait=True,
        field_name=payload_path(index.key),
        field_type=_FIELD_TYPES[index.kind],
        timeout=timeout_s,
    )
    if index.kind is IndexKind.INTEGER:  # its ranges would forget fractions
        request.field_index_params.integer_index_params.CopyFrom(pb.IntegerIndexParams(lookup=True, range=False))
    if index.kind is IndexKind.TEXT:
        words = pb.TextIndexParams(tokenizer=pb.TokenizerType.Word, lowercase=True)
        request.field_index_params.text_index_params.CopyFrom(words)
    return request


def metadata_of(known: Known) -> Mapping[str, pb.Value]:
    """Return what the server keeps for us beside a collection."""
    parameters = known.parameters
    entry = {
        "schema_version": SCHEMA_VERSION,
        "encoder_id": known.encoder.id,
        "encoder_revision": known.encoder.revision,
        "encoder_digest": known.encoder.digest,
        "encoder_precision": known.encoder.precision,
        "passage_prefix": known.passage_prefix,
        "hidden": known.hidden,
        "incarnation": known.incarnation,
        "hnsw_m": parameters.hnsw_m,
        "hnsw_ef_construct": parameters.hnsw_ef_construct,
        "on_disk": parameters.on_disk,
        "quantization": parameters.quantization.value,
        "shard_count": parameters.shard_count,
        "replication_factor": parameters.replication_factor,
        "payload_indexes": [{"key": one.key, "kind": one.kind.value} for one in parameters.payload_indexes],
        "lexical": _written_lexical(parameters.lexical),
    }
    return {METADATA_KEY: to_pb_value(entry)}


def read_known(name: str, config: pb.CollectionConfig, *, asked: str | None = None) -> Known:
    """Read what a collection is.

    Args:
        name: Its own name.
        config: As the server has it.
        asked: The name that was asked for, where that may be an alias; errors tell no other.

    Raises:
        Misconfigured: `COLLECTION_MALFORMED`, it is not ours or from another version.
    """
    entry = from_pb_payload(config.metadata).get(METADATA_KEY)
    params = config.params.vectors_config.params
    if not isinstance(entry, Mapping) or not _ours(entry) or params.distance != pb.Distance.Cosine or not params.size:
        raise _malformed(asked or name)
    try:
        return _known(name, entry, params.size)
    except (KeyError, TypeError, ValueError) as error:
        raise _malformed(asked or name) from error


def collection_of(
    known: Known,
    *,
    document_count: int,
    status: Any = pb.CollectionStatus.Green,
    aliases: Sequence[str] = (),
) -> Collection:
    """Return a collection as others know it."""
    return Collection(
        name=known.name,
        document_count=document_count,
        dimension=known.dimension,
        encoder=known.encoder,
        passage_prefix=known.passage_prefix,
        schema_version=SCHEMA_VERSION,
        status=STATUSES.get(status, CollectionStatus.UNKNOWN),
        parameters=known.parameters,
        aliases=aliases,
        incarnation=known.incarnation,
    )


def _malformed(name: str) -> Misconfigured:
    return Misconfigured(
        "COLLECTION_MALFORMED",
        f"collection {name} on the Qdrant server was not made by this version of twostage; use another name",
        collection=name,
    )


def _known(name: str, entry: Mapping[str, Any], dimension: int) -> Known:
    default = DEFAULT_PARAMETERS
    indexes = [PayloadIndex(key=one["key"], kind=IndexKind(one["kind"])) for one in entry.get("payload_indexes", ())]
    parameters = CollectionParameters(
        hnsw_m=entry.get("hnsw_m", default.hnsw_m),
        hnsw_ef_construct=entry.get("hnsw_ef_construct", default.hnsw_ef_construct),
        on_disk=entry.get("on_disk", default.on_disk),
        quantization=Quantization(entry.get("quantization", default.quantization.value)),
        shard_count=entry.get("shard_count", default.shard_count),
        replication_factor=entry.get("replication_factor", default.replication_factor),
        payload_indexes=tuple(indexes),
        lexical=_read_lexical(entry.get("lexical")),
    )
    encoder = Model(
        id=entry["encoder_id"],
        revision=entry["encoder_revision"],
        digest=entry["encoder_digest"],
        precision=entry["encoder_precision"],
    )
    return Known(
        name=name,
        dimension=dimension,
        encoder=encoder,
        passage_prefix=entry.get("passage_prefix", ""),
        parameters=parameters,
        hidden=entry.get("hidden") is True,
        incarnation=entry.get("incarnation", ""),
    )


def _ours(entry: Mapping[str, Any]) -> bool:
    words = ("encoder_id", "encoder_revision", "encoder_digest", "encoder_precision")
    return entry.get("schema_version") == SCHEMA_VERSION and all(isinstance(entry.get(word), str) for word in words)


def _words_config(parameters: CollectionParameters) -> pb.SparseVectorConfig | None:
    if parameters.lexical is None:
        return None
    index = pb.SparseIndexConfig(on_disk=parameters.on_disk)
    return pb.SparseVectorConfig(map={VECTOR_NAME: pb.SparseVectorParams(index=index, modifier=pb.Modifier.Idf)})


def _written_lexical(wanted: LexicalParameters | None) -> Mapping[str, Any] | None:
    return None if wanted is None else {**asdict(wanted), "tokenizer": wanted.tokenizer.value}


def _read_lexical(entry: Mapping[str, Any] | None) -> LexicalParameters | None:
    if entry is None:
        return None
    tokenizer, left_out = LexicalTokenizer(entry["tokenizer"]), tuple(entry["extra_stop_words"])
    return LexicalParameters(**{**entry, "tokenizer": tokenizer, "extra_stop_words": left_out})


def _quantization(wanted: Quantization) -> pb.QuantizationConfig | None:
    """Return what quantizes; the small vectors are in memory, wherever the whole ones are."""
    if wanted is Quantization.INT8:
        return pb.QuantizationConfig(scalar=pb.ScalarQuantization(type=pb.QuantizationType.Int8, always_ram=True))
    if wanted is Quantization.BINARY:
        return pb.QuantizationConfig(binary=pb.BinaryQuantization(always_ram=True))
    return None
