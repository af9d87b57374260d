"""Protobuf messages to the gateway's own records and back; every check that needs no backend is here."""

from collections.abc import Sequence
from typing import Any

from gateway.convert_filters import filter_of
from gateway.convert_retrieval import diversity_of, rank_messages, report_messages, retrieval_of
from gateway.convert_values import (
    check_range,
    check_text,
    collection_name,
    id_message,
    id_of,
    known,
    model_message,
    payload_of,
    struct_of,
)
from gateway.indexing import Overlong, Splitting
from gateway.pipeline import Hit, Result
from gateway.ports import Document, DocumentId, Part
from gateway.search_query import RerankMode, SearchQuery
from gateway.timings import SearchTime, StageTime
from retrieval.gateway.v1 import gateway_pb2 as pb
from serving.batching import Priority
from serving.errors import InvalidRequest
from serving.timing import to_duration

DEFAULT_POOL_SIZE = 20
MAX_POOL_SIZE = 200
DEFAULT_TOP_K = 5
MAX_DOCUMENTS = 256
MAX_PAYLOAD_FIELDS = 256
LIST_RANK_BYTES = 16
"""Of a list's rank and score in a hit, beside its name."""

RERANK_MODES = {
    pb.RERANK_UNSPECIFIED: RerankMode.REQUIRED,
    pb.RERANK_REQUIRED: RerankMode.REQUIRED,
    pb.RERANK_BEST_EFFORT: RerankMode.BEST_EFFORT,
    pb.RERANK_OFF: RerankMode.OFF,
}

PRIORITIES = {
    pb.PRIORITY_UNSPECIFIED: Priority.INTERACTIVE,
    pb.PRIORITY_INTERACTIVE: Priority.INTERACTIVE,
    pb.PRIORITY_BULK: Priority.BULK,
}

OVERLONGS = {
    pb.OVERLONG_UNSPECIFIED: Overlong.REJECT,
    pb.OVERLONG_REJECT: Overlong.REJECT,
    pb.OVERLONG_TRUNCATE: Overlong.TRUNCATE,
    pb.OVERLONG_SPLIT: Overlong.SPLIT,
}

# --- requests ------------------------------------------------------------------------------------------------------


def search_of(request: pb.SearchRequest) -> SearchQuery:
    """Read a search.

    Raises:
        InvalidRequest: A field is out of range.
    """
    check_text(request.query, "query")
    pool_size = request.pool_size if request.HasField("pool_size") else DEFAULT_POOL_SIZE
    check_range(pool_size, MAX_POOL_SIZE, "pool_size")
    top_k = request.top_k if request.HasField("top_k") else min(DEFAULT_TOP_K, pool_size)
    check_range(top_k, pool_size, "top_k")
    if len(request.payload_fields) > MAX_PAYLOAD_FIELDS:
        wanted = f"{len(request.payload_fields)}, at most {MAX_PAYLOAD_FIELDS} are allowed"
        raise InvalidRequest("FIELD_COUNT", wanted, field="payload_fields")
    rerank = known(RERANK_MODES, request.rerank, "rerank")
    priority = known(PRIORITIES, request.priority, "priority")
    for flag in ("return_parent", "rerank_parent"):
        if getattr(request, flag) and not request.fold_to_parent:
            raise InvalidRequest("FOLD_REQUIRED", "only with fold_to_parent", field=flag)
    return SearchQuery(
        query=request.query,
        collection=collection_name(request.collection),
        pool_size=pool_size,
        top_k=top_k,
        filter=filter_of(request.filter) if request.HasField("filter") else None,
        rerank=rerank,
        payload_fields=tuple(request.payload_fields),
        priority=priority,
        retrieval=retrieval_of(request.retrieval, request.query, pool_size),
        diversity=diversity_of(request.diversity),
        fold_to_parent=request.fold_to_parent,
        return_parent=request.return_parent,
        rerank_parent=request.rerank_parent,
    )


def documents_of(messages: Sequence[pb.Document]) -> list[Document]:
    """Read documents that are to be stored."""
    if not 1 <= len(messages) <= MAX_DOCUMENTS:
        raise InvalidRequest("DOCUMENT_COUNT", f"{len(messages)}, 1 to {MAX_DOCUMENTS} are wanted", field="documents")
    documents = [_document_of(message, f"documents[{index}]") for index, message in enumerate(messages)]
    seen: set[DocumentId] = set()
    for index, document in enumerate(documents):
        if document.id in seen:
            raise InvalidRequest("ID_DUPLICATE", "the id occurs twice in this message", field=f"documents[{index}].id")
        seen.add(document.id)
    return documents


def overlong_of(message: pb.UpsertDocumentsRequest) -> Overlong:
    """Read what is to become of texts over the token limit."""
    overlong = known(OVERLONGS, message.overlong, "overlong")
    if message.overlong == pb.OVERLONG_UNSPECIFIED and message.truncate:
        return Overlong.TRUNCATE
    return overlong


def splitting_of(message: pb.UpsertDocumentsRequest, overlong: Overlong) -> Splitting:
    """Read into what parts texts are split; how many tokens a part may have is the encoder's to say.

    Raises:
        InvalidRequest: `SPLIT_REQUIRED`, it is said and nothing is to be split.
    """
    max_tokens = message.part_tokens if message.HasField("part_tokens") else None
    for field, said in (("part_tokens", max_tokens is not None), ("part_per_sentence", message.part_per_sentence)):
        if said and overlong is not Overlong.SPLIT:
            raise InvalidRequest("SPLIT_REQUIRED", "only with OVERLONG_SPLIT", field=field)
    return Splitting(max_tokens=max_tokens, per_sentence=message.part_per_sentence)


def _document_of(message: pb.Document, field: str) -> Document:
    check_text(message.text, f"{field}.text")
    return Document(
        id=id_of(message.id, f"{field}.id"),
        text=message.text,
        payload=payload_of(message.payload, f"{field}.payload"),
    )


# --- answers -------------------------------------------------------------------------------------------------------


def wants_text(request: pb.SearchRequest) -> bool:
    """Tell whether hits carry their text: yes unless the caller said no."""
    return request.include_text if request.HasField("include_text") else True


def response_of(result: Result, request: pb.SearchRequest, *, store: str) -> pb.SearchResponse:
    """Write the answer to a search, but for its timings."""
    with_text = wants_text(request)
    response = pb.SearchResponse(
        hits=[_hit(hit, with_text=with_text) for hit in result.hits],
        pool=[_hit(hit, with_text=with_text) for hit in result.pool] if request.include_pool else (),
        provenance=pb.Provenance(
            encoder=model_message(result.encoder) if result.encoder else None,
            reranker=model_message(result.reranker) if result.reranker else None,
            collection=request.collection,
            store=store,
            lists=report_messages(result.lists),
            written_passage_count=result.written_count,
        ),
    )
    if result.shortfall or result.search_shortfall or result.text_missing_count or result.write_skipped_reason:
        response.degradation.CopyFrom(_degradation(result))
    return response


def _degradation(result: Result) -> pb.Degradation:
    degradation = pb.Degradation(
        text_missing_count=result.text_missing_count, write_skipped_reason=result.write_skipped_reason
    )
    if result.shortfall or result.search_shortfall:
        degradation.rerank_skipped_reason = result.skipped_reason
        degradation.stage = "rerank" if result.shortfall else "search"
        degradation.reason = result.shortfall or result.search_shortfall
        degradation.reranked_count = result.reranked_count
        degradation.pool_count = len(result.pool)
    return degradation


def hit_bytes(hit: Hit, *, with_text: bool) -> int:
    """Estimate how large a hit is in an answer: its text, its payload, and where each list had it."""
    candidate = hit.candidate
    text = len(candidate.text.encode("utf-8", "replace")) if with_text and candidate.text else 0
    payload = struct_of(candidate.payload).ByteSize() if candidate.payload else 0
    return text + payload + sum(len(one.list) + LIST_RANK_BYTES for one in hit.lists)


def document_message(document: Document) -> pb.Document:
    """Write a document; the whole text of a split one goes into exports only."""
    return pb.Document(
        id=id_message(document.id),
        text=document.text,
        payload=struct_of(document.payload),
        **_part_fields(document.part),
    )


def _hit(hit: Hit, *, with_text: bool) -> pb.Hit:
    candidate, scored = hit.candidate, hit.scored
    return pb.Hit(
        id=id_message(candidate.id),
        retrieval_rank=hit.retrieval_rank,
        retrieval_score=candidate.score,
        rerank_rank=hit.rerank_rank,
        logit=scored.logit if scored else None,
        probability=scored.probability if scored else None,
        truncated=scored.truncated if scored else False,
        text_missing=hit.text_missing,
        text=candidate.text if with_text else None,
        payload=struct_of(candidate.payload) if candidate.payload else None,
        lists=rank_messages(hit.lists),
        **_part_fields(candidate.part),
    )


def _part_fields(part: Part | None) -> dict[str, Any]:
    if part is None:
        return {}
    return {"parent": id_message(part.parent), "part": part.number, "part_count": part.count}


def timings_message(time: SearchTime) -> pb.Timings:
    """Write where the time went."""
    return pb.Timings(
        total=to_duration(time.total),
        dense=to_duration(time.dense),
        encode=_stage(time.encode),
        search=_stage(time.search),
        rerank=_stage(time.rerank),
        other=to_duration(time.other),
        write=_stage(time.write),
    )


def _stage(stage: StageTime) -> pb.StageTiming:
    return pb.StageTiming(**{part: to_duration(nanoseconds) for part, nanoseconds in stage.parts().items()})
