"""One reranking per question, of everything that any option found, and every option's order out of it.

A cross-encoder's logit of a question and a text does not depend on the other texts, so the order of an option's pool is
the order of all texts with the others left out.
"""

from collections.abc import Mapping, Sequence

from evaluation.figures import DocumentId
from evaluation.first_stage.records import OptionPool, ReadText
from evaluation.phases.rerank import rerank_pool
from evaluation.records import FrozenCandidate
from evaluation.system import System

TEXTS_PER_CALL = 200
"""Below the reranker's limit of candidates per request, 256 by default."""


async def rerank_union(
    system: System, query: str, texts: Mapping[DocumentId, str], truncation: str
) -> tuple[ReadText, ...]:
    """Rerank texts, a call at a time; highest logit first, equal ones by id.

    Args:
        system: The servers.
        query: The question.
        texts: What is read, by the id under which it is kept.
        truncation: A key of `evaluation.phases.rerank.POLICIES`.

    Raises:
        QuestionFailed: A call failed for this question alone.
    """
    candidates = [
        FrozenCandidate(id=read, rank=rank, score=0.0, text=text) for rank, (read, text) in enumerate(texts.items(), 1)
    ]
    found: list[ReadText] = []
    for first in range(0, len(candidates), TEXTS_PER_CALL):
        answer = await rerank_pool(system, "", query, candidates[first : first + TEXTS_PER_CALL], truncation)
        found += [ReadText(id=pair.id, logit=pair.score, truncated=pair.truncated) for pair in answer.pairs]
    return tuple(sorted(found, key=lambda text: _order(text.logit, text.id)))


def ranking(pool: OptionPool) -> tuple[DocumentId, ...]:
    """Return an option's own order."""
    return tuple(member.document for member in pool.members)


def reranking(pool: OptionPool, texts: Sequence[ReadText]) -> tuple[DocumentId, ...]:
    """Return the reranker's order of an option's pool: highest logit of what was read first, equal ones by id.

    Args:
        pool: What the option found.
        texts: The reranking of at least all that this pool reads.
    """
    logits = {text.id: text.logit for text in texts}
    order = sorted(pool.members, key=lambda member: _order(logits[member.read], member.document))
    return tuple(member.document for member in order)


def _order(logit: float, identifier: DocumentId) -> tuple[float, bool, int, str]:
    """Sort as the reranker does: numbers before other ids, and as numbers."""
    text = str(identifier)
    return (-logit, not text.isdecimal(), int(text) if text.isdecimal() else 0, text)
