"""The contract on a real Qdrant server, where QDRANT_URL names its gRPC port (and QDRANT_API_KEY opens it).

Its collections `docs`, `zeta`, `Alpha.1` and `b` are deleted, and no other collection of ours may be there.
"""

import contextlib
import os

import pytest
from contract.vector_store_suite import VectorStoreSuite, soon

from gateway.stores.qdrant import QdrantStore
from gateway.stores.qdrant_target import QdrantTarget
from serving.errors import NotFound

if "QDRANT_URL" not in os.environ:
    pytest.skip("QDRANT_URL names no real Qdrant", allow_module_level=True)

NAMES = ("docs", "zeta", "Alpha.1", "b")


class TestRealQdrant(VectorStoreSuite):
    """The suite on a real server."""

    @pytest.fixture
    async def store(self):
        """A store without the collections that the suite makes."""
        target = QdrantTarget.parse(os.environ["QDRANT_URL"], api_key=os.environ.get("QDRANT_API_KEY"))
        async with await QdrantStore.open(target) as opened:
            await _clear(opened)
            yield opened
            await _clear(opened)


async def _clear(store: QdrantStore) -> None:
    for name in NAMES:
        with contextlib.suppress(NotFound):
            await store.drop(name, deadline=soon())
