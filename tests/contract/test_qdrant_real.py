"""The contract on a real Qdrant server, where QDRANT_URL names its gRPC port (and QDRANT_API_KEY opens it).

The collections that the suites make are deleted, and no other collection of ours may be there.
"""

import contextlib
import os

import pytest
from contract.collection_suite import CollectionSuite
from contract.lexical_suite import LexicalSuite
from contract.vector_store_suite import VectorStoreSuite, soon

from gateway.stores.qdrant import QdrantStore
from gateway.stores.qdrant_target import QdrantTarget
from serving.errors import InvalidRequest, NotFound

if "QDRANT_URL" not in os.environ:
    pytest.skip("QDRANT_URL names no real Qdrant", allow_module_level=True)

NAMES = ("docs", "zeta", "Alpha.1", "b", "docs-2", "current", "nothing", "g0", "g1", "g2", "g3", "g4")


@pytest.fixture
async def store():
    """A store without the collections that the suites make."""
    target = QdrantTarget.parse(os.environ["QDRANT_URL"], api_key=os.environ.get("QDRANT_API_KEY"))
    async with await QdrantStore.open(target) as opened:
        await _clear(opened)
        yield opened
        await _clear(opened)


class TestRealQdrant(VectorStoreSuite):
    """The suite on a real server."""


class TestRealQdrantWords(LexicalSuite):
    """The suite of words and several queries on a real server."""


class TestRealQdrantCollections(CollectionSuite):
    """The suite of whole collections on a real server."""


async def _clear(store: QdrantStore) -> None:
    for name in NAMES:
        with contextlib.suppress(NotFound, InvalidRequest):
            await store.drop(name, with_aliases=True, deadline=soon())
