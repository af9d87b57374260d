"""Every option's pool of every question, frozen; and one reranking of all of a question's texts."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from evaluation import pools
from evaluation.datasets.model import Question
from evaluation.figures import DocumentId
from evaluation.first_stage.baselines import FloatArray, top
from evaluation.first_stage.options import Option
from evaluation.first_stage.records import Member, OptionPool, StudiedQuestion
from evaluation.first_stage.union import rerank_union
from evaluation.measures import Ranking
from evaluation.phases.retrieve import Progress, silent
from evaluation.records import FailedSearch
from evaluation.system import CALL_TIMEOUT_S, QuestionFailed, System, document_id, milliseconds, timed
from retrieval.gateway.v1 import gateway_pb2 as pb


@dataclass(frozen=True, slots=True, kw_only=True)
class Searched:
    """An option that the gateway is asked for."""

    option: Option
    collection: str
    size: int

    async def answer(self, system: System, question: Question) -> pb.SearchResponse:
        """Search.

        Raises:
            QuestionFailed: It failed for this question alone.
        """
        request = self.option.request(question.query, question.lang, collection=self.collection, size=self.size)
        found, _ = await timed("gateway", system.search.Search(request, timeout=CALL_TIMEOUT_S))
        return found

    def member(self, hit: pb.Hit) -> Member:
        """Say which document a hit stands for, and what of it is read."""
        found = document_id(hit.id)
        document = document_id(hit.parent) if hit.HasField("parent") else found
        read = document if self.option.rerank_parent else found
        return Member(document=document, read=read, score=hit.retrieval_score)

    def ranked(self, answer: pb.SearchResponse) -> Ranking:
        """Return the documents of an answer's pool in its order."""
        return tuple(self.member(hit).document for hit in answer.pool)


@dataclass(frozen=True, slots=True, kw_only=True)
class Computed:
    """An option that is computed here."""

    option: Option
    scores: FloatArray
    """float64 [questions, documents]."""
    ids: Sequence[DocumentId]
    """Of the documents."""
    size: int

    def pool(self, number: int) -> OptionPool:
        """Return the pool of the question at that place."""
        found = top(self.scores[number], self.ids, self.size)
        return OptionPool(members=tuple(Member(document=one, read=one, score=score) for one, score in found))


@dataclass(frozen=True, slots=True, kw_only=True)
class Freezer:
    """Freezes one question after the other."""

    system: System
    searched: Sequence[Searched]
    computed: Sequence[Computed]
    passages: Mapping[DocumentId, str]
    """Whole texts, for what is computed here."""
    truncation: str

    async def freeze(
        self, questions: Sequence[Question], progress: Progress = silent
    ) -> tuple[tuple[StudiedQuestion, ...], tuple[FailedSearch, ...]]:
        """Freeze every question, after a warm-up of every search that is not counted; return those that failed apart.

        Args:
            questions: In the order of the rows of what is computed.
            progress: Told after every question.
        """
        for one in self.searched:
            with suppress(QuestionFailed):
                await one.answer(self.system, questions[0])
        found: list[StudiedQuestion] = []
        failed: list[FailedSearch] = []
        for number, question in enumerate(questions):
            try:
                found.append(await self._question(number, question))
            except QuestionFailed as error:
                failed.append(FailedSearch(**pools.asked(question), error=str(error)))
            progress(number + 1, len(questions))
        return tuple(found), tuple(failed)

    async def _question(self, number: int, question: Question) -> StudiedQuestion:
        filled: dict[str, OptionPool] = {}
        texts: dict[DocumentId, str] = {}
        for one in self.searched:
            answer = await one.answer(self.system, question)
            members = tuple(one.member(hit) for hit in answer.pool)
            stages = milliseconds(answer.timings.encode.total) + milliseconds(answer.timings.search.total)
            filled[one.option.name] = OptionPool(members=members, first_stage_ms=stages)
            texts |= {member.read: hit.text for member, hit in zip(members, answer.pool, strict=True)}
        for other in self.computed:
            pool = filled[other.option.name] = other.pool(number)
            texts |= {member.read: self.passages[member.document] for member in pool.members}
        read = await rerank_union(self.system, question.query, texts, self.truncation)
        return StudiedQuestion(**pools.asked(question), pools=filled, texts=read)


async def run_of(system: System, searched: Searched, questions: Sequence[Question]) -> Mapping[str, Ranking]:
    """Search questions without reranking; one that fails is missing."""
    run: dict[str, Ranking] = {}
    for question in questions:
        with suppress(QuestionFailed):
            answer = await searched.answer(system, question)
            run[question.id] = searched.ranked(answer)
    return run
