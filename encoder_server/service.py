"""The encoder's RPCs: validate, submit, convert."""

from collections.abc import AsyncIterator, Mapping, Sequence
from functools import cached_property, partial
from typing import Any, NamedTuple, TypeAlias

import grpc
from google.protobuf.wrappers_pb2 import BytesValue
from prometheus_client import Counter

from encoder_server.cache import CountedCache, Encoded
from encoder_server.model import Role, Splitting, prefix_of, split_text, tokenize
from encoder_server.settings import EncoderSettings
from encoder_server.splitting import Piece
from retrieval.encoder.v1 import encoder_pb2 as pb
from retrieval.encoder.v1 import encoder_pb2_grpc as pb_grpc
from serving.batching import Priority
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
PRIORITIES = {
    pb.PRIORITY_UNSPECIFIED: None,
    pb.PRIORITY_INTERACTIVE: Priority.INTERACTIVE,
    pb.PRIORITY_BULK: Priority.BULK,
}
OVERLAP_SHARE = 8
"""Neighbouring passages share at most an eighth of the limit unless the caller says otherwise."""
MIN_SPLIT_TOKENS = 16
"""Least limit of a split; a prefix and special tokens take some of it."""
# Enough that the device always has the next message's rows while one is computed and one is answered.
MESSAGES_IN_FLIGHT = 4

Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"


class Wanted(NamedTuple):
    """One request whose fields are in order."""

    texts: list[str]
    role: Role
    truncate: bool
    packed: bool
    priority: Priority


class TextCounts:
    """How many texts were answered, and how many of them had been cut."""

    def __init__(self, metrics: ServerMetrics) -> None:
        service, registry, label = metrics.service, metrics.registry, ["input_type"]
        texts = Counter(f"{service}_texts", "Texts answered, with kept vectors too.", label, registry=registry)
        cut = Counter(f"{service}_truncated_texts", "Those cut to the limit.", label, registry=registry)
        self._counters = {role: (texts.labels(role.value), cut.labels(role.value)) for role in Role}

    def count(self, role: Role, entries: Sequence[Encoded]) -> None:
        """Count the texts of one answer."""
        texts, cut = self._counters[role]
        texts.inc(len(entries))
        cut.inc(sum(entry.truncated for entry in entries))


class EncoderService(pb_grpc.EncoderServiceServicer):
    """Implements retrieval.encoder.v1.EncoderService.

    Args:
        slot: Where the engine will be.
        settings: Limits and the default deadline.
        metrics: Where stages and texts are recorded.
    """

    def __init__(self, slot: EngineSlot, settings: EncoderSettings, metrics: ServerMetrics) -> None:
        self._slot = slot
        self._settings = settings
        self._metrics = metrics
        self._texts = TextCounts(metrics)
        self._cache = CountedCache(settings.cache_bytes, metrics) if settings.cache_bytes else None

    async def Encode(self, request: pb.EncodeRequest, context: Context) -> pb.EncodeResponse:  # noqa: N802
        """Encode one batch of texts."""
        deadline = deadline_of(context, self._settings.default_deadline_s)
        response, time = await self._encode(request, deadline, priority=Priority.INTERACTIVE)
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
        whole = list(request.texts)
        _check_texts(whole, self._settings)
        prefix = prefix_of(engine.model.bundle.manifest, _role(request.input_type))
        how = _splitting(request, engine.model.max_tokens)
        split = []
        for index, text in enumerate(whole):
            call = partial(split_text, text=text, prefix=prefix, how=how, field=f"texts[{index}]")
            split.append(await engine.tokenize(call, characters=len(text)))
        texts = [_split_text(text, pieces) for text, pieces in zip(whole, split, strict=True)]
        return pb.SplitResponse(texts=texts, model=self._reference)

    async def GetModel(self, request: pb.GetModelRequest, context: Context) -> pb.GetModelResponse:  # noqa: N802, ARG002
        """Return the model and the limits."""
        engine = self._slot.engine
        manifest, settings = engine.model.bundle.manifest, self._settings
        return pb.GetModelResponse(
            model=self._reference,
            limits=pb.Limits(
                max_tokens=engine.model.max_tokens,
                max_texts=settings.max_texts,
                max_text_bytes=settings.max_text_bytes,
                max_waiting_tokens=engine.batcher.limits.max_waiting_tokens,
            ),
            dimension=manifest.dimension or 0,
            query_prefix=manifest.query_prefix,
            passage_prefix=manifest.passage_prefix,
        )

    @cached_property
    def _reference(self) -> pb.ModelReference:
        """The model, written once: a server has one all its life."""
        return pb.ModelReference(**self._slot.engine.reference)

    @cached_property
    def _model_key(self) -> str:
        """What the cache knows the model by."""
        return f"{self._reference.digest} {self._reference.precision}"

    async def _answer(self, message: pb.EncodeStreamRequest, deadline: Deadline) -> pb.EncodeStreamResponse:
        """Encode one message of a stream; what is wrong with it is its own affair."""
        try:
            response, _ = await self._encode(message.request, deadline, priority=Priority.BULK, wait=True)
        except Exception as error:  # noqa: BLE001 - reported in the message's own answer
            code, reason, text = failure_of(error)
            return pb.EncodeStreamResponse(
                sequence=message.sequence, failure=pb.Failure(code=code, reason=reason, message=text)
            )
        return pb.EncodeStreamResponse(sequence=message.sequence, response=response)

    async def _encode(
        self, request: pb.EncodeRequest, deadline: Deadline, *, priority: Priority, wait: bool = False
    ) -> tuple[pb.EncodeResponse, CallTime]:
        """Encode texts; `priority` is that of a caller who set none."""
        watch, engine = Stopwatch(), self._slot.engine
        wanted = _validate(request, self._settings, priority)
        prefix = prefix_of(engine.model.bundle.manifest, wanted.role)
        cache, kept = self._cache if wanted.role is Role.QUERY else None, dict[int, Encoded]()
        if cache is not None:
            kept = cache.find(self._model_key, prefix, wanted.texts, truncate=wanted.truncate)
        entries, spent = await self._compute(wanted, prefix, kept, deadline, wait=wait)
        # A job that asks much once must not push out what people ask again and again.
        if cache is not None and wanted.priority is Priority.INTERACTIVE:
            fresh = [index for index in range(len(entries)) if index not in kept]
            cache.keep(self._model_key, prefix, [(wanted.texts[index], entries[index]) for index in fresh])
        embeddings = [
            _embedding(entry, packed=wanted.packed, cached=index in kept) for index, entry in enumerate(entries)
        ]
        time = CallTime(total=watch.total(), **spent)
        self._metrics.observe_stage("encode", time.parts())
        self._texts.count(wanted.role, entries)
        timings = pb.Timings(**time.durations())
        return pb.EncodeResponse(embeddings=embeddings, timings=timings, model=self._reference), time

    async def _compute(
        self, wanted: Wanted, prefix: str, kept: Mapping[int, Encoded], deadline: Deadline, *, wait: bool
    ) -> tuple[Sequence[Encoded], Mapping[str, int]]:
        """Compute the texts that are not kept; return all of them, and how long each part took, in nanoseconds.

        Where anything is to be computed all texts are tokenized, so that what is wrong is named by its own position.
        """
        if len(kept) == len(wanted.texts):
            return [kept[index] for index in range(len(kept))], {}
        watch, engine = Stopwatch(), self._slot.engine
        if not wait:
            engine.refuse_hopeless(deadline, priority=wanted.priority)
        rows = await engine.tokenize(
            lambda tokenizer: tokenize(tokenizer, wanted.texts, prefix=prefix, truncate=wanted.truncate),
            characters=sum(map(len, wanted.texts)),
        )
        tokenized = watch.lap("tokenize")
        unknown = [row for index, row in enumerate(rows) if index not in kept] if kept else rows
        answer = await engine.compute(unknown, deadline, priority=wanted.priority, wait=wait)
        vectors = iter(answer.outputs)
        entries = [kept.get(index) or _encoded(row, next(vectors)) for index, row in enumerate(rows)]
        return entries, {"tokenize": tokenized, "queue": answer.queue, "compute": answer.compute}


def _validate(request: pb.EncodeRequest, settings: EncoderSettings, priority: Priority) -> Wanted:
    """Check everything that needs no tokenizer; `priority` is that of a caller who set none."""
    texts = list(request.texts)
    _check_texts(texts, settings)
    role = _role(request.input_type)
    for field, value, known in (
        ("overlong", request.overlong, OVERLONGS),
        ("vector_format", request.vector_format, FORMATS),
        ("priority", request.priority, PRIORITIES),
    ):
        if value not in known:
            raise InvalidRequest("ENUM_UNKNOWN", f"no such value: {value}", field=field)
    chosen = PRIORITIES[request.priority]
    return Wanted(
        texts=texts,
        role=role,
        truncate=OVERLONGS[request.overlong],
        packed=FORMATS[request.vector_format],
        priority=priority if chosen is None else chosen,
    )


def _role(value: pb.InputType.ValueType) -> Role:
    if value not in ROLES:
        raise InvalidRequest(
            "INPUT_TYPE_REQUIRED", "INPUT_TYPE_QUERY or INPUT_TYPE_PASSAGE is required", field="input_type"
        )
    return ROLES[value]


def _splitting(request: pb.SplitRequest, limit: int) -> Splitting:
    """Read how texts are to be split; `limit` is the model's."""
    if request.HasField("max_tokens"):
        if not MIN_SPLIT_TOKENS <= request.max_tokens <= limit:
            message = f"{request.max_tokens}, {MIN_SPLIT_TOKENS} to {limit} is wanted"
            raise InvalidRequest("OUT_OF_RANGE", message, field="max_tokens")
        limit = request.max_tokens
    overlap = request.overlap_tokens if request.HasField("overlap_tokens") else limit // OVERLAP_SHARE
    if not 0 <= overlap <= limit // 2:
        raise InvalidRequest("OUT_OF_RANGE", f"{overlap}, 0 to {limit // 2} is wanted", field="overlap_tokens")
    return Splitting(max_tokens=limit, overlap_tokens=overlap, per_sentence=request.per_sentence)


def _check_texts(texts: Sequence[str], settings: EncoderSettings) -> None:
    if not texts:
        raise InvalidRequest("TEXTS_EMPTY", "at least one text is required", field="texts")
    if len(texts) > settings.max_texts:
        message = f"{len(texts)} texts, the limit is {settings.max_texts}"
        raise InvalidRequest("TOO_MANY_TEXTS", message, field="texts")
    for index, text in enumerate(texts):
        require_size(text, settings.max_text_bytes, field=f"texts[{index}]")


def _encoded(row: Tokens, vector: FloatArray) -> Encoded:
    packed = vector.astype("<f4", copy=False).tobytes()
    return Encoded(packed=packed, token_count=len(row), truncated=row.truncated)


def _embedding(one: Encoded, *, packed: bool, cached: bool) -> pb.Embedding:
    if packed:
        embedding = pb.Embedding(packed=one.packed)
    else:
        # On the wire, floats are what bytes under the same field number are: one copy, and no Python float per value.
        embedding = pb.Embedding.FromString(BytesValue(value=one.packed).SerializeToString())
    embedding.token_count, embedding.truncated, embedding.cached = one.token_count, one.truncated, cached
    return embedding


def _split_text(text: str, pieces: Sequence[Piece]) -> pb.SplitText:
    """Write passages in bytes, which every language counts alike."""
    passages = []
    at = begin = 0  # the beginning of the latest piece, in characters and in bytes; the next begins no earlier
    for piece in pieces:
        begin += _byte_count(text[at : piece.begin])
        at = piece.begin
        end = begin + _byte_count(text[at : piece.end])
        passages.append(pb.Passage(begin=begin, end=end, token_count=piece.token_count))
    return pb.SplitText(passages=passages)


def _byte_count(text: str) -> int:
    return len(text.encode("utf-8", "replace"))
