"""Retrieval quality and latency on frozen candidate pools; speaks to the servers by gRPC alone."""
