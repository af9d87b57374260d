"""Vectors for dense search without an index: documents' out of an export, questions' from the encoder."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from evaluation.figures import DocumentId
from evaluation.system import CALL_TIMEOUT_S, OpenChannel, System, document_id, plain_channel
from retrieval.encoder.v1 import encoder_pb2, encoder_pb2_grpc
from retrieval.gateway.v1 import gateway_pb2 as pb

FloatArray = npt.NDArray[np.float32]

TEXTS_PER_CALL = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Vectors:
    """The documents of a collection, as stored."""

    ids: Sequence[DocumentId]
    rows: FloatArray
    """float32 [documents, dimension], rows of length 1."""


@asynccontextmanager
async def with_encoder(
    system: System, address: str, open_channel: OpenChannel = plain_channel
) -> AsyncIterator[System]:
    """Open a channel to the encoder as well; call inside the running loop.

    Args:
        system: The others.
        address: "host:port"; empty leaves the system as it is.
        open_channel: As for `open_system`.
    """
    if not address:
        yield system
        return
    async with open_channel(address) as channel:
        yield replace(system, encoder=encoder_pb2_grpc.EncoderServiceStub(channel))


def vectors_of(batches: Sequence[pb.DocumentBatch]) -> Vectors:
    """Read the vectors of an export."""
    documents = [document for batch in batches for document in batch.documents]
    rows = [np.frombuffer(document.vector, "<f4") for document in documents]
    return Vectors(
        ids=[document_id(document.document.id) for document in documents],
        rows=np.stack(rows) if rows else np.zeros((0, 0), np.float32),
    )


async def query_vectors(system: System, queries: Sequence[str]) -> FloatArray | None:
    """Encode questions as the gateway does; None where the encoder is not at hand.

    Returns:
        float32 [queries, dimension].
    """
    if system.encoder is None:
        return None
    rows: list[FloatArray] = []
    for first in range(0, len(queries), TEXTS_PER_CALL):
        request = encoder_pb2.EncodeRequest(
            texts=queries[first : first + TEXTS_PER_CALL],
            input_type=encoder_pb2.INPUT_TYPE_QUERY,
            overlong=encoder_pb2.OVERLONG_TRUNCATE,
            vector_format=encoder_pb2.VECTOR_FORMAT_BYTES,
        )
        answer = await system.encoder.Encode(request, timeout=CALL_TIMEOUT_S)
        rows += [np.frombuffer(one.packed, "<f4") for one in answer.embeddings]
    return np.stack(rows)
