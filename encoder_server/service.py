"""The encoder's RPCs: validate, submit, convert."""

from collections.abc import AsyncIterator, Sequence
from functools import partial
from typing import Any, TypeAlias

import grpc

from encoder_server.model import Role, prefix_of, split_text, tokenize
from encoder_server.settings import EncoderSettings
from encoder_server.splitting import Piece
from retrieval.encoder.v1 import encoder_pb2 as pb
from retrieval.encoder.v1 import encoder_pb2_grpc as pb_grpc
from serving.batcher import Answer
from serving.deadline import Deadline
from serving.engine import EngineSlot
from serving.errors import InvalidRequest
from serving.limits import require_size
from serving.metrics import ServerMetrics
from serving.server import deadline_of
from serving.session import FloatArray
from serving.status import failure_of
from serving.streams import answer_in_order
from serving.timing import CallTime, Stopwatch
from serving.tokens import Tokens

SERVICE = pb.DESCRIPTOR.services_by_name["EncoderService"].full_name
ROLES = {pb.INPUT_TYPE_QUERY: Role.QUERY, pb.INPUT_TYPE_PASSAGE: Role.PASSAGE}
OVERLONGS = {pb.OVERLONG_UNSPECIFIED: False, pb.OVERLONG_REJECT: False, pb.OVERLONG_TRUNCATE: True}
FORMATS = {pb.VECTOR_FORMAT_UNSPECIFIED: False, pb.VECTOR_FORMAT_FLOATS: False, pb.VECTOR_FORMAT_BYTES: True}
OVERLAP_SHARE = 8
"""Neighbouring passages share at most an eighth of the limit unless the caller says otherwise."""
# Enough that the device always has the next message's rows while one is computed and one is answered.
MESSAGES_IN_FLIGHT = 4

Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"


class EncoderService(pb_grpc.EncoderServiceServicer):
    """Implements retrieval.encoder.v1.EncoderService.

    Args:
        slot: Where the engine will be.
        settings: Limits and the default deadline.
        metrics: Where stages are recorded.
    """

    def __init__(self, slot: EngineSlot, settings: EncoderSettings, metrics: ServerMetrics) -> None:
        self._slot = slot
        self._settings = settings
        self._metrics = metrics

    async def Encode(self, request: pb.EncodeRequest, context: Context) -> pb.EncodeResponse:  # noqa: N802
        """Encode one batch of texts."""
        response, time = await self._encode(request, deadline_of(context, self._settings.default_deadline_s))
        context.set_trailing_metadata(time.trailers())
        return response

    async def EncodeStream(  # noqa: N802
        self, request_iterator: AsyncIterator[pb.EncodeStreamRequest], context: Context
    ) -> AsyncIterator[pb.EncodeStreamResponse]:
        """Encode many batches, several at once, answered in order."""
        remaining = context.time_remaining()
        ends = None if remaining is None else Deadline.after(remaining)

        async def answer(message: pb.EncodeStreamRequest) -> pb.EncodeStreamResponse:
            return await self._answer(message, ends or Deadline.after(self._settings.stream_deadline_s))

        async for response in answer_in_order(request_iterator, answer, MESSAGES_IN_FLIGHT):
            yield response

    async def Split(self, request: pb.SplitRequest, context: Context) -> pb.SplitResponse:  # noqa: N802, ARG002
        """Split texts into passages within the limit."""
        engine = self._slot.engine
        _check_texts(request.texts, self._settings)
        prefix = prefix_of(engine.model.bundle.manifest, _role(request.input_type))
        limit = engine.model.max_tokens
        overlap = request.overlap_tokens if request.HasField("overlap_tokens") else limit // OVERLAP_SHARE
        if not 0 <= overlap <= limit // 2:
            raise InvalidRequest("OUT_OF_RANGE", f"{overlap}, 0 to {limit // 2} is wanted", field="overlap_tokens")
        split = []
        for index, text in enumerate(request.texts):
            call = partial(split_text, text=text, prefix=prefix, overlap_tokens=overlap, field=f"texts[{index}]")
            split.append(await engine.tokenize(call))
        texts = [_split_text(text, pieces) for text, pieces in zip(request.texts, split, strict=True)]
        return pb.SplitResponse(texts=texts, model=pb.ModelReference(**engine.reference))

    async def GetModel(self, request: pb.GetModelRequest, context: Context) -> pb.GetModelResponse:  # noqa: N802, ARG002
        """Return the model and the limits."""
        engine = self._slot.engine
        manifest, settings = engine.model.bundle.manifest, self._settings
        return pb.GetModelResponse(
            model=pb.ModelReference(**engine.reference),
            limits=pb.Limits(
                max_tokens=engine.model.max_tokens,
                max_texts=settings.max_texts,
                max_text_bytes=settings.max_text_bytes,
                max_waiting_tokens=settings.max_waiting_tokens,
            ),
            dimension=manifest.dimension or 0,
            query_prefix=manifest.query_prefix,
            passage_prefix=manifest.passage_prefix,
        )

    async def _answer(self, message: pb.EncodeStreamRequest, deadline: Deadline) -> pb.EncodeStreamResponse:
        """Encode one message of a stream; what is wrong with it is its own affair."""
        try:
            response, _ = await self._encode(message.request, deadline, wait=True)
        except Exception as error:  # noqa: BLE001 - reported in the message's own answer
            code, reason, text = failure_of(error)
            return pb.EncodeStreamResponse(
                sequence=message.sequence, failure=pb.Failure(code=code, reason=reason, message=text)
            )
        return pb.EncodeStreamResponse(sequence=message.sequence, response=response)

    async def _encode(
        self, request: pb.EncodeRequest, deadline: Deadline, *, wait: bool = False
    ) -> tuple[pb.EncodeResponse, CallTime]:
        watch, engine = Stopwatch(), self._slot.engine
        role, truncate, packed = _validate(request, self._settings)
        prefix = prefix_of(engine.model.bundle.manifest, role)
        texts = list(request.texts)
        rows = await engine.tokenize(lambda tokenizer: tokenize(tokenizer, texts, prefix=prefix, truncate=truncate))
        tokenized = watch.lap()
        answer = await engine.compute(rows, deadline, wait=wait)
        response = pb.EncodeResponse(
            embeddings=_embeddings(answer, rows, packed=packed), model=pb.ModelReference(**engine.reference)
        )
        time = CallTime(total=watch.total(), tokenize=tokenized, queue=answer.queue, compute=answer.compute)
        self._metrics.observe_stage("encode", time.parts())
        response.timings.CopyFrom(pb.Timings(**time.durations()))
        return response, time


def _validate(request: pb.EncodeRequest, settings: EncoderSettings) -> tuple[Role, bool, bool]:
    """Check everything that needs no tokenizer; return role, whether to cut, whether to pack."""
    _check_texts(request.texts, settings)
    role = _role(request.input_type)
    for field, value, known in (
        ("overlong", request.overlong, OVERLONGS),
        ("vector_format", request.vector_format, FORMATS),
    ):
        if value not in known:
            raise InvalidRequest("ENUM_UNKNOWN", f"no such value: {value}", field=field)
    return role, OVERLONGS[request.overlong], FORMATS[request.vector_format]


def _role(value: pb.InputType.ValueType) -> Role:
    if value not in ROLES:
        raise InvalidRequest(
            "INPUT_TYPE_REQUIRED", "INPUT_TYPE_QUERY or INPUT_TYPE_PASSAGE is required", field="input_type"
        )
    return ROLES[value]


def _check_texts(texts: Sequence[str], settings: EncoderSettings) -> None:
    if not texts:
        raise InvalidRequest("TEXTS_EMPTY", "at least one text is required", field="texts")
    if len(texts) > settings.max_texts:
        message = f"{len(texts)} texts, the limit is {settings.max_texts}"
        raise InvalidRequest("TOO_MANY_TEXTS", message, field="texts")
    for index, text in enumerate(texts):
        require_size(text, settings.max_text_bytes, field=f"texts[{index}]")


def _embeddings(answer: Answer[FloatArray], rows: list[Tokens], *, packed: bool) -> list[pb.Embedding]:
    return [
        pb.Embedding(
            values=() if packed else vector.tolist(),
            packed=vector.astype("<f4", copy=False).tobytes() if packed else b"",
            token_count=len(row),
            truncated=row.truncated,
        )
        for vector, row in zip(answer.outputs, rows, strict=True)
    ]


def _split_text(text: str, pieces: Sequence[Piece]) -> pb.SplitText:
    """Write passages in bytes, which every language counts alike."""
    passages = []
    for piece in pieces:
        begin = len(text[: piece.begin].encode("utf-8", "replace"))
        end = begin + len(text[piece.begin : piece.end].encode("utf-8", "replace"))
        passages.append(pb.Passage(begin=begin, end=end, token_count=piece.token_count))
    return pb.SplitText(passages=passages)
