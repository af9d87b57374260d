"""`python requirements/check.py LOCK`: whether an environment is fit to be an image; run while it is built.

Two onnxruntime wheels overwrite each other's files, and CUDA libraries of another major version are found out only when
a model is loaded on a GPU: both are to stop the build.
"""
# ruff: noqa: INP001 - a script of the build, in no package

import subprocess
import sys
from collections.abc import Sequence
from importlib.metadata import distributions
from pathlib import Path

RUNTIMES_BY_LOCK = {"gpu": ["onnxruntime-gpu"], "gateway": []}
DEFAULT_RUNTIMES = ["onnxruntime"]
NEVER_SERVED = frozenset({"torch", "transformers"})
WITH_TORCH = frozenset({"export"})
# These come with the driver, from the host, when a container starts.
OF_THE_DRIVER = ("libcuda.so", "libnvidia-")
PROVIDER = "libonnxruntime_providers_cuda.so"


def problems_of(lock: str, installed: Sequence[str]) -> list[str]:
    """Return what is wrong with the set of installed distributions, as sentences.

    Args:
        lock: Name of the lock file, without its ending.
        installed: Names of distributions, one for every one that is there.
    """
    wanted = RUNTIMES_BY_LOCK.get(lock, DEFAULT_RUNTIMES)
    runtimes = sorted(name for name in installed if name.startswith("onnxruntime"))
    problems = []
    if runtimes != wanted:
        problems.append(f"{lock}: onnxruntime is {runtimes}, wanted {wanted}")
    if lock not in WITH_TORCH:
        problems += [f"{lock}: {name} is installed" for name in sorted(NEVER_SERVED & set(installed))]
    return problems


def unresolved(ldd: str) -> list[str]:
    """Return the libraries that `ldd` did not find, but for those of the driver."""
    names = [line.split()[0] for line in ldd.splitlines() if "not found" in line]
    return [name for name in names if not name.startswith(OF_THE_DRIVER)]


def _cuda_problems() -> list[str]:
    import onnxruntime  # noqa: PLC0415 - only this lock has to have it

    provider = Path(onnxruntime.__file__).parent / "capi" / PROVIDER
    ldd = subprocess.run(["ldd", str(provider)], capture_output=True, text=True, check=True).stdout  # noqa: S603, S607
    problems = [f"gpu: {PROVIDER} needs {name}, which no package brings" for name in unresolved(ldd)]
    if "CUDAExecutionProvider" not in onnxruntime.get_available_providers():
        problems.append("gpu: this onnxruntime was built without CUDA")
    return problems


def main(lock: str) -> int:
    """Check the environment that runs this; return 1 where it is not fit."""
    problems = problems_of(lock, [each.metadata["Name"].lower() for each in distributions()])
    problems += _cuda_problems() if lock == "gpu" else []
    sys.stderr.write("".join(f"{problem}\n" for problem in problems))
    return 1 if problems else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1]))
