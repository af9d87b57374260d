"""What a search answered, as the commands use it: plain values out of the messages."""

from typing import Any

from google.protobuf import json_format
from google.protobuf.duration_pb2 import Duration

from retrieval.gateway.v1 import gateway_pb2 as pb

STAGES = ("write", "encode", "search", "rerank")
PARTS = ("queue", "tokenize", "compute", "network", "unaccounted")


def milliseconds(duration: Duration) -> float:
    """Return a duration in milliseconds."""
    return duration.seconds * 1e3 + duration.nanos / 1e6


def identifier(message: pb.DocumentId) -> int | str:
    """Return a document's id."""
    return message.number if message.WhichOneof("kind") == "number" else message.text


def shares(timings: pb.Timings) -> dict[str, float]:
    """Return the milliseconds of every stage and of the gateway's own work; they add up to the total."""
    spans = {stage: milliseconds(getattr(timings, stage).total) for stage in STAGES}
    if not spans["write"]:
        del spans["write"]  # few searches have one
    return spans | {"other": milliseconds(timings.other)}


def parts(timing: pb.StageTiming) -> dict[str, float]:
    """Return the milliseconds of every part of a stage; they add up to its total."""
    spans = {part: milliseconds(getattr(timing, part)) for part in PARTS}
    del spans["network" if spans["unaccounted"] else "unaccounted"]  # no stage has both
    return spans


def response_document(response: pb.SearchResponse) -> dict[str, Any]:
    """Return what `--json` prints of one answer."""
    return {
        "hits": [_hit(hit) for hit in response.hits],
        "timings_ms": _timings(response.timings),
        "provenance": json_format.MessageToDict(response.provenance, preserving_proto_field_name=True),
        "degradation": _degradation(response),
    }


def _hit(hit: pb.Hit) -> dict[str, Any]:
    scored = {
        name: getattr(hit, name) if hit.HasField(name) else None for name in ("rerank_rank", "logit", "probability")
    }
    return {
        "id": identifier(hit.id),
        "parent": identifier(hit.parent) if hit.HasField("parent") else None,
        "part": hit.part or None,
        "part_count": hit.part_count or None,
        "retrieval_rank": hit.retrieval_rank,
        "retrieval_score": hit.retrieval_score,
        **scored,
        "truncated": hit.truncated,
        "text_missing": hit.text_missing,
        "text": hit.text if hit.HasField("text") else None,
        "payload": json_format.MessageToDict(hit.payload),
        "lists": [{"list": one.list, "rank": one.rank, "score": one.score} for one in hit.lists],
    }


def _timings(timings: pb.Timings) -> dict[str, Any]:
    stages = {
        stage: {part: milliseconds(getattr(getattr(timings, stage), part)) for part in ("total", *PARTS)}
        for stage in STAGES
    }
    plain = {name: milliseconds(getattr(timings, name)) for name in ("total", "dense", "other")}
    return {**plain, **stages}


def _degradation(response: pb.SearchResponse) -> dict[str, Any] | None:
    if not response.HasField("degradation"):
        return None
    names = ("rerank_skipped_reason", "text_missing_count", "stage", "reason", "reranked_count", "pool_count")
    return {name: getattr(response.degradation, name) for name in (*names, "write_skipped_reason")}


def shortfalls(degradation: pb.Degradation) -> list[str]:
    """Say in words what writer and reranker left undone."""
    said = []
    if degradation.write_skipped_reason:
        said.append(f"no hypothetical passages: {degradation.write_skipped_reason}")
    if degradation.rerank_skipped_reason:
        said.append(f"not reranked: {degradation.rerank_skipped_reason}")
    elif degradation.reason:
        counts = f"{degradation.reranked_count} of {degradation.pool_count}"
        said.append(f"reranked in part: {counts} candidates, {degradation.reason}")
    return said
