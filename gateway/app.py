"""The gateway, put together."""

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager

import grpc

from gateway import collections, documents, encoder_client, reranker_client, service
from gateway.backends import open_backend
from gateway.breaker import BreakerPolicy
from gateway.budget import StageCaps
from gateway.guard import Guards
from gateway.indexing import Indexer
from gateway.pipeline import Pipeline
from gateway.ports import Encoder, Reranker, VectorStore, Writer
from gateway.retrieval import FirstStage
from gateway.scoped_store import ScopedStore
from gateway.scopes import authorize, scopes_of
from gateway.settings import GatewaySettings
from gateway.synonyms import SynonymBook
from retrieval.gateway.v1 import gateway_pb2_grpc as pb_grpc
from serving.auth import Access
from serving.keyed import watch_key
from serving.metrics import ServerMetrics
from serving.process import Fatal
from serving.server import RunningServer, open_server

ACCESS = Access(read_scopes=scopes_of, authorize=authorize)
"""What the gateway makes of the scopes in its file of keys."""


@asynccontextmanager
async def open_app(settings: GatewaySettings, on_fatal: Fatal = lambda _: None) -> AsyncIterator[RunningServer]:  # noqa: ARG001
    """Open the gateway; leaving drains it.

    It serves as soon as its store is open: a model server that is not there yet is that call's UNAVAILABLE, and is
    found when it comes.

    Raises:
        Misconfigured: An operator has to act.
    """
    async with AsyncExitStack() as stack:
        encoder = await stack.enter_async_context(
            open_backend(settings, settings.encoder_target, encoder_client.SERVICE)
        )
        reranker = await stack.enter_async_context(
            open_backend(settings, settings.reranker_target, reranker_client.SERVICE)
        )
        store = ScopedStore(await _open_store(settings, stack))
        metrics = ServerMetrics("gateway")
        guards = Guards(_policy(settings), metrics)
        services = _services(
            encoder_client.EncoderClient(encoder, guards.guard(encoder_client.PEER)),
            reranker_client.RerankerClient(reranker, guards.guard(reranker_client.PEER)),
            store,
            settings,
            metrics,
            await _open_writer(settings, stack),
        )
        running = await stack.enter_async_context(open_server(settings, metrics, services, ACCESS))
        stack.push_async_callback(running.drain, delay_s=settings.drain_delay_s, grace_s=settings.grace_s)
        await running.set_serving(serving=True)
        yield running


async def _open_store(settings: GatewaySettings, stack: AsyncExitStack) -> VectorStore:
    """Open the store that the settings name; only its engine is imported."""
    if settings.store == "qdrant":
        from gateway.stores.qdrant_settings import open_qdrant  # noqa: PLC0415 - an extra, and half a second

        return await stack.enter_async_context(await open_qdrant(settings))
    from gateway.stores.edge import EdgeStore  # noqa: PLC0415 - as above

    return await stack.enter_async_context(await EdgeStore.open(settings.store_path))


async def _open_writer(settings: GatewaySettings, stack: AsyncExitStack) -> Writer | None:
    """Open the writer of hypothetical passages, where the settings name one."""
    if settings.writer_url is None:
        return None
    from gateway.writer import ChatWriter  # noqa: PLC0415 - few have one, and it takes 0.1 s

    file = settings.writer_api_key_file
    return await stack.enter_async_context(
        ChatWriter(
            settings.writer_url,
            settings.writer_model,
            passage_count=settings.writer_passage_count,
            max_tokens=settings.writer_max_tokens,
            key=None if file is None else watch_key(file).current,
        )
    )


def _services(
    encoder: Encoder,
    reranker: Reranker,
    store: VectorStore,
    settings: GatewaySettings,
    metrics: ServerMetrics,
    writer: Writer | None = None,
) -> dict[str, Callable[[grpc.aio.Server], None]]:
    """Make full service name -> what adds it to a server."""
    pipeline = Pipeline(
        first=FirstStage(
            encoder=encoder,
            store=store,
            caps=_caps(settings),
            writer=writer,
            synonyms=SynonymBook(settings.synonyms_path).of,
        ),
        reranker=reranker,
    )
    search = service.GatewayService(pipeline, settings, metrics)
    document = documents.DocumentService(Indexer(encoder=encoder, store=store), store, settings)
    collection = collections.CollectionService(encoder, store, settings)
    return {
        service.SERVICE: lambda server: pb_grpc.add_GatewayServiceServicer_to_server(search, server),
        documents.SERVICE: lambda server: pb_grpc.add_DocumentServiceServicer_to_server(document, server),
        collections.SERVICE: lambda server: pb_grpc.add_CollectionServiceServicer_to_server(collection, server),
    }


def _caps(settings: GatewaySettings) -> StageCaps:
    return StageCaps(
        encode=settings.encode_cap_s,
        search=settings.search_cap_s,
        rerank=settings.rerank_cap_s,
        write=settings.writer_cap_s,
        margin=settings.answer_margin_s,
        search_share=settings.search_share,
        rerank_share=settings.rerank_share,
    )


def _policy(settings: GatewaySettings) -> BreakerPolicy:
    return BreakerPolicy(
        failures=settings.breaker_failures,
        max_pause_s=settings.breaker_max_pause_s,
        patience_s=settings.breaker_patience_s,
    )
