"""What `twostage preflight` looks at beside the models: memory, processors, disk, ports, store, certificates, limits.

Only looks: opens files for reading, binds ports for a moment, and asks a Qdrant server for its version.
"""

import ctypes
import os
import resource
import shutil
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

from cli.addresses import free
from cli.checks import available_memory, existing
from cli.console import size
from cli.findings import Finding, State
from gateway.settings import GatewaySettings
from serving.auth import open_authenticator
from serving.bundle import Bundle
from serving.cpu import read_quota, usable_cpus
from serving.errors import Misconfigured, ServiceError
from serving.keyed import watch_key
from serving.settings import ModelServerSettings, ServerSettings
from serving.tls import watch

CGROUP = Path("/sys/fs/cgroup")
MEMORY_MARGIN = 1.25
"""What requests take beside the loaded model, as a share of it: a choice, with which a full queue fits."""
LEAST_OPEN_FILES = 4_096
"""Connections and the embedded store's segments each take some; a usual default of 1,024 is soon used up."""
COARSE_S = 1e-6
"""Timings are told in microseconds."""
TIME_ERROR = 5
"""What adjtimex returns while nothing keeps the clock right."""
TIMEX_BYTES = 512


def processors(settings: Mapping[str, ServerSettings]) -> Iterator[Finding]:
    """Compare the threads that the servers will start with the processors that they may use."""
    usable, quota = usable_cpus(), read_quota(CGROUP)
    limit = "no quota" if quota is None else f"quota {quota:g}"
    yield Finding(name="processors", value=f"{usable} usable of {os.cpu_count()}, {limit}")
    for name, one in settings.items():
        if isinstance(one, ModelServerSettings):
            each = one.session_options.threads or usable
            count = each * one.workers * one.instances
            advice = f"they wait for each other: leave {one.prefix}THREADS out, or lower workers or instances"
            todo = advice if count > usable else ""
            value = f"{count}: {each} for each of {one.workers * one.instances} sessions"
            yield Finding(name=f"{name} threads", value=value, state="note" if todo else "good", todo=todo)


def memory(peaks: Mapping[str, int], settings: Mapping[str, ServerSettings]) -> Iterator[Finding]:
    """Compare what loading took with what is left, of the machine or of the container, whichever is less.

    Args:
        peaks: Most memory of one process of each model server, in bytes.
        settings: All servers that are checked.
    """
    needed = 0
    for name, peak in peaks.items():
        workers = settings[name].workers
        needed += peak * workers
        times = f" x {workers} workers" if workers > 1 else ""
        yield Finding(name=f"{name} memory", value=f"{size(peak)} to load and test{times}")
    left = available_memory()
    if left is None:
        yield Finding(name="memory", value="this system does not say how much is left", state="note")
        return
    state, todo = _enough_memory(needed, left)
    yield Finding(name="memory", value=f"{size(left)} available, {size(needed)} needed", state=state, todo=todo)


def _enough_memory(needed: int, left: int) -> tuple[State, str]:
    if needed > left:
        return "bad", "the system would end a server for it: give more, or take a smaller precision or fewer workers"
    if needed * MEMORY_MARGIN > left:
        return "note", "little is left for requests and for the store"
    return "good", ""


def disk(settings: Mapping[str, ServerSettings]) -> Iterator[Finding]:
    """Look at the room beside each bundle, where its successor will be put, and at the embedded store's place."""
    for name, one in settings.items():
        if isinstance(one, ModelServerSettings):
            try:
                needed = sum(entry.size for entry in Bundle(one.bundle).manifest.files.values())
            except Misconfigured:
                continue  # told where it is loaded
            left = shutil.disk_usage(existing(one.bundle)).free
            todo = f"another bundle beside it, as for an update, takes {size(needed)}" if left < needed else ""
            value = f"{size(left)} free for bundles"
            yield Finding(name=f"{name} disk", value=value, state="note" if todo else "good", todo=todo)


def ports(settings: Mapping[str, ServerSettings]) -> Iterator[Finding]:
    """Look whether every port is free, and wanted once only."""
    wanted = [(name, what, one.host, port) for name, one in settings.items() for what, port in _ports(one)]
    often = Counter(port for _, _, _, port in wanted)
    for name, what, host, port in wanted:
        label = f"{name} {what} {port}"
        try:
            taken = not free(host, port)
        except Misconfigured as error:
            yield Finding(name=label, value=error.message, state="bad")
            continue
        if often[port] > 1:
            yield Finding(name=label, value="wanted twice", state="bad", todo="give every listener a port of its own")
        elif taken:
            yield Finding(name=label, value="taken", state="bad", todo="stop what listens there, or set another")
        else:
            yield Finding(name=label, value="free")


def _ports(one: ServerSettings) -> Iterator[tuple[str, int]]:
    if one.port:
        yield "port", one.port
    if one.health_port:
        yield "health port", one.health_port
    if one.metrics_port:
        yield from (("metrics port", one.metrics_port + worker) for worker in range(one.workers))


def secrets(settings: Mapping[str, ServerSettings]) -> Iterator[Finding]:
    """Read certificates and API keys as the servers would; nothing of them is shown."""
    from gateway.app import ACCESS  # noqa: PLC0415 - it would slow every command's start

    for name, one in settings.items():
        try:
            files = one.tls_files
            if files is not None:
                watch(files)
                yield Finding(name=f"{name} TLS", value=", ".join(str(path) for path in files.paths))
            if one.api_keys_file is not None:
                open_authenticator(one.api_keys_file, ACCESS if isinstance(one, GatewaySettings) else None)
                yield Finding(name=f"{name} API keys", value=str(one.api_keys_file))
            if isinstance(one, GatewaySettings):
                yield from _outgoing(one)
        except Misconfigured as error:
            yield Finding(name=f"{name} secrets", value=f"{error.reason}: {error.message}", state="bad")


def _outgoing(settings: GatewaySettings) -> Iterator[Finding]:
    """Read what the gateway shows to those whom it calls."""
    from gateway.backends import tls_files  # noqa: PLC0415 - it would slow every command's start

    files = tls_files(settings)
    if files is not None:
        watch(files)
        yield Finding(
            name="gateway backends' TLS", value=", ".join(map(str, files.paths)) or "the system's certificates"
        )
    keys = {"backends'": settings.backend_api_key_file, "writer's": settings.writer_api_key_file}
    for whose, path in keys.items():
        if path is not None:
            watch_key(path)
            yield Finding(name=f"gateway {whose} API key", value=str(path))


async def store(settings: GatewaySettings) -> Finding:
    """Look whether the vector store can be opened, without opening it."""
    if settings.store == "qdrant":
        return await _qdrant(settings)
    place = existing(settings.store_path)
    left = shutil.disk_usage(place).free
    if not os.access(place, os.W_OK | os.X_OK):
        todo = f"let this user write to {place}"
        return Finding(name="embedded store", value=f"{settings.store_path} is not writable", state="bad", todo=todo)
    made = "" if place == settings.store_path.absolute() or settings.store_path.exists() else ", to be made"
    return Finding(name="embedded store", value=f"{settings.store_path}{made}, {size(left)} free")


async def _qdrant(settings: GatewaySettings) -> Finding:
    try:
        from qdrant_client import grpc as pb  # noqa: PLC0415 - an extra

        from gateway.stores.qdrant_probe import PATIENCE_S, probe  # noqa: PLC0415
        from gateway.stores.qdrant_settings import target_of  # noqa: PLC0415
        from gateway.stores.qdrant_status import answered  # noqa: PLC0415
        from gateway.stores.qdrant_target import open_channel  # noqa: PLC0415
    except ImportError:
        return Finding(
            name="Qdrant", value="qdrant-client is not installed", state="bad", todo="pip install 'twostage[qdrant]'"
        )
    try:
        target = target_of(settings)
        async with open_channel(target) as channel:
            stub = pb.QdrantStub(channel)  # type: ignore[no-untyped-call]  # generated
            begun = time.monotonic()
            call = stub.HealthCheck(pb.HealthCheckRequest(), timeout=PATIENCE_S, metadata=target.metadata)
            version, seconds = (await answered(call, stage="preflight")).version, time.monotonic() - begun
            await probe(channel, target, PATIENCE_S)  # whether it is one, and new enough
    except ServiceError as error:
        todo = "start it, or look at TWOSTAGE_GATEWAY_QDRANT_URL; the gRPC port is 6334"
        return Finding(name="Qdrant", value=f"{error.reason}: {error.message}", state="bad", todo=todo)
    return Finding(name="Qdrant", value=f"{version} at {target.address}, answered in {seconds * 1e3:.0f} ms")


def limits() -> Iterator[Finding]:
    """Look at open files and at the clocks."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    few = soft != resource.RLIM_INFINITY and soft < LEAST_OPEN_FILES
    todo = f"raise it to {LEAST_OPEN_FILES}: `ulimit -n`, LimitNOFILE, or the container's ulimits" if few else ""
    yield Finding(
        name="open files", value=f"{soft} at most, {hard} if raised", state="note" if few else "good", todo=todo
    )
    resolution = time.get_clock_info("monotonic").resolution
    coarse = resolution > COARSE_S
    yield Finding(
        name="timer", value=f"monotonic clock in steps of {resolution * 1e9:g} ns", state="note" if coarse else "good"
    )
    kept = clock_kept()
    if kept is not None:
        todo = "" if kept else "certificates and logs need it: let something keep it right, such as chrony"
        value = "kept right" if kept else "the kernel knows of nothing that keeps it right"
        yield Finding(name="clock", value=value, state="good" if kept else "note", todo=todo)


def clock_kept() -> bool | None:
    """Ask the kernel whether something keeps the wall clock right; None where it cannot be asked."""
    adjtimex = getattr(ctypes.CDLL(None), "adjtimex", None)
    if adjtimex is None:
        return None
    state = adjtimex(ctypes.create_string_buffer(TIMEX_BYTES))  # all zero: asks, and changes nothing
    return None if state < 0 else bool(state != TIME_ERROR)
