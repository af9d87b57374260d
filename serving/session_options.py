"""How a session is to run; apart from it, because settings need this where no onnxruntime is installed."""

from dataclasses import dataclass
from typing import Literal

from serving.precision import PrecisionChoice

Device = Literal["auto", "cpu", "cuda", "tensorrt"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionOptions:
    """How a session runs."""

    device: Device = "auto"
    """`auto` takes CUDA where it works and says which it took; the others are that device or an error."""
    threads: int | None = None
    """Threads of one run on a CPU; None is `usable_cpus()`."""
    precision: PrecisionChoice | None = None
    """`auto` takes what suits the device; None is what `model.onnx` is; the others are that form or an error."""
    device_memory_mib: int | None = None
    """Most memory of a GPU that tensors may take; None is all."""
