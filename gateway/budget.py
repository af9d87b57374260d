"""How the time of a search is split over its stages. Pure: seconds in, seconds out."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class StageCaps:
    """Most seconds per stage, and what the stages leave of the caller's time to those after them."""

    encode: float
    search: float
    rerank: float
    write: float = 2.0
    margin: float = 0.0
    """Seconds that every stage leaves for the answer."""
    search_share: float = 0.0
    """Part of a search's time that encoding leaves to the vector search."""
    rerank_share: float = 0.0
    """Part of a search's time that the first stage leaves to the reranker where there is no answer without it."""
    write_share: float = 0.5
    """Most of a search's time that writing hypothetical passages may take."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reserves:
    """How many seconds before the end of a search's time a stage has to be done."""

    write: float
    encode: float
    search: float
    rerank: float


def reserves(left_s: float, caps: StageCaps, *, rerank_required: bool) -> Reserves:
    """Split what is left of a caller's time.

    Time that only a reranking that may be left out could use is not kept from the first stage: without a pool there is
    no answer at all, and late candidates in retrieval order are better than none.

    Args:
        left_s: Seconds until the caller's deadline.
        caps: The shares, and the margin.
        rerank_required: Whether the reranker has to have its share.
    """
    usable = max(0.0, left_s - caps.margin)
    search = caps.margin + (usable * caps.rerank_share if rerank_required else 0.0)
    encode = search + usable * caps.search_share
    write = max(encode, caps.margin + usable * (1 - caps.write_share))
    return Reserves(write=write, encode=encode, search=search, rerank=caps.margin)
