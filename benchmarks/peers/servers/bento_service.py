"""The library as a BentoML service, with its adaptive batching across requests."""

import os
from typing import Any

import bentoml
import library
import numpy as np

ROWS = 64


@bentoml.service(traffic={"timeout": 300, "max_concurrency": 512})
class Peer:
    """One model in one worker."""

    def __init__(self) -> None:
        self._compute = library.load(os.environ["PEER_KIND"], os.environ["PEER_MODEL"])

    @bentoml.api(batchable=True, batch_dim=0, max_batch_size=ROWS)
    def compute(self, rows: list[Any]) -> np.ndarray:
        """Return float32 [rows, dimension] or [rows]."""
        return self._compute(rows)
