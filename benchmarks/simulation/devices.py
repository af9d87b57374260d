"""What a batch costs on the devices that are simulated, noise included."""

import random
from dataclasses import dataclass

# What a shared machine does: a small spread around every batch, and now and then one that takes three times as long.
SPREAD = 0.05
STALL_SHARE = 0.01
STALL = 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """Seconds of a batch: `fixed + per_token x padded + per_row x rows + per_pair x padded x longest`."""

    name: str
    fixed: float
    """Per batch."""
    per_token: float
    """Per padded token."""
    per_row: float = 0.0
    """Per row."""
    per_pair: float = 0.0
    """Per pair of tokens that attend to each other; the policy's cost model knows no such term."""
    gap: float = 0.0
    """Seconds between two batches in which the device waits for its driver."""

    def seconds(self, rows: int, longest: int) -> float:
        """Return the cost of one batch without noise."""
        padded = rows * longest
        return self.fixed + padded * (self.per_token + self.per_pair * longest) + self.per_row * rows

    def noisy(self, rows: int, longest: int, generator: random.Random) -> float:
        """Draw what one batch takes."""
        stall = STALL if generator.random() < STALL_SHARE else 1.0
        return self.seconds(rows, longest) * stall * generator.lognormvariate(0.0, SPREAD)


# Measured (`simulate.py --measure .twostage/bundles/demo`): AMD EPYC, 2 threads, onnxruntime 1.32, spinning off.
# The gap, and all of the GPU, are assumptions: 2.2 us per token is a text-embeddings-inference server's published
# 470,000 tokens/s of BERT-base on an H200, scaled to the size of bge-reranker-v2-m3.
GAP = 0.0003
ENCODER_CPU = Device(
    name="demo encoder, CPU", fixed=4.9e-3, per_token=0.257e-3, per_row=0.41e-3, per_pair=1.0e-7, gap=GAP
)
RERANKER_CPU = Device(
    name="demo reranker, CPU", fixed=3.55e-3, per_token=0.213e-3, per_row=0.63e-3, per_pair=1.6e-7, gap=GAP
)
GPU = Device(name="GPU (assumed)", fixed=2.0e-3, per_token=2.2e-6, gap=GAP)
