"""Other people's servers, each in an environment of its own, made where it is missing.

Versions are pinned here: a figure belongs to a version. torch is the release that this project itself is tested with.
"""

import hashlib
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

TORCH = "torch==2.13.0"
LIBRARY = ("sentence-transformers==6.2.0", TORCH)
REQUIREMENTS: Mapping[str, Sequence[str]] = {
    "infinity": ("infinity-emb[torch,server]==0.0.78", TORCH),
    # Its optimum engine passes whole paths, which newer releases of optimum do not take; pyarrow 17 is the last that
    # goes with the numpy that this wants.
    "infinity_optimum": (
        "infinity-emb[torch,server,optimum]==0.0.78",
        "optimum[onnxruntime]==1.24.0",
        "pyarrow==17.0.0",
        TORCH,
    ),
    "sentence_transformers": (*LIBRARY, "fastapi==0.165.0", "uvicorn==0.54.0"),
    # Newer releases of the library and of its ONNX loader exclude each other.
    "sentence_transformers_onnx": ("sentence-transformers[onnx]==5.1.2", TORCH, "fastapi==0.165.0", "uvicorn==0.54.0"),
    "litserve": ("litserve==0.2.19", *LIBRARY),
    "bentoml": ("bentoml==1.4.40", *LIBRARY),
    "ray": ("ray[serve]==2.60.0", *LIBRARY),
    "pytriton": ("nvidia-pytriton==0.7.0", *LIBRARY),
}
INSTALL_TIMEOUT_S = 900
TAIL_CHARACTERS = 400
MARK = ".installed"
LISTING = (
    "import importlib.metadata as m, json; print(json.dumps({d.name.lower(): d.version for d in m.distributions()}))"
)


class NotInstalled(Exception):
    """A peer cannot be had here; the message is the installer's own."""


def prepare(name: str, out: Path) -> Path:
    """Install a peer into `<out>/<name>` and return the environment's directory of programs.

    Raises:
        NotInstalled: It cannot be installed.
    """
    place, requirements = out / name, REQUIREMENTS[name]
    mark, wanted = place / MARK, hashlib.sha256("\n".join(requirements).encode()).hexdigest()
    if not mark.exists() or mark.read_text() != wanted:
        _run(name, [sys.executable, "-m", "venv", str(place)])
        _run(name, [str(place / "bin/python"), "-m", "pip", "install", "--quiet", *requirements])
        mark.write_text(wanted)
    return place / "bin"


def versions(name: str, out: Path) -> dict[str, str]:
    """Return what is installed of the packages that decide a figure."""
    program = str(out / name / "bin/python")
    found = subprocess.run([program, "-c", LISTING], capture_output=True, text=True, check=True).stdout
    deciding = {"torch", "transformers", "sentence-transformers", "onnxruntime", "optimum", *_own(name)}
    installed: dict[str, str] = json.loads(found)
    return {key: version for key, version in sorted(installed.items()) if key in deciding}


def _own(name: str) -> set[str]:
    return {one.partition("==")[0].partition("[")[0] for one in REQUIREMENTS[name]}


def _run(name: str, command: Sequence[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=INSTALL_TIMEOUT_S)
    if done.returncode:
        errors = [line for line in done.stderr.splitlines() if not line.startswith("WARNING")]
        raise NotInstalled(f"{name}: {' '.join(errors)[-TAIL_CHARACTERS:]}")
