"""The fake of the vector store keeps the contract of the real ones."""

import pytest
from contract.vector_store_suite import VectorStoreSuite
from store_fake import MemoryStore


class TestMemoryStore(VectorStoreSuite):
    """The suite on the fake."""

    @pytest.fixture
    async def store(self):
        """An empty store in memory."""
        made = MemoryStore()
        yield made
        await made.aclose()
