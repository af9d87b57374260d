"""A gateway and a reranker that answer by words in common, over real gRPC, and a small data set to go with them."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import numpy as np
from fakes import shared_words, word_vector
from google.protobuf.duration_pb2 import Duration

from evaluation.datasets.model import Dataset, Document, Question, dataset
from evaluation.phases.corpus import index, prepare
from evaluation.phases.rerank import rerank
from evaluation.phases.retrieve import retrieve
from evaluation.plan import Plan
from evaluation.records import Candidates, Configuration, Reranked
from evaluation.system import System, open_system
from retrieval.gateway.v1 import gateway_pb2, gateway_pb2_grpc
from retrieval.reranker.v1 import reranker_pb2, reranker_pb2_grpc

ENCODER = "sha256:" + "e" * 64
OTHER_ENCODER = "sha256:" + "d" * 64
RERANKER = "sha256:" + "7" * 64
OTHER_RERANKER = "sha256:" + "8" * 64
MAX_TOKENS = 512
MILLISECOND = Duration(nanos=1_000_000)


class FakeSystem(
    gateway_pb2_grpc.GatewayServiceServicer,
    gateway_pb2_grpc.DocumentServiceServicer,
    gateway_pb2_grpc.CollectionServiceServicer,
    reranker_pb2_grpc.RerankerServiceServicer,
):
    """Both servers in one: collections are dictionaries, a token is a word."""

    def __init__(self) -> None:
        self.encoder, self.reranker = ENCODER, RERANKER
        self.collections: dict[str, dict[int | str, str]] = {}
        self.searches: list[gateway_pb2.SearchRequest] = []
        self.reranks: list[reranker_pb2.RerankRequest] = []
        self.failing: dict[str, grpc.StatusCode] = {}
        """Query to the code that its search and its reranking end with."""
        self.lost = 0
        """Documents that a collection silently loses."""
        self.reports_truncation = True
        self.finds_in_empty = False

    # --- gateway ---

    async def CreateCollection(self, request: Any, context: Any) -> Any:  # noqa: N802
        self.collections[request.collection] = {}
        return gateway_pb2.CreateCollectionResponse(collection=self._described(request.collection))

    async def DescribeCollection(self, request: Any, context: Any) -> Any:  # noqa: N802
        if request.collection not in self.collections:
            await context.abort(grpc.StatusCode.NOT_FOUND, "no such collection")
        return gateway_pb2.DescribeCollectionResponse(collection=self._described(request.collection))

    async def ListCollections(self, request: Any, context: Any) -> Any:  # noqa: N802
        return gateway_pb2.ListCollectionsResponse(collections=map(self._described, sorted(self.collections)))

    async def DropCollection(self, request: Any, context: Any) -> Any:  # noqa: N802
        del self.collections[request.collection]
        return gateway_pb2.DropCollectionResponse()

    async def UpsertDocuments(self, requests: Any, context: Any) -> AsyncIterator[Any]:  # noqa: N802
        async for request in requests:
            if any(not document.text.strip() for document in request.documents):
                failure = gateway_pb2.Failure(code=3, reason="TEXT_BLANK", message="documents[0].text: is blank")
                yield gateway_pb2.UpsertDocumentsResponse(sequence=request.sequence, failure=failure)
                continue
            kept = self.collections[request.collection]
            kept.update({_identifier(document.id): document.text for document in request.documents})
            long = sum(len(document.text.split()) > MAX_TOKENS for document in request.documents)
            stored = gateway_pb2.Stored(stored_count=len(request.documents), truncated_count=long)
            yield gateway_pb2.UpsertDocumentsResponse(sequence=request.sequence, stored=stored)

    async def Search(self, request: Any, context: Any) -> Any:  # noqa: N802
        self.searches.append(request)
        await self._fail(request.query, context)
        query = word_vector(request.query)
        texts = self.collections[request.collection]
        scored = sorted(((float(query @ word_vector(text)), name) for name, text in texts.items()), key=_by_score)
        pool = [
            gateway_pb2.Hit(id=_message(name), retrieval_rank=rank, retrieval_score=score, text=texts[name])
            for rank, (score, name) in enumerate(scored[: request.pool_size or 20], start=1)
        ]
        if request.rerank != gateway_pb2.RERANK_OFF:
            for hit in pool:
                hit.logit = shared_words(request.query, hit.text)
        hits = sorted(pool, key=lambda hit: (-hit.logit, str(_identifier(hit.id))))
        if self.finds_in_empty and not texts:
            hits = [gateway_pb2.Hit(id=_message("ghost"), text="boo")]
        stage = gateway_pb2.StageTiming(total=MILLISECOND, compute=MILLISECOND)
        return gateway_pb2.SearchResponse(
            hits=hits[: request.top_k or 5],
            pool=pool if request.include_pool else [],
            timings=gateway_pb2.Timings(encode=stage, search=stage, rerank=stage),
            provenance=gateway_pb2.Provenance(
                encoder=gateway_pb2.ModelReference(id="fake-encoder", digest=self.encoder, device="cpu"),
                reranker=gateway_pb2.ModelReference(id="fake-reranker", digest=self.reranker, device="cpu"),
                collection=request.collection,
                store="memory",
            ),
        )

    # --- reranker ---

    async def GetModel(self, request: Any, context: Any) -> Any:  # noqa: N802
        model = reranker_pb2.ModelReference(id="fake-reranker", digest=self.reranker, precision="fp32", device="cpu")
        return reranker_pb2.GetModelResponse(model=model, limits=reranker_pb2.Limits(max_tokens=MAX_TOKENS))

    async def Rerank(self, request: Any, context: Any) -> Any:  # noqa: N802
        self.reranks.append(request)
        await self._fail(request.query, context)
        ranked = [
            reranker_pb2.RankedCandidate(
                id=candidate.id,
                index=index,
                logit=shared_words(request.query, candidate.text),
                truncated=self.reports_truncation and len(candidate.text.split()) > MAX_TOKENS,
                token_count=min(len(candidate.text.split()), MAX_TOKENS),
            )
            for index, candidate in enumerate(request.candidates)
        ]
        cut = sum(one.truncated for one in ranked)
        return reranker_pb2.RerankResponse(
            ranked=sorted(ranked, key=lambda one: (-one.logit, one.id)),
            truncated=cut > 0,
            truncated_count=cut,
            timings=reranker_pb2.Timings(total=MILLISECOND, compute=MILLISECOND),
        )

    async def _fail(self, query: str, context: Any) -> None:
        if query in self.failing:
            await context.abort(self.failing[query], "as told")

    def _described(self, name: str) -> gateway_pb2.Collection:
        count = len(self.collections[name])
        return gateway_pb2.Collection(
            name=name,
            document_count=max(0, count - self.lost),
            dimension=16,
            encoder=gateway_pb2.ModelReference(id="fake-encoder", digest=self.encoder),
        )


@asynccontextmanager
async def opened(fake: FakeSystem) -> AsyncIterator[System]:
    """Serve a fake and open it as any system is opened."""
    server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
    gateway_pb2_grpc.add_GatewayServiceServicer_to_server(fake, server)
    gateway_pb2_grpc.add_DocumentServiceServicer_to_server(fake, server)
    gateway_pb2_grpc.add_CollectionServiceServicer_to_server(fake, server)
    reranker_pb2_grpc.add_RerankerServiceServicer_to_server(fake, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        async with open_system(f"127.0.0.1:{port}", f"127.0.0.1:{port}") as system:
            yield system
    finally:
        await server.stop(0)


def small_dataset(name: str = "small", texts: Mapping[int | str, str] | None = None) -> Dataset:
    """Six documents of words; a test question for each of three, one with no answer, and the same for dev."""
    found = texts or {
        1: "red apple pie",
        2: "green apple tree",
        3: "blue sea and sky",
        "four": "a sea of red sand",
        5: "sky scraper",
        6: "nothing of the kind",
    }
    documents = [Document(id=key, text=text, title=f"title {key}") for key, text in found.items()]
    asked = [
        ("q1", "red apple pie", {1: 1}),
        ("q2", "sea of red", {"four": 2, 3: 1}),
        ("q3", "tree", {2: 1}),
        ("q4", "xylophone", {}),
    ]
    questions = [
        Question(id=f"{prefix}{key}", query=query, judged=judged, split=split, lang="en")
        for prefix, split in (("", "test"), ("dev-", "dev"))
        for key, query, judged in asked
    ]
    return dataset(name, documents, questions)


def small_plan(outputs: Path, data: Dataset | None = None, **configuration: Any) -> Plan:
    """A run of the small data set with pools of four."""
    return Plan(
        dataset=data or small_dataset(),
        outputs=outputs,
        configuration=Configuration(**{"pool_size": 4, **configuration}),
    )


async def until_reranked(plan: Plan, system: System) -> tuple[Candidates, Reranked]:
    """Run every phase up to `rerank`."""
    prepare(plan)
    await index(plan, system)
    return await retrieve(plan, system), await rerank(plan.outputs, system)


def _by_score(scored: tuple[float, int | str]) -> tuple[float, str]:
    return -np.round(scored[0], 6), str(scored[1])


def _identifier(message: gateway_pb2.DocumentId) -> int | str:
    return message.number if message.WhichOneof("kind") == "number" else message.text


def _message(identifier: int | str) -> gateway_pb2.DocumentId:
    if isinstance(identifier, int):
        return gateway_pb2.DocumentId(number=identifier)
    return gateway_pb2.DocumentId(text=identifier)
