"""Processors that may be used: affinity, cgroup v2, cgroup v1; and what they can do with int8."""

import os
from pathlib import Path

import pytest

from serving.cpu import int8_flags, parse_cpu_max, parse_int8_flags, read_quota, usable_cpus


@pytest.fixture
def eight_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let this process run on eight processors, whatever the machine has."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: set(range(8)), raising=False)


def v2(directory: Path, text: str) -> Path:
    """Write a cgroup v2 quota."""
    (directory / "cpu.max").write_text(text, encoding="ascii")
    return directory


def v1(directory: Path, quota: str, period: str) -> Path:
    """Write a cgroup v1 quota."""
    (directory / "cpu").mkdir()
    (directory / "cpu/cpu.cfs_quota_us").write_text(quota, encoding="ascii")
    (directory / "cpu/cpu.cfs_period_us").write_text(period, encoding="ascii")
    return directory


@pytest.mark.parametrize(
    ("text", "quota"),
    [("150000 100000", 1.5), ("max 100000", None), ("50000 100000\n", 0.5), ("200000", 2.0), ("", None), ("-1", None)],
)
def test_cpu_max_is_read(text: str, quota: float | None):
    """The two forms of the kernel are read, and what is neither is no quota (field failure 17)."""
    assert parse_cpu_max(text) == quota


@pytest.mark.usefixtures("eight_cpus")
@pytest.mark.parametrize(
    ("text", "count"), [("150000 100000", 2), ("max 100000", 8), ("10000 100000", 1), ("1600000 100000", 8)]
)
def test_threads_follow_quota_and_affinity(tmp_path: Path, text: str, count: int):
    """The quota is rounded up, never under 1, and never over the affinity (field failure 17)."""
    assert usable_cpus(v2(tmp_path, text)) == count


@pytest.mark.usefixtures("eight_cpus")
@pytest.mark.parametrize(
    ("quota", "period", "count"),
    [("250000\n", "100000\n", 3), ("-1", "100000", 8), ("100000", "0", 8), ("garbage", "100000", 8)],
)
def test_cgroup_v1_is_read(tmp_path: Path, quota: str, period: str, count: int):
    """Without cpu.max the two files of version 1 count; -1 there means no quota (field failure 17)."""
    assert usable_cpus(v1(tmp_path, quota, period)) == count


@pytest.mark.usefixtures("eight_cpus")
def test_without_cgroups_the_affinity_counts(tmp_path: Path):
    """A machine without control groups has no quota."""
    assert read_quota(tmp_path) is None
    assert usable_cpus(tmp_path) == 8


def test_version_2_wins_over_version_1(tmp_path: Path):
    """Where both are mounted the newer one is what the kernel enforces."""
    assert read_quota(v1(v2(tmp_path, "300000 100000"), "100000", "100000")) == 3.0


def test_a_system_without_affinity_counts_its_processors(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """Where the system knows no affinity, as macOS, the number of processors is taken."""
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 6)
    assert usable_cpus(tmp_path) == 6


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("flags\t\t: fpu avx512_vnni avx_vnni sse2", ("avx512_vnni", "avx_vnni")),
        ("processor\t: 0\nflags\t\t: amx_int8 fpu\n\nprocessor\t: 1\nflags\t\t: fpu amx_int8\n", ("amx_int8",)),
        ("flags : avx512_vnni\n\nflags : fpu\n", ()),
        ("flags : avx512_vnni_like avx2\nbugs : avx512_vnni", ()),
        ("Features : asimd asimddp", ()),
        ("", ()),
    ],
)
def test_instructions_for_int8_are_read(text: str, found: tuple[str, ...]):
    """Whole words of the line of flags count, and only where every processor has them (field failure 54)."""
    assert parse_int8_flags(text) == found


def test_a_system_that_does_not_say_has_no_instructions(tmp_path: Path):
    """Where there is no `/proc/cpuinfo`, as on macOS, int8 is not taken by itself."""
    assert int8_flags(tmp_path / "cpuinfo") == ()
    (tmp_path / "cpuinfo").write_text("flags : avx_vnni\n", encoding="ascii")
    assert int8_flags(tmp_path / "cpuinfo") == ("avx_vnni",)
