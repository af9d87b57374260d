"""The encoder port over gRPC."""

from collections.abc import Sequence

import grpc
import numpy as np
import numpy.typing as npt

from gateway.guard import Guard
from gateway.ports import Encoded, EncoderInfo, Model, ServerTime, Vector
from retrieval.encoder.v1 import encoder_pb2 as pb
from retrieval.encoder.v1.encoder_pb2_grpc import EncoderServiceStub
from serving.batching import Priority
from serving.deadline import Deadline
from serving.errors import InferenceFailed
from serving.timing import from_duration

SERVICE = pb.DESCRIPTOR.services_by_name["EncoderService"].full_name
PEER = "encoder"
PRIORITIES = {Priority.INTERACTIVE: pb.PRIORITY_INTERACTIVE, Priority.BULK: pb.PRIORITY_BULK}


class EncoderClient:
    """Calls an encoder server.

    Args:
        channel: To the servers.
        guard: What every call passes; default is one with the usual policy.
    """

    def __init__(self, channel: grpc.aio.Channel, guard: Guard | None = None) -> None:
        self._stub = EncoderServiceStub(channel)
        self._guard = guard or Guard(PEER)

    async def encode_queries(
        self, queries: Sequence[str], *, priority: Priority = Priority.INTERACTIVE, deadline: Deadline
    ) -> Encoded:
        """Encode queries, all or none; one over the token limit is InvalidRequest of the field `texts[i]`."""
        request = pb.EncodeRequest(
            texts=queries,
            input_type=pb.INPUT_TYPE_QUERY,
            vector_format=pb.VECTOR_FORMAT_BYTES,
            priority=PRIORITIES[priority],
        )
        return await self._encode(request, deadline)

    async def encode_passages(
        self, texts: Sequence[str], *, truncate: bool, priority: Priority = Priority.BULK, deadline: Deadline
    ) -> Encoded:
        """Encode passages, all or none; bulk work by default."""
        request = pb.EncodeRequest(
            texts=texts,
            input_type=pb.INPUT_TYPE_PASSAGE,
            overlong=pb.OVERLONG_TRUNCATE if truncate else pb.OVERLONG_REJECT,
            vector_format=pb.VECTOR_FORMAT_BYTES,
            priority=PRIORITIES[priority],
        )
        return await self._encode(request, deadline)

    async def split(
        self, texts: Sequence[str], *, max_tokens: int | None = None, per_sentence: bool = False, deadline: Deadline
    ) -> Sequence[Sequence[str]]:
        """Split passages at `max_tokens`, by default the encoder's token limit, or at every sentence's end."""
        request = pb.SplitRequest(
            texts=texts, input_type=pb.INPUT_TYPE_PASSAGE, max_tokens=max_tokens, per_sentence=per_sentence
        )
        timeout = deadline.require("encode")
        response = await self._guard.ask(self._stub.Split, request, timeout_s=timeout)
        if len(response.texts) != len(texts):
            raise InferenceFailed("ENCODER_FAILED", f"{len(response.texts)} texts came back split for {len(texts)}")
        return [_passages(text, split.passages, max_tokens) for text, split in zip(texts, response.texts, strict=True)]

    async def info(self, *, deadline: Deadline) -> EncoderInfo:
        """Return the model being served, its dimension and its prefix."""
        timeout = deadline.require("encode")
        request = pb.GetModelRequest()
        response = await self._guard.ask(self._stub.GetModel, request, timeout_s=timeout)
        return EncoderInfo(
            model=_model(response.model), dimension=response.dimension, passage_prefix=response.passage_prefix
        )

    async def _encode(self, request: pb.EncodeRequest, deadline: Deadline) -> Encoded:
        timeout = deadline.require("encode")
        response = await self._guard.ask(self._stub.Encode, request, timeout_s=timeout)
        return Encoded(
            vectors=_vectors(response, len(request.texts)),
            truncated=[embedding.truncated for embedding in response.embeddings],
            model=_model(response.model),
            time=ServerTime(
                queue=from_duration(response.timings.queue),
                tokenize=from_duration(response.timings.tokenize),
                compute=from_duration(response.timings.compute),
            ),
        )


def _passages(text: str, spans: Sequence[pb.Passage], max_tokens: int | None) -> list[str]:
    data = text.encode()
    if not spans or not all(0 <= span.begin < span.end <= len(data) for span in spans):
        raise InferenceFailed("ENCODER_FAILED", f"{len(spans)} passages do not lie within their text")
    if max_tokens is not None and any(span.token_count > max_tokens for span in spans):
        # An encoder of an older version knows no limit but its own.
        raise InferenceFailed("ENCODER_FAILED", f"a passage has more than the {max_tokens} tokens that were asked for")
    try:
        return [data[span.begin : span.end].decode() for span in spans]
    except UnicodeDecodeError as error:
        raise InferenceFailed("ENCODER_FAILED", "a passage begins or ends within a character") from error


def _vectors(response: pb.EncodeResponse, count: int) -> list[Vector]:
    """Unpack `count` vectors of one dimension, each finite and of some length: anything else never reaches a store."""
    packed = [embedding.packed for embedding in response.embeddings]
    sizes = {len(data) for data in packed}
    if len(packed) != count or len(sizes) != 1 or not (size := sizes.pop()) or size % 4:
        raise InferenceFailed("ENCODER_FAILED", f"{len(packed)} vectors of {sizes} bytes came back for {count} texts")
    matrix: npt.NDArray[np.float32] = np.frombuffer(b"".join(packed), "<f4").reshape(count, -1)
    if not np.isfinite(matrix).all() or not matrix.any(axis=1).all():
        raise InferenceFailed("ENCODER_FAILED", "a vector is not finite or has no length")
    return list(matrix)


def _model(reference: pb.ModelReference) -> Model:
    return Model(
        id=reference.id,
        revision=reference.revision,
        digest=reference.digest,
        precision=reference.precision,
        device=reference.device,
    )
