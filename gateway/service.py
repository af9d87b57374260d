"""The RPC of searching: validate, run the pipeline, convert; the time is told on success and on failure alike."""

from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias

import grpc

from gateway.convert import hit_bytes, response_of, search_of, timings_message, wants_text
from gateway.metrics import SearchMetrics
from gateway.pipeline import Pipeline, Result
from gateway.search_query import RerankMode, SearchQuery
from gateway.settings import GatewaySettings
from gateway.timings import SearchTimer
from retrieval.gateway.v1 import gateway_pb2 as pb
from retrieval.gateway.v1 import gateway_pb2_grpc as pb_grpc
from serving.errors import InvalidRequest
from serving.metrics import ServerMetrics
from serving.server import deadline_of

SERVICE = pb.DESCRIPTOR.services_by_name["GatewayService"].full_name

Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"


class GatewayService(pb_grpc.GatewayServiceServicer):
    """Implements retrieval.gateway.v1.GatewayService.

    Args:
        pipeline: The two stages.
        settings: Limits and the default deadline.
        metrics: Where stages and what was found are recorded.
    """

    def __init__(self, pipeline: Pipeline, settings: GatewaySettings, metrics: ServerMetrics) -> None:
        self._pipeline = pipeline
        self._settings = settings
        self._metrics = metrics
        self._searches = SearchMetrics(metrics)

    async def Search(self, request: pb.SearchRequest, context: Context) -> pb.SearchResponse:  # noqa: N802
        """Answer one query."""
        with self._timed(context) as timer:
            search = search_of(request)
            deadline = deadline_of(context, self._settings.default_deadline_s)
            retrieved = await self._pipeline.retrieve(search, deadline, timer)
            self._check_size(request, search, retrieved)
            result = await self._pipeline.rerank(search, retrieved, deadline, timer)
            response = self._response(request, result)
            response.timings.CopyFrom(timings_message(timer.stop()))
            self._searches.observe(search, result)
            return response

    async def SearchStream(  # noqa: N802
        self, request: pb.SearchStreamRequest, context: Context
    ) -> AsyncIterator[pb.SearchStreamResponse]:
        """Answer one query with the pool first."""
        with self._timed(context) as timer:
            search = search_of(request.request)
            deadline = deadline_of(context, self._settings.default_deadline_s)
            retrieved = await self._pipeline.retrieve(search, deadline, timer)
            self._check_size(request.request, search, retrieved)
            first = self._response(request.request, retrieved)
            first.timings.CopyFrom(timings_message(timer.read()))
            yield pb.SearchStreamResponse(retrieved=first)
            result = await self._pipeline.rerank(search, retrieved, deadline, timer)
            last = self._response(request.request, result)
            last.timings.CopyFrom(timings_message(timer.stop()))
            self._searches.observe(search, result)
            yield pb.SearchStreamResponse(final=last)

    def _response(self, request: pb.SearchRequest, result: Result) -> pb.SearchResponse:
        return response_of(result, request, store=self._pipeline.first.store.name)

    def _check_size(self, request: pb.SearchRequest, search: SearchQuery, retrieved: Result) -> None:
        """Refuse, before the expensive stage, an answer that the caller's client might not accept."""
        with_text = wants_text(request)
        pool = [hit_bytes(hit, with_text=with_text) for hit in retrieved.pool]
        # Any of the pool may come out on top once it is reranked.
        hits = pool if search.rerank is RerankMode.OFF else sorted(pool, reverse=True)
        size = sum(hits[: search.top_k]) + (sum(pool) if request.include_pool else 0)
        if size > self._settings.max_answer_bytes:
            limit = self._settings.max_answer_bytes
            message = f"the answer may have {size} bytes, the limit is {limit}; ask for fewer hits, no pool or no text"
            raise InvalidRequest("ANSWER_TOO_LARGE", message, field="top_k")

    @contextmanager
    def _timed(self, context: Context) -> Iterator[SearchTimer]:
        timer = SearchTimer()
        try:
            yield timer
        finally:
            time = timer.stop()
            context.set_trailing_metadata(time.trailers())
            self._metrics.observe_stages(time.spans())
