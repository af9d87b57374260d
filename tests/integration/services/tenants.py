"""A gateway that several callers share: an operator, two tenants in one collection, and one with its own."""

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
from rigs import COLLECTION, Rig, document, open_rig

from gateway.stores.edge import EdgeStore
from retrieval.gateway.v1 import gateway_pb2 as pb
from retrieval.gateway.v1.gateway_pb2_grpc import CollectionServiceStub, DocumentServiceStub, GatewayServiceStub
from serving.keyed import KeyedChannel
from serving.keys import create_key

SCOPES = f"""
[scopes.operator]
collections = {{ "*" = "manage" }}

[scopes.acme]
collections = {{ {COLLECTION} = "write", acme-view = "read" }}
documents = {{ tenant = "acme" }}
id_prefix = "acme/"

[scopes.beta]
collections = {{ {COLLECTION} = "write" }}
documents = {{ tenant = "beta" }}
id_prefix = "beta/"

[scopes.own]
collections = {{ "own-*" = "manage", {COLLECTION} = "read" }}

[scopes.nothing]
collections = {{ "nothing-here" = "read" }}
"""
NAMES = ("operator", "acme", "beta", "own", "nothing")


@dataclass(frozen=True)
class Client:
    """What one caller has."""

    search: GatewayServiceStub
    documents: DocumentServiceStub
    collections: CollectionServiceStub

    @classmethod
    def of(cls, channel: grpc.aio.Channel, key: str) -> "Client":
        keyed: Any = KeyedChannel(channel, lambda: key)
        return cls(GatewayServiceStub(keyed), DocumentServiceStub(keyed), CollectionServiceStub(keyed))

    async def find(self, query: str = "secret alpha", **fields: Any) -> list[str]:
        """Search, and return the ids of all hits."""
        request = pb.SearchRequest(
            **{"query": query, "collection": COLLECTION, "pool_size": 200, "top_k": 200, **fields}
        )
        return [hit.id.text or str(hit.id.number) for hit in (await self.search.Search(request, timeout=20)).hits]

    async def upsert(self, *documents: pb.Document, **fields: Any) -> pb.UpsertDocumentsResponse:
        """Send one message of documents."""
        message = pb.UpsertDocumentsRequest(**{"collection": COLLECTION, "documents": documents, **fields})
        (answer,) = [one async for one in self.documents.UpsertDocuments(iter([message]), timeout=20)]
        return answer

    async def get(self, *ids: int | str) -> list[pb.Document]:
        """Read documents by id."""
        request = pb.GetDocumentsRequest(collection=COLLECTION, ids=map(id_of, ids))
        return list((await self.documents.GetDocuments(request, timeout=20)).documents)

    async def delete(self, *ids: int | str) -> None:
        """Delete documents by id."""
        await self.documents.DeleteDocuments(pb.DeleteDocumentsRequest(collection=COLLECTION, ids=map(id_of, ids)))

    async def export(self, collection: str = COLLECTION) -> list[pb.ExportCollectionResponse]:
        """Read a whole collection."""
        call = self.collections.ExportCollection(pb.ExportCollectionRequest(collection=collection), timeout=20)
        return [one async for one in call]


@dataclass(frozen=True)
class House:
    """The gateway, and everybody who calls it."""

    rig: Rig
    operator: Client
    acme: Client
    beta: Client
    own: Client
    nothing: Client
    stranger: Client

    def passages(self) -> list[str]:
        """Return every text that the reranker was shown."""
        return [one.text for request in self.rig.reranker.requests for one in request.candidates]


@asynccontextmanager
async def open_house(directory: Path) -> AsyncIterator[House]:
    """Open a gateway with an embedded store and the callers above, and fill the shared collection."""
    keys = {name: create_key() for name in NAMES}
    lines = [
        f'{name} = {{ id = "{made.id}", sha256 = "{made.sha256}", scope = "{name}" }}' for name, made in keys.items()
    ]
    (directory / "keys").write_text("[keys]\n" + "\n".join(lines) + SCOPES)
    async with AsyncExitStack() as stack:
        store = await stack.enter_async_context(await EdgeStore.open(directory / "store", in_process=True))
        rig = await stack.enter_async_context(open_rig(store, api_keys_file=directory / "keys"))
        clients = {name: Client.of(rig.channel, made.key) for name, made in keys.items()}
        house = House(rig=rig, stranger=Client.of(rig.channel, create_key().key), **clients)
        lexical = pb.CollectionParameters(lexical=pb.LexicalParameters(average_words=4))
        await house.operator.collections.CreateCollection(
            pb.CreateCollectionRequest(collection=COLLECTION, parameters=lexical)
        )
        for tenant in ("acme", "beta"):
            await house.operator.upsert(*(_document(tenant, number) for number in range(5)))
        shared = document("shared", "secret alpha of both", tenant=["acme", "beta"])
        await house.operator.upsert(shared, document(7, "secret alpha of nobody"))
        yield house


def id_of(identifier: int | str) -> pb.DocumentId:
    """Make an id."""
    return pb.DocumentId(number=identifier) if isinstance(identifier, int) else pb.DocumentId(text=identifier)


def own(tenant: str, *, shared: bool = True) -> Sequence[str]:
    """Return the ids of what a tenant can see at the start."""
    return [*(f"{tenant}/{number}" for number in range(5)), *(["shared"] if shared else [])]


def _document(tenant: str, number: int) -> pb.Document:
    return document(f"{tenant}/{number}", f"secret alpha {tenant}only {number}", tenant=tenant, number=number)
