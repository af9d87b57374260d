"""The study from end to end: collections, the weight, the pools, the figures."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from evaluation.datasets.model import DEV, TEST, Question
from evaluation.figures import DocumentId
from evaluation.files import write
from evaluation.first_stage import collections, weight
from evaluation.first_stage.baselines import FloatArray, cosines, lsa
from evaluation.first_stage.collections import Collections, Words
from evaluation.first_stage.exact import query_vectors
from evaluation.first_stage.figures import figures
from evaluation.first_stage.freeze import Computed, Freezer, Searched, run_of
from evaluation.first_stage.options import EXACT, WEIGHTED, WEIGHTS, Kept, Option, chosen, weighted
from evaluation.first_stage.records import POOLS, STUDY, DenseWeight, RetrievalPools, RetrievalStudy, UsedOption
from evaluation.phases.rerank import reranked_provenance, served_reranker
from evaluation.phases.retrieve import Progress, silent
from evaluation.plan import Plan
from evaluation.records import Provenance
from evaluation.system import CALL_TIMEOUT_S, System, model_used
from retrieval.gateway.v1 import gateway_pb2 as pb
from serving.errors import Misconfigured


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What a study is to compare."""

    options: Sequence[str] = ()
    """By name; none are all."""
    words: Words
    synonyms: bool = False
    """Whether the gateway has synonyms of the collection `collections.name_of(plan, Kept.WORDS)`."""


async def study_retrieval(plan: Plan, system: System, wanted: Wanted, *, progress: Progress = silent) -> RetrievalStudy:
    """Make the collections, freeze and rerank the pools, write both files.

    Args:
        plan: The run; its collection's name is where those of the study begin.
        system: The servers.
        wanted: What to compare.
        progress: Told after every test question.

    Raises:
        InvalidRequest: There is no such option.
        Misconfigured: There is no answerable test question, or a document was refused.
    """
    run = _Run(plan=plan, system=system, wanted=wanted, left_out={})
    found = await run.freeze(progress)
    write(found, plan.outputs / POOLS)
    study = figures(found)
    write(study, plan.outputs / STUDY)
    return study


@dataclass(frozen=True, slots=True, kw_only=True)
class _Run:
    plan: Plan
    system: System
    wanted: Wanted
    left_out: dict[str, str]
    """Filled as options turn out not to be possible."""

    async def freeze(self, progress: Progress) -> RetrievalPools:
        questions = self._answerable(TEST)
        if not questions:
            raise Misconfigured("NOTHING_TO_STUDY", f"{self.plan.dataset.name} has no answerable test question")
        options, words = self._possible()
        kept = {Kept.PLAIN: None, Kept.WORDS: words[Kept.WORDS]}
        kept |= {option.kept: words[option.kept] for option in options if option.kept is not None}
        made = await collections.make(self.plan, self.system, kept)
        dense_weight = await self._weight(options, made)
        searched = self._all_searched(options, dense_weight, made)
        computed = await self._computed(options, questions, made)
        freezer = Freezer(
            system=self.system,
            searched=searched,
            computed=computed,
            passages={document.id: self.plan.passage(document) for document in self.plan.dataset.documents},
            truncation=self.plan.configuration.truncation,
        )
        found, failed = await freezer.freeze(questions, progress)
        return RetrievalPools(
            provenance=await self._provenance(made),
            options=(
                *(_used(one.option, made) for one in searched),
                *(UsedOption(name=one.option.name, collection="", disk_bytes=0) for one in computed),
            ),
            left_out=self.left_out,
            plain_disk_bytes=made.disk_bytes[Kept.PLAIN],
            dense_weight=dense_weight,
            questions=found,
            failed=failed,
        )

    def _answerable(self, split: str) -> list[Question]:
        return [question for question in self.plan.dataset.questions if question.split == split and question.judged]

    def _possible(self) -> tuple[Sequence[Option], Mapping[Kept, pb.LexicalParameters | None]]:
        """Leave out what cannot be had here; return how words are indexed beside it."""
        words = {kept: None if kept in {Kept.PLAIN, Kept.SENTENCES} else self.wanted.words(kept) for kept in Kept}
        for option in (options := chosen(self.wanted.options)):
            if option.synonyms and not self.wanted.synonyms:
                self.left_out[option.name] = "there are no synonyms"
            if option.kept in {Kept.NO_FUNCTION_WORDS, Kept.STEMS} and words[option.kept] is None:
                self.left_out[option.name] = "the questions are not of one language that has a list of them"
        return [option for option in options if option.name not in self.left_out], words

    def _all_searched(
        self, options: Sequence[Option], dense_weight: DenseWeight | None, made: Collections
    ) -> list[Searched]:
        """Put the weight in its place."""
        filled = (
            weighted(dense_weight.value) if dense_weight is not None and option.name == WEIGHTED else option
            for option in options
        )
        return [self._searched(option, made) for option in filled if option.kept is not None]

    def _searched(self, option: Option, made: Collections) -> Searched:
        size = self.plan.configuration.pool_size
        return Searched(option=option, collection=made.names[option.kept or Kept.WORDS], size=size)

    async def _weight(self, options: Sequence[Option], made: Collections) -> DenseWeight | None:
        if WEIGHTED not in {option.name for option in options}:
            return None
        questions = self._answerable(DEV)
        runs = {
            value: await run_of(self.system, self._searched(weighted(value), made), questions)
            for value in (WEIGHTS if questions else ())
        }
        return weight.choose(runs, {question.id: question.judged for question in questions})

    async def _computed(
        self, options: Sequence[Option], questions: Sequence[Question], made: Collections
    ) -> list[Computed]:
        """Compute what no server is asked for; what cannot be computed is left out."""
        found: list[Computed] = []
        for option in options:
            if option.kept is not None:
                continue
            try:
                scores, ids = await self._scores(option, [question.query for question in questions], made)
            except Misconfigured as error:
                self.left_out[option.name] = error.message
                continue
            found.append(Computed(option=option, scores=scores, ids=ids, size=self.plan.configuration.pool_size))
        return found

    async def _scores(
        self, option: Option, queries: Sequence[str], made: Collections
    ) -> tuple[FloatArray, Sequence[DocumentId]]:
        """Return the scores [queries, documents] and the ids of the documents."""
        if option.name == EXACT:
            return await self._exact(queries, made), made.vectors.ids
        documents = self.plan.dataset.documents
        texts = [self.plan.passage(document) for document in documents]
        found = lsa(texts, queries, option.component_count, self.plan.configuration.seed)
        return found, [document.id for document in documents]

    async def _exact(self, queries: Sequence[str], made: Collections) -> FloatArray:
        vectors = await query_vectors(self.system, queries)
        if vectors is None:
            raise Misconfigured("ENCODER_UNKNOWN", "the encoder is not named")
        return cosines(vectors, made.vectors.rows)

    async def _provenance(self, made: Collections) -> Provenance:
        probe = pb.SearchRequest(query="?", collection=made.names[Kept.WORDS], pool_size=1, rerank=pb.RERANK_OFF)
        answer = await self.system.search.Search(probe, timeout=CALL_TIMEOUT_S)
        before = self.plan.provenance().model_copy(
            update={
                "collection": made.names[Kept.WORDS],
                "store": answer.provenance.store,
                "encoder": model_used(answer.provenance.encoder),
            }
        )
        reranker = await served_reranker(self.system)
        return reranked_provenance(before, reranker, self.plan.configuration.truncation)


def _used(option: Option, made: Collections) -> UsedOption:
    kept = option.kept or Kept.WORDS
    return UsedOption(name=option.name, collection=made.names[kept], disk_bytes=made.disk_bytes[kept])
