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
from serving.errors import InferenceFailed, InvalidRequest
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

    async def encode_query(
        self, query: str, *, priority: Priority = Priority.INTERACTIVE, deadline: Deadline
    ) -> Encoded:
        """Encode one query; what is wrong with it is reported under the name that our caller knows."""
        request = pb.EncodeRequest(
            texts=[query],
            input_type=pb.INPUT_TYPE_QUERY,
            vector_format=pb.VECTOR_FORMAT_BYTES,
            priority=PRIORITIES[priority],
        )
        try:
            return await self._encode(request, deadline)
        except InvalidRequest as error:
            raise InvalidRequest(error.reason, error.message.removeprefix(f"{error.field}: "), field="query") from error

    async def encode_passages(self, texts: Sequence[str], *, truncate: bool, deadline: Deadline) -> Encoded:
        """Encode passages, all or none, as bulk work."""
        request = pb.EncodeRequest(
            texts=texts,
            input_type=pb.INPUT_TYPE_PASSAGE,
            overlong=pb.OVERLONG_TRUNCATE if truncate else pb.OVERLONG_REJECT,
            vector_format=pb.VECTOR_FORMAT_BYTES,
            priority=pb.PRIORITY_BULK,
        )
        return await self._encode(request, deadline)

    async def split(self, texts: Sequence[str], *, deadline: Deadline) -> Sequence[Sequence[str]]:
        """Split passages at the encoder's token limit."""
        request = pb.SplitRequest(texts=texts, input_type=pb.INPUT_TYPE_PASSAGE)
        timeout = deadline.require("encode")
        response = await self._guard.ask(self._stub.Split, request, timeout_s=timeout)
        if len(response.texts) != len(texts):
            raise InferenceFailed("ENCODER_FAILED", f"{len(response.texts)} texts came back split for {len(texts)}")
        return [_passages(text, split.passages) for text, split in zip(texts, response.texts, strict=True)]

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


def _passages(text: str, spans: Sequence[pb.Passage]) -> list[str]:
    data = text.encode()
    if not spans or not all(0 <= span.begin < span.end <= len(data) for span in spans):
        raise InferenceFailed("ENCODER_FAILED", f"{len(spans)} passages do not lie within their text")
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
