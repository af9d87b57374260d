"""What the parent of workers decides before any of them runs: the port, their settings, where they can be."""

import os
import socket
import sys
from pathlib import Path

import pytest

from encoder_server.settings import EncoderSettings
from serving import workers
from serving.cpu import usable_cpus
from serving.errors import Misconfigured
from serving.settings import environment
from serving.workers import reserved

HOST = "127.0.0.1"


def listening(port: int, *, reuse: bool) -> socket.socket:
    """Listen as a server does."""
    server = socket.socket()
    server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, reuse)
    try:
        server.bind((HOST, port))
        server.listen()
    except OSError:
        server.close()
        raise
    return server


def refusal(host: str, port: int) -> str:
    """Try to reserve a port that cannot be had; return what is said."""
    with pytest.raises(Misconfigured) as caught, reserved(host, port):
        pass
    assert caught.value.reason == "ADDRESS_UNAVAILABLE"
    return caught.value.message


def test_workers_share_a_reserved_port_and_nobody_else_gets_it():
    """Port 0 becomes one number for all; a server that does not share is kept out."""
    with reserved(HOST, 0) as port:
        with listening(port, reuse=True), listening(port, reuse=True):
            pass
        with pytest.raises(OSError, match="in use"):
            listening(port, reuse=False)


def test_a_port_is_reserved_once_even_before_a_worker_listens():
    """A second parent is refused from the first moment, although both would share (field failure 36)."""
    with reserved(HOST, 0) as port:
        assert f"{HOST}:{port}" in refusal(HOST, port)
    with reserved(HOST, port) as again:
        assert again == port


@pytest.mark.parametrize("reuse", [False, True])
def test_a_port_that_somebody_listens_on_cannot_be_reserved(*, reuse: bool):
    """Whether the other server would share its port makes no difference."""
    with listening(0, reuse=reuse) as other:
        refusal(HOST, other.getsockname()[1])


def test_a_connection_that_lingers_does_not_keep_the_port():
    """After a restart the port can be had at once, though the kernel still remembers old connections."""
    with reserved(HOST, 0) as port, listening(port, reuse=True) as server, socket.create_connection((HOST, port)):
        server.accept()[0].close()  # whoever closes first keeps the connection in TIME_WAIT
    with reserved(HOST, port) as again:
        assert again == port


@pytest.mark.parametrize("host", ["[::1]", "::1"])
def test_a_host_may_be_of_the_newer_protocol(host: str):
    """IPv6 addresses are taken with and without brackets."""
    with reserved(host, 0) as port:
        assert port > 0


def test_a_host_that_is_none_of_this_machine_is_named():
    """Documentation addresses (RFC 5737) are nobody's."""
    assert "192.0.2.1:7" in refusal("192.0.2.1", 7)


def test_a_child_has_the_parents_settings_but_for_the_changed_ones(monkeypatch: pytest.MonkeyPatch):
    """Other settings and variables stay; a setting spelt in lower case does not contradict the changed one."""
    monkeypatch.setenv("twostage_encoder_port", "1")
    monkeypatch.setenv("TWOSTAGE_ENCODER_MAX_TEXTS", "7")
    monkeypatch.setenv("TWOSTAGE_RERANKER_PORT", "3")
    settings = EncoderSettings(bundle=Path("x"))
    given = environment(settings, port=2, parent_pid=4)
    assert {name: value for name, value in given.items() if name.upper().startswith("TWOSTAGE_")} == {
        "TWOSTAGE_ENCODER_PORT": "2",
        "TWOSTAGE_ENCODER_PARENT_PID": "4",
        "TWOSTAGE_ENCODER_MAX_TEXTS": "7",
        "TWOSTAGE_RERANKER_PORT": "3",
    }
    assert given["PATH"] == os.environ["PATH"]


@pytest.mark.parametrize("count", [1, 2, 256])
def test_workers_divide_the_processors(count: int):
    """All workers' threads together are no more than the processors, but each has one; a setting counts for each."""
    settings = EncoderSettings(bundle=Path("x"), workers=count)
    assert settings.session_options.threads == max(1, usable_cpus() // count)
    assert EncoderSettings(bundle=Path("x"), workers=count, threads=5).session_options.threads == 5


def test_workers_are_refused_where_ports_are_not_shared_evenly(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    """Elsewhere than on Linux SO_REUSEPORT means something else."""
    monkeypatch.setattr(sys, "platform", "darwin")
    settings = EncoderSettings(bundle=Path("x"), workers=2)
    assert workers.run("encoder_server", settings, lambda _: pytest.fail("opened")) == 2
    assert capsys.readouterr().err.startswith("WORKERS_UNSUPPORTED: ")
