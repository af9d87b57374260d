"""An ONNX Runtime session that is what it says: the device asked for, the inputs it really has, threads that fit.

The only module that imports onnxruntime.
"""

import logging
import threading
import warnings
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnxruntime as ort

from serving.bundle import Bundle, Manifest, Precision
from serving.cpu import int8_flags, usable_cpus
from serving.errors import DeviceOutOfMemory, Misconfigured
from serving.precision import choose
from serving.session_options import SessionOptions

log = logging.getLogger(__name__)

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float32]

PROVIDERS = {
    "cpu": "CPUExecutionProvider",
    "cuda": "CUDAExecutionProvider",
    "tensorrt": "TensorrtExecutionProvider",
}
KNOWN_INPUTS = ("input_ids", "attention_mask", "token_type_ids")
RUNTIME_ERRORS_ONLY = 3
# What onnxruntime, CUDA and its libraries write where memory is short: there is no type of exception for it.
OUT_OF_MEMORY = ("failed to allocate memory", "out of memory", "bad_alloc", "alloc_failed", "bfcarena")
MEMORY_RETRY_S = 1.0


class Session:
    """A loaded graph. `run` may be called from several threads; on a GPU they take turns.

    Raises:
        Misconfigured: Device or precision is not to be had, or the graph's inputs or output are not what the manifest
            says.
    """

    def __init__(self, bundle: Bundle, options: SessionOptions) -> None:
        self.threads = options.threads or usable_cpus()
        self._session, self.device, self.precision = _open(bundle, options, self.threads)
        path = bundle.path / bundle.manifest.form(self.precision).file
        self._inputs = _check_inputs(self._session, path, bundle.manifest)
        self._output = _check_output(self._session, path, bundle.manifest)
        # Two runs at once on a GPU share its time and take twice the memory.
        self._turn: AbstractContextManager[object] = nullcontext() if self.device == "cpu" else threading.Lock()
        if self.device == "cpu" and self.precision == "fp16":
            log.warning("fp16 weights on a CPU are several times slower than fp32")

    def run(self, ids: IntArray, mask: IntArray) -> FloatArray:
        """Compute one batch.

        Args:
            ids: Token ids, int64 [batch, tokens].
            mask: 1 on real tokens, 0 on padding, int64 [batch, tokens].

        Returns:
            float32 [batch, dimension] of an encoder, float32 [batch] of a reranker.

        Raises:
            DeviceOutOfMemory: The batch does not fit into what memory is left; the session stays usable.
            Exception: Whatever else onnxruntime throws.
        """
        arrays = {"input_ids": ids, "attention_mask": mask}
        feed = {name: arrays[name] if name in arrays else np.zeros_like(ids) for name in self._inputs}
        try:
            with self._turn:
                (output,) = self._session.run([self._output], feed)
        except Exception as error:
            if not out_of_memory(error):
                raise
            raise DeviceOutOfMemory(
                "DEVICE_OUT_OF_MEMORY",
                f"no memory left on {self.device} for a batch of {ids.shape[0]} rows of {ids.shape[1]} tokens",
                retry_after_s=MEMORY_RETRY_S,
            ) from error
        return np.asarray(output, np.float32)


def _check_inputs(session: ort.InferenceSession, path: Path, manifest: Manifest) -> list[str]:
    """Take the feed from the graph, not from what a tokenizer happens to give."""
    inputs = {node.name: node.type for node in session.get_inputs()}
    unknown = [name for name in inputs if name not in KNOWN_INPUTS]
    wrong = [f"{name} is {kind}" for name, kind in inputs.items() if kind != "tensor(int64)"]
    if unknown or wrong or set(inputs) != set(manifest.inputs):
        raise Misconfigured(
            "MODEL_INPUTS",
            f"{path}: inputs {sorted(inputs)} {'; '.join(wrong)}; wanted int64 inputs {sorted(manifest.inputs)} of "
            f"{KNOWN_INPUTS}",
        )
    return list(inputs)


def _check_output(session: ort.InferenceSession, path: Path, manifest: Manifest) -> str:
    outputs = [node.name for node in session.get_outputs()]
    if outputs != [manifest.output]:
        raise Misconfigured("MODEL_OUTPUT", f"{path}: outputs {outputs}, wanted only {manifest.output!r}")
    return manifest.output


def out_of_memory(error: BaseException) -> bool:
    """Tell whether an exception of the engine means that memory was short."""
    text = str(error).lower()
    return isinstance(error, MemoryError) or any(words in text for words in OUT_OF_MEMORY)


def _open(bundle: Bundle, options: SessionOptions, threads: int) -> tuple[ort.InferenceSession, str, Precision]:
    """Create the session; onnxruntime carries on without a provider that fails to load, so look what it really took."""
    wanted = ("cuda", "cpu") if options.device == "auto" else (options.device,)
    for name in wanted:
        if PROVIDERS[name] not in ort.get_available_providers():
            continue
        precision = choose(options.precision, bundle.manifest, device=name, int8_flags=int8_flags())
        path = bundle.path / bundle.manifest.form(precision).file
        session = _create(path, _providers(name, bundle, options), threads)
        if session.get_providers()[0] == PROVIDERS[name]:
            return session, name, precision
        log.warning("onnxruntime offers %s but could not load it", PROVIDERS[name])
    raise Misconfigured(
        "DEVICE_UNAVAILABLE",
        f"device={options.device} was asked for, but onnxruntime {ort.__version__} can use only "
        f"{ort.get_available_providers()}; install the gpu extra and its CUDA libraries, or ask for cpu or auto",
    )


def _create(path: Path, providers: list[tuple[str, dict[str, str]]], threads: int) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = RUNTIME_ERRORS_ONLY
    # A memory plan is kept for every shape ever seen: with shapes as they come it costs memory and saves no time.
    options.enable_mem_pattern = False
    # Threads spin between the operators of a run, where waking them would take longer than most operators of a short
    # query (7.8 ms instead of 10.6), and stop at its end: an idle server burns nothing that others of the machine need.
    options.add_session_config_entry("session.intra_op.allow_spinning", "1")
    options.add_session_config_entry("session.force_spinning_stop", "1")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the provider that was really taken is checked by the caller
            return ort.InferenceSession(path, options, providers=providers)
    except Exception as error:  # onnxruntime's exceptions share no base but this
        raise Misconfigured(
            "MODEL_UNREADABLE", f"{path}: onnxruntime cannot load it ({type(error).__name__})"
        ) from error


def _providers(device: str, bundle: Bundle, options: SessionOptions) -> list[tuple[str, dict[str, str]]]:
    """Return the providers to ask for, the one that is wanted first."""
    if device == "cpu":
        return [(PROVIDERS["cpu"], {})]
    # The arena then grows by what a batch needs and not by doubling; and fp32 is fp32, not 10 bits of mantissa.
    cuda = {"arena_extend_strategy": "kSameAsRequested", "use_tf32": "0"}
    if options.device_memory_mib is not None:
        cuda["gpu_mem_limit"] = str(options.device_memory_mib * 2**20)
    providers = [(PROVIDERS["cuda"], cuda)]
    if device == "tensorrt":
        # Engines take minutes to build, and belong to one bundle and one kind of GPU, which their names tell.
        cache = bundle.path.with_name(f"{bundle.path.name}.tensorrt")
        tensorrt = {"trt_engine_cache_enable": "1", "trt_engine_cache_path": str(cache)}
        providers.insert(0, (PROVIDERS["tensorrt"], tensorrt))
    return providers
