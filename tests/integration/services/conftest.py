"""Bundles that the tests of the services share."""

import pytest
from factories import tiny_encoder_bundle, tiny_reranker_bundle

from serving.bundle import Bundle


@pytest.fixture(scope="session")
def tiny_encoder(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """An encoder of 8 dimensions and 64 tokens, to which "poison" is NaN and "crash" an exception."""
    return tiny_encoder_bundle(tmp_path_factory.mktemp("encoder"), poison=True, crash=True)


@pytest.fixture(scope="session")
def tiny_reranker(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """A reranker of 64 tokens, to which "poison" is NaN and "crash" an exception."""
    return tiny_reranker_bundle(tmp_path_factory.mktemp("reranker"), poison=True, crash=True)
