"""What preflight makes of a machine that lacks something."""

import subprocess
from pathlib import Path

import pytest
from factories import encoder_settings, tiny_encoder_bundle
from qdrant_stand_in import stand_in

from cli import checks, preflight, preflight_checks
from cli.preflight_model import missing_libraries
from gateway.settings import GatewaySettings
from serving.settings import ServerSettings


@pytest.fixture
def settings(tmp_path: Path) -> dict[str, ServerSettings]:
    return {"encoder": encoder_settings(tiny_encoder_bundle(tmp_path / "bundle"), workers=3)}


@pytest.mark.parametrize(("left_mb", "state"), [(299, "bad"), (301, "note"), (400, "good")])
def test_memory_is_compared_with_what_loading_took(
    settings: dict[str, ServerSettings], left_mb: int, state: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every worker loads the model for itself; requests need some more."""
    (tmp_path / "meminfo").write_text(f"MemAvailable: {left_mb * 1000} kB\n")
    monkeypatch.setattr(checks, "MEMINFO", tmp_path / "meminfo")
    monkeypatch.setattr(checks, "CGROUP", tmp_path)
    *_, last = preflight_checks.memory({"encoder": 100 * 1_024_000}, settings)
    assert (last.name, last.state) == ("memory", state)


def test_a_containers_limit_counts_where_it_is_less(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the machine has left is no use to a container at its limit; files that can be read again are no matter."""
    (tmp_path / "meminfo").write_text("MemAvailable: 9000000 kB\n")
    (tmp_path / "memory.max").write_text("1000\n")
    (tmp_path / "memory.current").write_text("900\n")
    (tmp_path / "memory.stat").write_text("anon 100\ninactive_file 250\n")
    monkeypatch.setattr(checks, "MEMINFO", tmp_path / "meminfo")
    monkeypatch.setattr(checks, "CGROUP", tmp_path)
    assert checks.available_memory() == 350
    (tmp_path / "memory.max").write_text("max\n")
    assert checks.available_memory() == 9_000_000 * 1024


def test_libraries_that_a_binary_needs_and_nobody_has_are_named(tmp_path: Path) -> None:
    """All of them at once, each once, and not those that other words only resemble."""
    names = [b"libcudart.so.999", b"libcublasLt.so.999", b"libcudart.so.999", b"libc.so.6", b"libcurious.txt"]
    binary = tmp_path / "provider.so"
    binary.write_bytes(b"\x7fELF\x00" + b"\x00".join(names) + b"\x00rest")
    assert missing_libraries(binary) == ["libcublasLt.so.999", "libcudart.so.999"]


@pytest.mark.parametrize(
    ("returncode", "words", "todo"), [(-9, "SIGKILL", "memory"), (-11, "SIGSEGV", "driver"), (70, "status 70", "")]
)
def test_a_load_that_is_taken_down_takes_down_nothing_else(returncode: int, words: str, todo: str) -> None:
    """What ended the process is named, with its last words."""
    done = subprocess.CompletedProcess([], returncode, b"", b"first\nlast words\n")
    found = preflight._taken_down(done)
    assert (found.state, words in found.value, "last words" in found.value) == ("bad", True, True)
    assert todo in found.todo


def test_few_open_files_are_worth_knowing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A usual default is soon used up by connections and segments."""
    monkeypatch.setattr("resource.getrlimit", lambda _: (1_024, 524_288))
    found = {one.name: one for one in preflight_checks.limits()}
    assert (found["open files"].state, found["open files"].value) == ("note", "1024 at most, 524288 if raised")


@pytest.mark.parametrize(("version", "state"), [("1.16.2", "good"), ("1.15.9", "bad")])
async def test_a_qdrant_is_asked_for_its_version(version: str, state: str) -> None:
    """One that is too old is as bad as none."""
    async with stand_in() as running:
        running.version = version
        url = f"http://127.0.0.1:{running.port}"
        found = await preflight_checks.store(GatewaySettings(store="qdrant", qdrant_url=url))
    assert (found.state, version in found.value) == (state, True)
