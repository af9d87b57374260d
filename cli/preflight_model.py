"""Loads one model as its server would, in a process of its own, and says in JSON what came of it.

`twostage preflight` starts it: what a load takes of memory is then its own, and a driver that takes the process down
takes down nothing else. Writes nothing.
"""

import json
import re
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from cli.findings import Finding, State
from encoder_server.settings import EncoderSettings
from reranker_server.settings import RerankerSettings
from serving.bundle import Bundle, Kind
from serving.calibration import calibrate
from serving.cpu import int8_flags
from serving.errors import Misconfigured
from serving.model import Model
from serving.precision import choose
from serving.selftest import SelfTestReport, load_tested, warm_up
from serving.settings import ModelServerSettings, load

SETTINGS: dict[Kind, type[ModelServerSettings]] = {"encoder": EncoderSettings, "reranker": RerankerSettings}
STATUS = Path("/proc/self/status")
DRIVER = Path("/proc/driver/nvidia/version")
LIBRARY = re.compile(rb"lib(?:cu\w+|nv\w+)\.so(?:\.\d+)+(?=\x00)")
"""Names of CUDA's libraries as a binary lists those that it needs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """What came of the load."""

    findings: Sequence[Finding]
    peak_bytes: int | None = None
    """Most resident memory of the process; unknown where the system does not say."""


def main(kind: Kind) -> None:
    """Load the model of a server that is set up by the environment, and write what came of it."""
    settings = load(SETTINGS[kind])
    loaded = Loaded(findings=list(_findings(kind, settings)), peak_bytes=_peak_bytes())
    sys.stdout.write(json.dumps(asdict(loaded)) + "\n")


def _findings(kind: Kind, settings: ModelServerSettings) -> Iterator[Finding]:
    options, begun = settings.session_options, time.monotonic()
    if options.device == "tensorrt":
        # Its engines are built into a directory beside the bundle, and nothing is written here.
        todo = "TensorRT's own engines are built, and tested, at the server's first start"
        yield Finding(name="tensorrt", value="tried with CUDA instead", state="note", todo=todo)
        options = replace(options, device="cuda")
    try:
        bundle = Bundle(settings.bundle)
        model, report = load_tested(bundle, kind, options, settings.max_tokens)
        # As the server: every instance's weights, then every shape that its device will see.
        twins = [model.twin() for _ in range(settings.instances - 1)]
        limits = settings.batch_limits(model.session.device)
        warm_up(model, max_rows=limits.max_batch_rows, max_batch_tokens=limits.max_batch_tokens)
        costs = calibrate(model, limits)
    except Misconfigured as error:
        yield Finding(name="model", value=f"{error.reason}: {error.message}", state="bad")
        yield from _libraries(settings.device, taken=None)
        return
    yield Finding(name="bundle", value=f"{bundle.manifest.model_id} {bundle.manifest.revision}, {bundle.digest[:19]}")
    yield from _device(settings, model, report)
    full = limits.max_batch_tokens
    value = f"{full} tokens take about {costs.cost.seconds(full, 1) * 1e3:.0f} ms on each of {1 + len(twins)} instances"
    yield Finding(name="batches", value=value)
    yield Finding(name="ready", value=f"{time.monotonic() - begun:.1f} s after the start")


def _device(settings: ModelServerSettings, model: Model, report: SelfTestReport) -> Iterator[Finding]:
    device, manifest = model.session.device, model.bundle.manifest
    yield Finding(name="device", value=f"{device} (asked for {settings.device}), {model.session.threads} threads")
    yield from _libraries(settings.device, taken=device)
    wanted = choose(settings.precision, manifest, device=device, int8_flags=int8_flags())
    failed = wanted != model.precision
    todo = f"{wanted} missed its golden outputs here, so the server would take {model.precision}" if failed else ""
    value = f"{model.precision} (asked for {settings.precision}) of {', '.join(manifest.precisions)}"
    yield Finding(name="precision", value=value, state="note" if failed else "good", todo=todo)
    missed = f"missed by {report.max_difference:.2g} at most, tolerance {report.tolerance:g}"
    yield Finding(name="golden outputs", value=f"{report.row_count} rows, {missed}")


def _libraries(asked: str, *, taken: str | None) -> Iterator[Finding]:
    """Say what CUDA lacks here, where it was asked for or a GPU is left unused."""
    driver = DRIVER.read_text(encoding="utf-8").splitlines()[0] if DRIVER.is_file() else ""
    if taken in ("cuda", "tensorrt"):
        yield Finding(name="driver", value=driver or "loaded")
        return
    if asked not in ("cuda", "tensorrt") and not driver:
        return
    state: State = "note" if taken else "bad"
    todo = "" if driver else "install NVIDIA's driver, or give the container the GPU"
    yield Finding(name="driver", value=driver or "no NVIDIA driver", state="good" if driver else state, todo=todo)
    provider = _cuda_provider()
    if provider is None:
        todo = "pip install 'twostage[gpu]' instead of 'twostage[cpu]'"
        yield Finding(name="CUDA", value="this onnxruntime is the one without CUDA", state=state, todo=todo)
    elif missing := missing_libraries(provider):
        value = f"cannot be loaded: {', '.join(missing)}"
        yield Finding(name="CUDA", value=value, state=state, todo="install them, and name them to the loader")


def _cuda_provider() -> Path | None:
    """Return the library through which onnxruntime uses CUDA, or None where this one has none."""
    import onnxruntime  # noqa: PLC0415 - only where CUDA is the question

    path = Path(onnxruntime.__file__).parent / "capi" / "libonnxruntime_providers_cuda.so"
    return path if path.is_file() else None


def missing_libraries(binary: Path) -> list[str]:
    """Return the CUDA libraries that a binary names and that the loader does not find, sorted."""
    import ctypes  # noqa: PLC0415 - as above
    import mmap  # noqa: PLC0415

    with binary.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        names = sorted({match.group().decode("ascii") for match in LIBRARY.finditer(content)})
    missing = []
    for name in names:
        try:
            ctypes.CDLL(name)
        except OSError:
            missing.append(name)
    return missing


def _peak_bytes() -> int | None:
    try:
        lines = dict(line.split(":", 1) for line in STATUS.read_text(encoding="ascii").splitlines())
        return int(lines["VmHWM"].split()[0]) * 1024
    except (OSError, KeyError, ValueError):
        return None


if __name__ == "__main__":
    main("encoder" if sys.argv[1] == "encoder" else "reranker")
