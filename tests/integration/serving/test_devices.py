"""What a session asks of a GPU, tried with a CPU that says it is one; and memory, threads and turns on both."""

import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import onnxruntime as ort
import psutil
import pytest
from factories import tiny_encoder_bundle, tiny_reranker_bundle
from onnx import TensorProto, helper

from serving.bundle import Bundle
from serving.errors import DeviceOutOfMemory, Misconfigured, Overloaded
from serving.model import Model
from serving.selftest import load_tested, warm_up
from serving.session import Session, out_of_memory
from serving.session_options import Device, SessionOptions
from serving.tokens import Tokens

PROVIDERS = ["TensorrtExecutionProvider", "CUDAExecutionProvider", "CPUExecutionProvider"]
ON_CPU = SessionOptions(device="cpu", threads=1)
ON_GPU = SessionOptions(device="cuda", threads=1)


class SessionOfAGpu(ort.InferenceSession):  # type: ignore[misc]
    """Computes on the CPU and says that it got what it was asked for."""

    asked: ClassVar[list[tuple[str, dict[str, str]]]] = []

    def __init__(self, path: Path, options: ort.SessionOptions, providers: list[tuple[str, dict[str, str]]]) -> None:
        type(self).asked = providers
        super().__init__(path, options, providers=["CPUExecutionProvider"])

    def get_providers(self) -> list[str]:
        return [name for name, _ in self.asked]


class Engine:
    """Stands in for onnxruntime's session where only `run` matters."""

    def __init__(self, run: Callable[..., list[np.ndarray]]) -> None:
        self.run = run


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let onnxruntime offer CUDA and TensorRT."""
    monkeypatch.setattr(ort, "get_available_providers", lambda: PROVIDERS)
    monkeypatch.setattr(ort, "InferenceSession", SessionOfAGpu)


@pytest.fixture
def bundle(tmp_path: Path) -> Bundle:
    """A sound encoder."""
    return tiny_encoder_bundle(tmp_path / "bundle")


def rows_of(*lengths: int) -> list[Tokens]:
    """Rows of these lengths, each of other tokens."""
    return [Tokens([0, *[5 + n % 9] * (n - 2), 2], untruncated_count=n) for n in lengths]


# --- what is asked for ---------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize("device", ["cuda", "auto"])
def test_cuda_is_asked_to_keep_its_memory_small_and_its_numbers_whole(bundle: Bundle, device: Device):
    """The arena grows by what is needed, up to the limit, and fp32 has all of its mantissa (field failure 44)."""
    session = Session(bundle, SessionOptions(device=device, threads=1, device_memory_mib=512))
    assert session.device == "cuda"
    expected = {"arena_extend_strategy": "kSameAsRequested", "use_tf32": "0", "gpu_mem_limit": str(512 * 1024 * 1024)}
    assert SessionOfAGpu.asked == [("CUDAExecutionProvider", expected)]


@pytest.mark.usefixtures("gpu")
def test_without_a_limit_none_is_passed(bundle: Bundle):
    """The default is all memory of the device."""
    Session(bundle, ON_GPU)
    ((_, options),) = SessionOfAGpu.asked
    assert "gpu_mem_limit" not in options


@pytest.mark.usefixtures("gpu")
def test_tensorrt_comes_with_cuda_and_keeps_its_engines(bundle: Bundle):
    """What TensorRT cannot do CUDA does, and engines are kept beside the bundle, not in it."""
    session = Session(bundle, SessionOptions(device="tensorrt", threads=1))
    assert session.device == "tensorrt"
    (name, options), (second, _) = SessionOfAGpu.asked
    assert [name, second] == PROVIDERS[:2]
    assert options["trt_engine_cache_path"] == str(bundle.path.parent / "bundle.tensorrt")


@pytest.mark.skipif(PROVIDERS[0] in ort.get_available_providers(), reason="this onnxruntime has TensorRT")
def test_tensorrt_that_is_not_to_be_had_is_refused(bundle: Bundle):
    """device=tensorrt is never silently something else (field failure 1)."""
    with pytest.raises(Misconfigured, match="device=tensorrt") as caught:
        Session(bundle, SessionOptions(device="tensorrt", threads=1))
    assert caught.value.reason == "DEVICE_UNAVAILABLE"


# --- shapes --------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize("kind", ["encoder", "reranker"])
def test_answers_of_a_filled_up_batch_are_those_of_the_batch(tmp_path: Path, kind: Any):
    """Rounding a batch up changes neither the number of answers nor the answers (field failure 11)."""
    made = (tiny_encoder_bundle if kind == "encoder" else tiny_reranker_bundle)(tmp_path / kind)
    on_gpu, on_cpu = Model(made, kind, ON_GPU), Model(made, kind, ON_CPU)
    for lengths in [(3,), (3, 17, 40), (64,) * 9, (5, 6, 7, 8, 9)]:
        rows = rows_of(*lengths)
        feed = on_gpu.prepare(rows)
        assert feed.ids.shape == feed.mask.shape == on_gpu.padded_shape(len(rows), max(lengths))
        assert on_cpu.prepare(rows).ids.shape == (len(rows), max(lengths))
        assert feed.mask.sum(1).min() > 0
        np.testing.assert_allclose(on_gpu.compute(rows), on_cpu.compute(rows), atol=1e-5)


@pytest.mark.usefixtures("gpu")
def test_every_shape_is_run_before_serving(bundle: Bundle, caplog: pytest.LogCaptureFixture):
    """Each padded length is run with one row and with the most, the largest first (field failure 57)."""
    caplog.set_level(logging.INFO)
    model = Model(bundle, "encoder", ON_GPU)
    shapes, run = list[tuple[int, ...]](), model.session.run
    model.session.run = lambda ids, mask: (shapes.append(ids.shape), run(ids, mask))[1]  # type: ignore[method-assign]
    warm_up(model, max_rows=16, max_batch_tokens=512)
    assert shapes[0] == (8, 64)
    # 512 tokens are 9 rows of 56, which are computed as 16; only of 64 tokens there are no more than 8.
    assert set(shapes) == {(count, tokens) for tokens in range(8, 65, 8) for count in (1, 8 if tokens == 64 else 16)}
    assert "16 shapes warmed up" in caplog.text


def test_a_cpu_is_not_warmed_up(bundle: Bundle, caplog: pytest.LogCaptureFixture):
    """On a CPU the self-test is enough."""
    caplog.set_level(logging.INFO)
    warm_up(Model(bundle, "encoder", ON_CPU), max_rows=16, max_batch_tokens=512)
    assert "warmed up" not in caplog.text


# --- memory --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("arena", [True, False])
def test_what_onnxruntime_says_without_memory_is_understood(arena: bool):  # noqa: FBT001
    """A tensor that fits into no memory fails in words that are known, with and without an arena (case 56)."""
    sizes = helper.make_tensor_value_info("sizes", TensorProto.INT64, [1])
    filled = helper.make_tensor_value_info("filled", TensorProto.FLOAT, ["any"])
    graph = helper.make_graph([helper.make_node("ConstantOfShape", ["sizes"], ["filled"])], "g", [sizes], [filled])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    options = ort.SessionOptions()
    options.enable_cpu_mem_arena, options.log_severity_level = arena, 4
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    with pytest.raises(Exception, match="alloc") as caught:
        session.run(None, {"sizes": np.array([2**46])})
    assert out_of_memory(caught.value)


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("CUDA failure 2: out of memory ; GPU=0", True),
        ("bfc_arena.cc:376 void* onnxruntime::BFCArena::AllocateRawInternal Failed to allocate memory", True),
        ("CUBLAS_STATUS_ALLOC_FAILED", True),
        ("indices element out of data bounds, idx=9 must be within the inclusive range [-8,7]", False),
        ("CUDA failure 700: an illegal memory access was encountered", False),
    ],
)
def test_short_memory_is_told_from_other_failures(bundle: Bundle, message: str, expected: bool):  # noqa: FBT001
    """Short memory passes with a smaller batch and says so; any other failure stays what it is (field failure 56)."""

    def fail(*_: object) -> list[np.ndarray]:
        raise RuntimeError(message)

    session = Session(bundle, ON_CPU)
    session._session = Engine(fail)
    with pytest.raises(DeviceOutOfMemory if expected else RuntimeError) as caught:
        session.run(np.ones((2, 7), np.int64), np.ones((2, 7), np.int64))
    if expected:
        assert isinstance(caught.value, Overloaded)
        assert caught.value.reason == "DEVICE_OUT_OF_MEMORY"
        assert "2 rows of 7 tokens" in str(caught.value)


def test_memory_of_python_counts_too():
    """Numpy raises MemoryError where the arrays themselves do not fit."""
    assert out_of_memory(MemoryError())


@pytest.mark.usefixtures("gpu")
def test_a_largest_batch_that_does_not_fit_is_refused_at_start(bundle: Bundle):
    """The operator is told what to lower before the first caller finds out (field failure 56)."""
    model = Model(bundle, "encoder", ON_GPU)

    def fail(*_: object) -> list[np.ndarray]:
        raise RuntimeError("CUDA failure 2: out of memory")

    model.session._session = Engine(fail)
    with pytest.raises(Misconfigured, match=r"\(16, 64\).*lower max_batch_tokens") as caught:
        warm_up(model, max_rows=16, max_batch_tokens=1024)
    assert caught.value.reason == "DEVICE_MEMORY"


def test_no_memory_is_planned_per_shape(bundle: Bundle):
    """Every new shape would leave a plan behind; what is shared among shapes is the arena (field failure 44)."""
    options = Session(bundle, ON_CPU)._session.get_session_options()
    assert (options.enable_mem_pattern, options.enable_cpu_mem_arena) == (False, True)


def test_memory_does_not_grow_with_the_number_of_shapes(bundle: Bundle):
    """After 2,000 batches of random shapes the process is less than a tenth larger than after 200 (case 44)."""
    model, _ = load_tested(bundle, "encoder", ON_CPU)
    generator = np.random.default_rng(5)
    sizes = []
    for count in (200, 1800):
        for _ in range(count):
            model.compute(rows_of(*generator.integers(3, 65, generator.integers(1, 17))))
        sizes.append(psutil.Process().memory_info().rss)
    assert sizes[1] < 1.1 * sizes[0]


# --- threads -------------------------------------------------------------------------------------------------------


def test_a_cpu_computes_for_several_threads_at_once(bundle: Bundle):
    """Two runs are inside the engine together: the barrier opens for two only (field failure 58)."""
    both = threading.Barrier(2, timeout=20)
    session = Session(bundle, ON_CPU)
    run = session._session.run
    session._session = Engine(lambda *given: (both.wait(), run(*given))[1])
    ids, mask = Model(bundle, "encoder", ON_CPU).prepare(rows_of(5, 9)).ids, np.ones((2, 9), np.int64)
    outputs = list[np.ndarray]()
    threads = [threading.Thread(target=lambda: outputs.append(session.run(ids, mask))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    np.testing.assert_array_equal(outputs[0], outputs[1])


@pytest.mark.usefixtures("gpu")
def test_on_a_gpu_runs_take_turns(bundle: Bundle):
    """While one thread computes another one cannot begin, and after a failure the turn is free (field failure 58)."""
    session = Session(bundle, ON_GPU)
    run, free = session._session.run, list[bool]()

    def watched(*given: Any) -> list[np.ndarray]:
        free.append(session._turn.acquire(blocking=False))
        if len(free) == 1:
            raise IndexError
        return run(*given)

    session._session = Engine(watched)
    ids = np.full((1, 8), 5, np.int64)
    with pytest.raises(IndexError):
        session.run(ids, np.ones_like(ids))
    assert session.run(ids, np.ones_like(ids)).shape == (1, 8)
    assert not any(free)
