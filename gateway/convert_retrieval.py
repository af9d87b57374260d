"""How a pool is to be filled, and how it was: messages to records and back."""

import math
from collections.abc import Sequence
from typing import Any

from gateway.convert_values import MAX_LANGUAGE_CHARACTERS, check_range, check_text, known, payload_key
from gateway.diversity import Diversity
from gateway.fusion import Fusion, FusionMethod, ListRank
from gateway.pool import MAX_CANDIDATES, ListReport
from gateway.search_query import MAX_DEPTH, HypotheticalUse, Retrieval, RetrievalMode, SynonymUse
from gateway.synonyms import MAX_VARIANTS
from retrieval.gateway.v1 import gateway_pb2 as pb
from serving.errors import InvalidRequest
from serving.timing import to_duration

MAX_TEXTS = 8
"""Alternatives, and hypothetical passages: each costs a vector and a list."""
MAX_RRF_K = 10_000
MAX_GROUP_SIZE = 200

MODES = {
    pb.RETRIEVAL_MODE_UNSPECIFIED: RetrievalMode.DENSE,
    pb.RETRIEVAL_MODE_DENSE: RetrievalMode.DENSE,
    pb.RETRIEVAL_MODE_LEXICAL: RetrievalMode.LEXICAL,
    pb.RETRIEVAL_MODE_HYBRID: RetrievalMode.HYBRID,
}
METHODS = {
    pb.FUSION_METHOD_UNSPECIFIED: FusionMethod.WEIGHTED,
    pb.FUSION_METHOD_RRF: FusionMethod.RRF,
    pb.FUSION_METHOD_WEIGHTED: FusionMethod.WEIGHTED,
    pb.FUSION_METHOD_DBSF: FusionMethod.DBSF,
}
HYPOTHETICAL_USES = {
    pb.HYPOTHETICAL_USE_UNSPECIFIED: HypotheticalUse.AVERAGE,
    pb.HYPOTHETICAL_USE_AVERAGE: HypotheticalUse.AVERAGE,
    pb.HYPOTHETICAL_USE_FUSE: HypotheticalUse.FUSE,
}
SYNONYM_USES = {
    pb.SYNONYM_USE_UNSPECIFIED: SynonymUse.NONE,
    pb.SYNONYM_USE_NONE: SynonymUse.NONE,
    pb.SYNONYM_USE_LEXICAL: SynonymUse.LEXICAL,
    pb.SYNONYM_USE_DENSE: SynonymUse.DENSE,
    pb.SYNONYM_USE_BOTH: SynonymUse.BOTH,
}


def retrieval_of(message: pb.Retrieval, query: str, pool_size: int) -> Retrieval:
    """Read what fills a pool.

    Raises:
        InvalidRequest: A field is out of range, contradicts the mode or repeats a text, or the lists are too many for
            their depth.
    """
    depth = message.depth if message.HasField("depth") else None
    if depth is not None:
        check_range(depth, MAX_DEPTH, "retrieval.depth", smallest=pool_size)
    if len(message.language) > MAX_LANGUAGE_CHARACTERS:
        wanted = f"{len(message.language)} characters, at most {MAX_LANGUAGE_CHARACTERS} are allowed"
        raise InvalidRequest("OUT_OF_RANGE", wanted, field="retrieval.language")
    retrieval = Retrieval(
        mode=known(MODES, message.mode, "retrieval.mode"),
        fusion=_fusion_of(message.fusion),
        alternatives=_texts_of(message.alternatives, "retrieval.alternatives"),
        hypothetical_passages=_texts_of(message.hypothetical_passages, "retrieval.hypothetical_passages"),
        hypothetical_use=known(HYPOTHETICAL_USES, message.hypothetical_use, "retrieval.hypothetical_use"),
        write=message.write_hypothetical_passages,
        synonyms=known(SYNONYM_USES, message.synonyms, "retrieval.synonyms"),
        language=message.language,
        depth=depth,
    )
    _check_mode(retrieval)
    _check_different(query, retrieval.alternatives)
    if depth is not None and _most_lists(retrieval) * depth > MAX_CANDIDATES:
        wanted = f"{depth} of up to {_most_lists(retrieval)} lists, at most {MAX_CANDIDATES} documents are read in all"
        raise InvalidRequest("TOO_MANY_CANDIDATES", wanted, field="retrieval.depth")
    return retrieval


def diversity_of(message: pb.Diversity) -> Diversity:
    """Read what keeps a pool from being full of likes.

    Raises:
        InvalidRequest: A field is out of range, or there is a `group_size` without `group_by`.
    """
    size = message.group_size if message.HasField("group_size") else Diversity().group_size
    check_range(size, MAX_GROUP_SIZE, "diversity.group_size")
    if message.group_by:
        payload_key(message.group_by, "diversity.group_by")
        if not all(message.group_by.split(".")):
            raise InvalidRequest("KEY", "a part between dots is empty", field="diversity.group_by")
    elif message.HasField("group_size"):
        raise InvalidRequest("GROUP_BY_REQUIRED", "only with group_by", field="diversity.group_size")
    return Diversity(
        mmr_lambda=_share(message, "mmr_lambda", None, "diversity"), group_by=message.group_by, group_size=size
    )


def rank_messages(lists: Sequence[ListRank]) -> Sequence[pb.ListRank]:
    """Write where each list had a hit."""
    return [pb.ListRank(list=one.list, rank=one.rank, score=one.score) for one in lists]


def report_messages(lists: Sequence[ListReport]) -> Sequence[pb.RetrievedList]:
    """Write which lists filled a pool."""
    return [
        pb.RetrievedList(name=one.name, candidate_count=one.candidate_count, compute=to_duration(one.compute))
        for one in lists
    ]


def _fusion_of(message: pb.Fusion) -> Fusion:
    rrf_k = message.rrf_k if message.HasField("rrf_k") else Fusion().rrf_k
    check_range(rrf_k, MAX_RRF_K, "retrieval.fusion.rrf_k")
    return Fusion(
        method=known(METHODS, message.method, "retrieval.fusion.method"),
        rrf_k=rrf_k,
        dense_weight=_share(message, "dense_weight", Fusion().dense_weight, "retrieval.fusion"),
    )


def _check_mode(retrieval: Retrieval) -> None:
    """Refuse what the mode would silently not do."""
    passages = retrieval.hypothetical_passages or retrieval.write
    if passages and not retrieval.dense:
        field = "hypothetical_passages" if retrieval.hypothetical_passages else "write_hypothetical_passages"
        raise InvalidRequest("MODE_MISMATCH", "not under RETRIEVAL_MODE_LEXICAL", field=f"retrieval.{field}")
    if (retrieval.synonyms.words and not retrieval.lexical) or (retrieval.synonyms.vectors and not retrieval.dense):
        raise InvalidRequest("MODE_MISMATCH", "the mode has no such lists", field="retrieval.synonyms")


def _check_different(query: str, alternatives: Sequence[str]) -> None:
    """Refuse what would be a list of its own and weigh twice."""
    seen = {query.strip()}
    for index, text in enumerate(alternatives):
        if text.strip() in seen:
            message = "the same as the query or an alternative before it"
            raise InvalidRequest("TEXT_DUPLICATE", message, field=f"retrieval.alternatives[{index}]")
        seen.add(text.strip())


def _most_lists(retrieval: Retrieval) -> int:
    """Count the lists that there are at most: how many synonyms and written passages there will be shows later."""
    phrasings = 1 + len(retrieval.alternatives)
    fused = retrieval.hypothetical_use is HypotheticalUse.FUSE
    passages = len(retrieval.hypothetical_passages) + (MAX_TEXTS if retrieval.write else 0)
    variants = MAX_VARIANTS if retrieval.synonyms.vectors else 0
    dense = phrasings + variants + (passages if fused else 0)
    return dense * retrieval.dense + phrasings * retrieval.lexical


def _texts_of(texts: Sequence[str], field: str) -> Sequence[str]:
    if len(texts) > MAX_TEXTS:
        raise InvalidRequest("TEXT_COUNT", f"{len(texts)}, at most {MAX_TEXTS} are allowed", field=field)
    for index, text in enumerate(texts):
        check_text(text, f"{field}[{index}]")
    return tuple(texts)


def _share(message: Any, name: str, default: Any, field: str) -> Any:
    """Read a number from 0 to 1."""
    if not message.HasField(name):
        return default
    value = getattr(message, name)
    if not (math.isfinite(value) and 0 <= value <= 1):
        raise InvalidRequest("OUT_OF_RANGE", f"{value}, 0 to 1 is wanted", field=f"{field}.{name}")
    return value
