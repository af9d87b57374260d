"""Which form of a model is run: what was asked for, what the bundle has, what the device is good at. Pure."""

from collections.abc import Collection
from typing import Literal

from serving.bundle import Manifest, Precision
from serving.errors import Misconfigured

PrecisionChoice = Literal["auto", "fp32", "fp16", "int8"]


def choose(asked: PrecisionChoice | None, manifest: Manifest, *, device: str, int8_flags: Collection[str]) -> Precision:
    """Return the precision to run.

    Args:
        asked: A precision, `auto`, or None for that of `model.onnx`.
        manifest: What the bundle has.
        device: Where the model runs.
        int8_flags: The CPU's instructions for int8.

    Returns:
        For `auto`, where the bundle has it: fp16 on a GPU, int8 for a reranker on a CPU with instructions for it; else
        fp32. An encoder's vectors stay in an index for years and are a small part of a search's time, so that the last
        digits are worth more there than speed.

    Raises:
        Misconfigured: The bundle lacks what was asked for by name.
    """
    has = manifest.precisions
    if asked is None:
        return manifest.precision
    if asked == "auto":
        on_cpu: Precision = "int8" if int8_flags and manifest.kind == "reranker" else "fp32"
        fast: Precision = "fp16" if device != "cpu" else on_cpu
        return next((each for each in (fast, "fp32") if each in has), manifest.precision)
    if asked not in has:
        raise Misconfigured(
            "PRECISION_UNAVAILABLE",
            f"precision={asked} was asked for, but the bundle of {manifest.model_id} has only {', '.join(has)}; "
            "prepare one that has it, or ask for auto",
        )
    return asked
