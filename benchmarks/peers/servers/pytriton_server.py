"""The library behind NVIDIA's PyTriton, with Triton's dynamic batching across requests."""

import socket
from typing import Any

import library
import numpy as np
from pytriton.decorators import batch
from pytriton.model_config import DynamicBatcher, ModelConfig, Tensor
from pytriton.triton import Triton, TritonConfig

ROWS = 64
WAIT_US = 5_000

given = library.options()
compute = library.load(given.kind, given.model)
columns = ("query", "text") if given.kind == "reranker" else ("text",)


def free_port() -> int:
    """Return a port that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@batch
def infer(**inputs: np.ndarray) -> dict[str, np.ndarray]:
    """Compute a batch of bytes [rows, 1] per column."""
    texts: list[list[Any]] = [[value[0].decode() for value in inputs[name]] for name in columns]
    rows = texts[0] if len(texts) == 1 else list(zip(*texts, strict=True))
    outputs = np.asarray(compute(rows), np.float32)
    return {"output": outputs.reshape(len(rows), -1)}


config = TritonConfig(
    http_address="127.0.0.1", http_port=given.port, grpc_port=free_port(), metrics_port=free_port(), log_verbose=0
)
with Triton(config=config) as triton:
    triton.bind(
        model_name="peer",
        infer_func=infer,
        inputs=[Tensor(name=name, dtype=bytes, shape=(1,)) for name in columns],
        outputs=[Tensor(name="output", dtype=np.float32, shape=(-1,))],
        config=ModelConfig(max_batch_size=ROWS, batcher=DynamicBatcher(max_queue_delay_microseconds=WAIT_US)),
        strict=True,
    )
    triton.serve()
