"""The fake of the vector store keeps the contract of the real ones."""

import pytest
from contract.collection_suite import CollectionSuite
from contract.lexical_suite import LexicalSuite
from contract.vector_store_suite import VectorStoreSuite
from store_fake import MemoryStore


@pytest.fixture
async def store():
    """An empty store in memory."""
    made = MemoryStore()
    yield made
    await made.aclose()


class TestMemoryStore(VectorStoreSuite):
    """The suite on the fake."""


class TestMemoryWords(LexicalSuite):
    """The suite of words and several queries on the fake."""


class TestMemoryCollections(CollectionSuite):
    """The suite of whole collections on the fake."""
