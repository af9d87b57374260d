"""The reranker service: query and candidates to an order."""
