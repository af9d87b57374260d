"""`twostage up` as real processes."""

import json
import os
import signal
import socket
from pathlib import Path

import pytest
from up_process import UpProcess, twostage

pytestmark = pytest.mark.slow


def test_the_ready_line_names_the_addresses_and_the_next_command(running: UpProcess) -> None:
    """Somebody who has started the system knows where it is and how to search it."""
    assert running.ready_line.startswith("ready")
    for port in (running.gateway_port, running.encoder_port, running.reranker_port):
        assert f"127.0.0.1:{port}" in running.ready_line
    assert f'twostage search "..." --collection NAME --gateway {running.gateway}' in running.ready_line


def test_log_lines_carry_the_name_of_their_server(running: UpProcess) -> None:
    """Every server's log is told apart by a prefix of one width."""
    log = running.log.read_text()
    assert "encoder  | " in log
    assert "reranker | " in log
    assert "gateway  | " in log


def test_children_have_sessions_of_their_own(running: UpProcess) -> None:
    """The terminal's Ctrl-C reaches the parent only, so that it can stop them in order."""
    modules = ("gateway", "encoder_server", "reranker_server")
    sessions = {os.getsid(running.child(module).pid) for module in modules}
    assert len(sessions) == 3
    assert os.getsid(running.process.pid) not in sessions


def test_a_second_up_on_the_same_ports_fails_and_the_first_goes_on(running: UpProcess) -> None:
    """Field failure 36: a taken port is one clear line and status 2, and whoever has it keeps serving."""
    second = twostage("up", *running.options)
    assert second.returncode == 2
    assert f"PORT_TAKEN: already in use: 127.0.0.1:{running.gateway_port} (gateway)" in second.stderr
    assert second.stdout == ""
    assert twostage("collections", "list", "--gateway", running.gateway).returncode == 0


def test_calls_take_no_proxy(running: UpProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    """Field failure 61: a proxy in the environment does not come between a command and a server of this machine."""
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    assert twostage("collections", "list", "--gateway", running.gateway).returncode == 0


def test_interrupt_stops_everything(home: Path, tmp_path: Path) -> None:
    """Ctrl-C ends with status 0, the gateway first, and leaves no process and no port behind; JSON lines stay JSON."""
    with UpProcess(home, tmp_path / "log", "--log-format", "json") as up:
        assert up.interrupt() == 0
        assert up.survivors() == []
        lines = [json.loads(line) for line in up.log.read_text().splitlines() if line.startswith("{")]
        draining = [line["service"] for line in lines if "draining" in line["message"]]
        assert draining[0] == "gateway"
        assert sorted(draining) == ["encoder", "gateway", "reranker"]
        for port in (up.gateway_port, up.encoder_port, up.reranker_port):
            with socket.socket() as probe:
                assert probe.connect_ex(("127.0.0.1", port)) != 0


def test_a_second_signal_ends_everything_at_once(home: Path, tmp_path: Path) -> None:
    """Whoever does not want to wait for a gateway that does not drain does not have to."""
    with UpProcess(home, tmp_path / "log") as up:
        up.child("gateway").suspend()
        up.process.send_signal(signal.SIGINT)
        assert up.interrupt(signal.SIGTERM) == 128 + signal.SIGINT
        assert up.survivors() == []


def test_a_server_that_dies_takes_the_others_down(home: Path, tmp_path: Path) -> None:
    """One server killed from outside is named, the rest are stopped, and the exit status says that it went wrong."""
    with UpProcess(home, tmp_path / "log") as up:
        up.child("reranker_server").kill()
        assert up.process.wait(60) == 1
        assert up.survivors() == []
        assert "error: the reranker was ended by signal 9; the others were stopped" in up.log.read_text()


def test_a_killed_parent_leaves_no_servers(home: Path, tmp_path: Path) -> None:
    """Servers notice that their parent is gone, however it went."""
    with UpProcess(home, tmp_path / "log") as up:
        assert up.interrupt(signal.SIGKILL) == -signal.SIGKILL
        assert up.survivors() == []


def test_a_setting_that_a_server_refuses_is_shown(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that ends before it serves is named together with its own last words."""
    monkeypatch.setenv("TWOSTAGE_ENCODER_THREADZ", "2")
    with pytest.raises(AssertionError, match="TWOSTAGE_ENCODER_THREADZ: no such setting") as caught:
        UpProcess(home, tmp_path / "log").__enter__()
    assert "error: the encoder ended with status 2; the others were stopped" in str(caught.value)


def test_missing_full_models_name_the_command_that_makes_them(tmp_path: Path) -> None:
    """Models that take gigabytes are not downloaded unasked."""
    result = twostage("up", "--profile", "full", "--home", str(tmp_path), *UpProcess(tmp_path, tmp_path).options[2:])
    assert result.returncode == 2
    assert "BUNDLE_MISSING" in result.stderr
    assert "run `twostage models prepare --profile full`" in result.stderr
