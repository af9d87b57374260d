"""An ONNX Runtime session that is what it says: the device asked for, the inputs it really has, threads that fit.

The only module that imports onnxruntime.
"""

import logging
import warnings
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt
import onnxruntime as ort

from serving.bundle import Bundle
from serving.cpu import usable_cpus
from serving.errors import Misconfigured

log = logging.getLogger(__name__)

Device = Literal["auto", "cpu", "cuda"]
IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float32]

PROVIDERS = {"cpu": "CPUExecutionProvider", "cuda": "CUDAExecutionProvider"}
KNOWN_INPUTS = ("input_ids", "attention_mask", "token_type_ids")
RUNTIME_ERRORS_ONLY = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionOptions:
    """How a session runs."""

    device: Device = "auto"
    """`auto` takes CUDA where it works and says which it took; the others are that device or an error."""
    threads: int | None = None
    """Threads of one run on a CPU; None is `usable_cpus()`."""


class Session:
    """A loaded graph.

    Raises:
        Misconfigured: The device is not to be had, or the graph's inputs or output are not what the manifest says.
    """

    def __init__(self, bundle: Bundle, options: SessionOptions) -> None:
        self.threads = options.threads or usable_cpus()
        self._session, self.device = _open(bundle, options.device, self.threads)
        self._inputs = self._check_inputs(bundle)
        self._output = _check_output(self._session, bundle)
        if self.device == "cpu" and bundle.manifest.precision == "fp16":
            log.warning("fp16 weights on a CPU are several times slower than fp32")

    def run(self, ids: IntArray, mask: IntArray) -> FloatArray:
        """Compute one batch.

        Args:
            ids: Token ids, int64 [batch, tokens].
            mask: 1 on real tokens, 0 on padding, int64 [batch, tokens].

        Returns:
            float32 [batch, dimension] of an encoder, float32 [batch] of a reranker.
        """
        arrays = {"input_ids": ids, "attention_mask": mask}
        feed = {name: arrays[name] if name in arrays else np.zeros_like(ids) for name in self._inputs}
        (output,) = self._session.run([self._output], feed)
        return np.asarray(output, np.float32)

    def _check_inputs(self, bundle: Bundle) -> list[str]:
        """Take the feed from the graph, not from what a tokenizer happens to give."""
        inputs = {node.name: node.type for node in self._session.get_inputs()}
        unknown = [name for name in inputs if name not in KNOWN_INPUTS]
        wrong = [f"{name} is {kind}" for name, kind in inputs.items() if kind != "tensor(int64)"]
        if unknown or wrong or set(inputs) != set(bundle.manifest.inputs):
            raise Misconfigured(
                "MODEL_INPUTS",
                f"{bundle.model_path}: inputs {sorted(inputs)} {'; '.join(wrong)}; wanted int64 inputs "
                f"{sorted(bundle.manifest.inputs)} of {KNOWN_INPUTS}",
            )
        return list(inputs)


def _check_output(session: ort.InferenceSession, bundle: Bundle) -> str:
    outputs = [node.name for node in session.get_outputs()]
    if outputs != [bundle.manifest.output]:
        raise Misconfigured(
            "MODEL_OUTPUT", f"{bundle.model_path}: outputs {outputs}, wanted only {bundle.manifest.output!r}"
        )
    return bundle.manifest.output


def _open(bundle: Bundle, device: Device, threads: int) -> tuple[ort.InferenceSession, str]:
    """Create the session; onnxruntime carries on without a provider that fails to load, so look what it really took."""
    wanted = ("cuda", "cpu") if device == "auto" else (device,)
    for name in wanted:
        if PROVIDERS[name] not in ort.get_available_providers():
            continue
        session = _create(bundle, name, threads)
        if session.get_providers()[0] == PROVIDERS[name]:
            return session, name
        log.warning("onnxruntime offers %s but could not load it", PROVIDERS[name])
    raise Misconfigured(
        "DEVICE_UNAVAILABLE",
        f"device={device} was asked for, but onnxruntime {ort.__version__} can use only "
        f"{ort.get_available_providers()}; install the gpu extra and its CUDA libraries, or ask for cpu or auto",
    )


def _create(bundle: Bundle, device: str, threads: int) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = RUNTIME_ERRORS_ONLY
    # A waiting thread must not burn the core that the other servers of the machine need.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the provider that was really taken is checked by the caller
            return ort.InferenceSession(bundle.model_path, options, providers=[_provider(device)])
    except Exception as error:  # onnxruntime's exceptions share no base but this
        raise Misconfigured(
            "MODEL_UNREADABLE", f"{bundle.model_path}: onnxruntime cannot load it ({type(error).__name__})"
        ) from error


def _provider(device: str) -> tuple[str, dict[str, str]]:
    # The arena then grows by what a batch needs and not by doubling.
    options = {"arena_extend_strategy": "kSameAsRequested"} if device == "cuda" else {}
    return PROVIDERS[device], options
