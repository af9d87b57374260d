"""A gateway with words, fusion, synonyms and sentences beside its vectors, for the study of what fills the pool."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import grpc
from evaluation_fakes import FakeSystem, opened
from fakes import FakeEncoder, serve, shared_words, word_vector

from evaluation.first_stage.exact import with_encoder
from evaluation.first_stage.records import (
    DenseWeight,
    Member,
    OptionPool,
    ReadText,
    RetrievalPools,
    StudiedQuestion,
    UsedOption,
)
from evaluation.plan import Plan
from evaluation.records import FailedSearch
from evaluation.system import System
from retrieval.gateway.v1 import gateway_pb2 as pb

PLAIN_BYTES, WORD_BYTES = 1_000, 500


class FakeFirstStage(FakeSystem):
    """Searches as it is asked: "lexical" is words in common, a weighted sum is one, every other fusion is even."""

    def __init__(self, synonyms: Mapping[str, Mapping[str, str]] | None = None) -> None:
        super().__init__()
        self.parameters: dict[str, pb.CollectionParameters] = {}
        self.parents: dict[str, dict[int | str, tuple[int | str, str]]] = {}
        """Collection to part to the id and the text of its parent."""
        self.aliases: dict[str, str] = {}
        self.synonyms = synonyms or {}
        """Name that a search uses to word to what stands for it."""

    async def CreateCollection(self, request: Any, context: Any) -> Any:  # noqa: N802
        self.parameters[request.collection] = request.parameters
        return await super().CreateCollection(request, context)

    async def AssignAlias(self, request: Any, context: Any) -> Any:  # noqa: N802
        self.aliases[request.alias] = request.collection
        return pb.AssignAliasResponse()

    async def UpsertDocuments(self, requests: Any, context: Any) -> AsyncIterator[Any]:  # noqa: N802
        async for request in requests:
            parts = [part for document in request.documents for part in self._parts(request, document)]
            self.collections[request.collection].update(parts)
            stored = pb.Stored(stored_count=len(request.documents))
            yield pb.UpsertDocumentsResponse(sequence=request.sequence, stored=stored)

    def _parts(self, request: Any, document: pb.Document) -> list[tuple[int | str, str]]:
        name = _identifier(document.id)
        sentences = document.text.split(". ")
        if not request.part_per_sentence or len(sentences) == 1:
            return [(name, document.text)]
        parts: list[tuple[int | str, str]] = [(f"{name}#{place}", text) for place, text in enumerate(sentences, 1)]
        known = self.parents.setdefault(request.collection, {})
        known.update({part: (name, document.text) for part, _ in parts})
        return parts

    async def ExportCollection(self, request: Any, context: Any) -> AsyncIterator[Any]:  # noqa: N802
        yield pb.ExportCollectionResponse(
            header=pb.CollectionHeader(collection=request.collection, parameters=self.parameters[request.collection])
        )
        documents = [
            pb.StoredDocument(
                document=pb.Document(id=_message(name), text=text), vector=word_vector(text).astype("<f4").tobytes()
            )
            for name, text in self.collections[request.collection].items()
        ]
        yield pb.ExportCollectionResponse(documents=pb.DocumentBatch(documents=documents))
        yield pb.ExportCollectionResponse(footer=pb.CollectionFooter(document_count=len(documents)))

    async def ImportCollection(self, requests: Any, context: Any) -> Any:  # noqa: N802
        name = ""
        async for request in requests:
            if request.HasField("start"):
                name = request.start.collection
                self.parameters[name], self.collections[name] = request.start.parameters, {}
            for stored in request.documents.documents:
                self.collections[name][_identifier(stored.document.id)] = stored.document.text
        return pb.ImportCollectionResponse(collection=self._described(name))

    async def Search(self, request: Any, context: Any) -> Any:  # noqa: N802
        self.searches.append(request)
        await self._fail(request.query, context)
        kept = self.aliases.get(request.collection, request.collection)
        words, variants = self._with_synonyms(request)
        by_words = request.retrieval.mode in {pb.RETRIEVAL_MODE_LEXICAL, pb.RETRIEVAL_MODE_HYBRID}
        if by_words and not self.parameters[kept].HasField("lexical"):
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, "no words")
        texts = self.collections[kept]
        scored = {name: _score(request.retrieval, words, variants, text) for name, text in texts.items()}
        order = sorted(
            (name for name in texts if scored[name] > 0), key=lambda name: (-round(scored[name], 6), str(name))
        )
        return self._answer(request, kept, order, scored, len(variants) - 1)

    def _with_synonyms(self, request: Any) -> tuple[str, list[str]]:
        """Return what is looked for by words, and the phrasings that are encoded."""
        found = self.synonyms.get(request.collection, {})
        matching = [word for word in request.query.split() if word in found]
        use = request.retrieval.synonyms
        words, variants = request.query, [request.query]
        if use in {pb.SYNONYM_USE_LEXICAL, pb.SYNONYM_USE_BOTH}:
            words = " ".join([request.query, *(found[word] for word in matching)])
        if use in {pb.SYNONYM_USE_DENSE, pb.SYNONYM_USE_BOTH}:
            variants += [request.query.replace(word, found[word]) for word in matching]
        return words, variants

    def _answer(self, request: Any, kept: str, order: list[int | str], scored: Any, variant_count: int) -> Any:
        hits, seen = list[pb.Hit](), set[int | str]()
        for name in order:
            parent, whole = self.parents.get(kept, {}).get(name, (name, self.collections[kept][name]))
            if parent in seen:
                continue
            seen.add(parent)
            hit = pb.Hit(id=_message(name), retrieval_rank=len(hits) + 1, retrieval_score=scored[name])
            hit.text = self.collections[kept][name]
            if parent != name:
                hit.parent.CopyFrom(_message(parent))
            if request.return_parent:
                hit.id.CopyFrom(_message(parent))
                hit.text = whole
            hits.append(hit)
        names = ["dense", *(f"dense.synonym.{number}" for number in range(1, variant_count + 1))]
        stage = pb.StageTiming(total={"nanos": 2_000_000})
        return pb.SearchResponse(
            pool=hits[: request.pool_size],
            timings=pb.Timings(encode=stage, search=stage),
            provenance=pb.Provenance(
                encoder=pb.ModelReference(id="fake-encoder", digest=self.encoder, device="cpu"),
                store="memory",
                lists=[pb.RetrievedList(name=name) for name in names],
            ),
        )

    def _described(self, name: str) -> pb.Collection:
        found = super()._described(name)
        lexical = self.parameters[name].HasField("lexical")
        found.disk_bytes = PLAIN_BYTES + (WORD_BYTES if lexical else 0)
        return found


@asynccontextmanager
async def opened_with_encoder(fake: FakeFirstStage) -> AsyncIterator[System]:
    """Serve a fake and an encoder beside it."""
    async with (
        opened(fake) as system,
        serve(FakeEncoder()) as port,
        with_encoder(system, f"127.0.0.1:{port}") as whole,
    ):
        yield whole


def pool(*documents: int, ms: float | None = None) -> OptionPool:
    """A pool of whole documents, best first."""
    return OptionPool(members=tuple(Member(document=one, read=one, score=0.0) for one in documents), first_stage_ms=ms)


def studied(
    name: str, relevant: tuple[int, ...], pools: Mapping[str, OptionPool], logits: Mapping[int | str, float]
) -> StudiedQuestion:
    """A question with its pools and the logits of what was read."""
    texts = tuple(ReadText(id=read, logit=logit, truncated=False) for read, logit in logits.items())
    return StudiedQuestion(
        id=name, split="test", lang="en", query=f"query of {name}", relevant=relevant, pools=pools, texts=texts
    )


def frozen_pools(
    plan: Plan,
    questions: tuple[StudiedQuestion, ...],
    failed: tuple[FailedSearch, ...] = (),
    dense_weight: DenseWeight | None = None,
) -> RetrievalPools:
    """The file of pools that those questions make."""
    names = list(dict.fromkeys(name for question in questions for name in question.pools))
    return RetrievalPools(
        provenance=plan.provenance(),
        options=tuple(UsedOption(name=name, collection="c", disk_bytes=1_024) for name in names),
        left_out={},
        plain_disk_bytes=512,
        dense_weight=dense_weight,
        questions=questions,
        failed=failed,
    )


def _score(retrieval: pb.Retrieval, words: str, variants: list[str], text: str) -> float:
    by_words = shared_words(words, text) + 0.5
    by_vectors = max(float(word_vector(one) @ word_vector(text)) for one in variants)
    match retrieval.mode:
        case pb.RETRIEVAL_MODE_LEXICAL:
            return by_words
        case pb.RETRIEVAL_MODE_HYBRID:
            even = retrieval.fusion.method != pb.FUSION_METHOD_WEIGHTED
            weight = 0.5 if even else retrieval.fusion.dense_weight
            return weight * by_vectors + (1 - weight) * by_words
        case _:
            return by_vectors


def _identifier(message: pb.DocumentId) -> int | str:
    return message.number if message.WhichOneof("kind") == "number" else message.text


def _message(identifier: int | str) -> pb.DocumentId:
    return pb.DocumentId(number=identifier) if isinstance(identifier, int) else pb.DocumentId(text=identifier)
