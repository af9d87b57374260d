"""The gateway: one call of encoder, vector store and reranker."""
