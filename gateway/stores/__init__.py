"""Adapters of the vector store port."""
