"""The study of what fills the pool: every way to find candidates on the same questions, before and after reranking."""
