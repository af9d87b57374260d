"""How many processors this process may really use, and which instructions for int8 they have.

The affinity mask does not show a container's quota, and onnxruntime looks at neither, so it starts a thread per core of
the host and they wait for each other.
"""

import math
import os
from pathlib import Path

CGROUP_ROOT = Path("/sys/fs/cgroup")
CPU_INFO = Path("/proc/cpuinfo")
# Without one of these, products of int8 are no faster than of float32, and some kernels saturate on the way.
INT8_FLAGS = ("amx_int8", "avx512_vnni", "avx_vnni")


def usable_cpus(cgroup: Path = CGROUP_ROOT) -> int:
    """Return min(affinity, quota rounded up), at least 1."""
    affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = read_quota(cgroup)
    return max(1, min(affinity, math.ceil(quota)) if quota is not None else affinity)


def read_quota(cgroup: Path) -> float | None:
    """Return the quota in processors, or None where there is none: cgroup v2 first, then v1."""
    try:
        return parse_cpu_max((cgroup / "cpu.max").read_text(encoding="ascii"))
    except OSError:
        pass
    try:
        quota = int((cgroup / "cpu/cpu.cfs_quota_us").read_text(encoding="ascii"))
        period = int((cgroup / "cpu/cpu.cfs_period_us").read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None
    return quota / period if quota > 0 and period > 0 else None


def parse_cpu_max(text: str) -> float | None:
    """Read cgroup v2's `cpu.max`: "150000 100000" is 1.5, "max 100000" is None."""
    quota, _, period = text.strip().partition(" ")
    if quota == "max" or not quota.isdigit():
        return None
    return int(quota) / int(period or 100_000)


def int8_flags(cpu_info: Path = CPU_INFO) -> tuple[str, ...]:
    """Return which of `INT8_FLAGS` this machine's processors have; none where the system does not say."""
    try:
        return parse_int8_flags(cpu_info.read_text(encoding="utf-8", errors="replace"))
    except OSError:
        return ()


def parse_int8_flags(text: str) -> tuple[str, ...]:
    """Read `/proc/cpuinfo`: a flag counts where every processor has it."""
    lines = [line.partition(":") for line in text.splitlines()]
    flags = [set(value.split()) for name, _, value in lines if name.strip() == "flags"]
    return tuple(flag for flag in INT8_FLAGS if flags and all(flag in each for each in flags))
