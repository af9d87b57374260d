"""A server's process, run inside this one: exit status and order of opening and draining."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from serving import process
from serving.errors import Misconfigured
from serving.process import Fatal, OpenApp


@pytest.fixture
def events() -> list[str]:
    """What happened, in order."""
    return []


def app(events: list[str], once_open: Callable[[Fatal], None]) -> OpenApp:
    """Make an app that notes opening and draining, and does something once it is open."""

    @asynccontextmanager
    async def open_app(on_fatal: Fatal) -> AsyncIterator[None]:
        events.append("open")
        once_open(on_fatal)
        yield
        events.append("drained")

    return open_app


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_drains_and_is_a_success(events: list[str], number: signal.Signals, monkeypatch: pytest.MonkeyPatch):
    """SIGTERM and SIGINT leave the app's context and exit with 0 (field failure 19)."""
    monkeypatch.setattr(os, "_exit", lambda status: pytest.fail(f"exit at once with {status}"))

    def once_running(_: Fatal) -> None:
        asyncio.get_running_loop().call_soon(lambda: os.kill(os.getpid(), number))

    assert process.run(app(events, once_running)) == 0
    assert events == ["open", "drained"]


def test_a_fatal_fault_drains_and_is_a_failure(events: list[str], caplog: pytest.LogCaptureFixture):
    """A part that died ends the process with 70 after a drain, with the cause in the log."""
    assert process.run(app(events, lambda on_fatal: on_fatal(ZeroDivisionError("the part")))) == process.EXIT_DIED == 70
    assert events == ["open", "drained"]
    assert "the part" in caplog.text


def test_a_second_fatal_fault_changes_nothing(events: list[str]):
    """Whatever else breaks on the way down, the process goes down once."""

    def twice(on_fatal: Fatal) -> None:
        on_fatal(ZeroDivisionError())
        on_fatal(ValueError())

    assert process.run(app(events, twice)) == 70


def test_misconfiguration_is_one_line_and_status_2(events: list[str], capsys: pytest.CaptureFixture[str]):
    """An operator reads reason and message, without a trace."""

    def refuse(_: Fatal) -> None:
        raise Misconfigured("BUNDLE_MISSING", "no bundle there")

    assert process.run(app(events, refuse)) == 2
    assert capsys.readouterr().err == "BUNDLE_MISSING: no bundle there\n"


def test_an_unforeseen_error_is_not_hidden(events: list[str]):
    """What is no operator's fault keeps its trace."""

    def break_down(_: Fatal) -> None:
        raise KeyError("bug")

    with pytest.raises(KeyError):
        process.run(app(events, break_down))


def test_a_fault_that_an_operator_has_to_mend_drains_and_is_status_2(
    events: list[str], capsys: pytest.CaptureFixture[str]
):
    """Misconfiguration that shows only once the app is open is said and rated as at the start."""
    fault = Misconfigured("WORKER_MISCONFIGURED", "no bundle there")
    assert process.run(app(events, lambda on_fatal: on_fatal(fault))) == 2
    assert events == ["open", "drained"]
    assert capsys.readouterr().err == "WORKER_MISCONFIGURED: no bundle there\n"


def test_a_fault_in_the_drain_is_a_failure():
    """A drain in which a part dies is no success."""

    @asynccontextmanager
    async def open_app(on_fatal: Fatal) -> AsyncIterator[None]:
        asyncio.get_running_loop().call_soon(lambda: os.kill(os.getpid(), signal.SIGTERM))
        yield
        on_fatal(ZeroDivisionError("the part"))

    assert process.run(open_app) == 70


@pytest.mark.parametrize("patient", [False, True])
def test_only_the_impatient_end_at_the_second_signal(*, patient: bool, monkeypatch: pytest.MonkeyPatch):
    """A worker is sent SIGTERM by its parent and perhaps by the supervisor too, and still drains (field failure 19)."""
    exits: list[int] = []
    monkeypatch.setattr(os, "_exit", exits.append)

    @asynccontextmanager
    async def open_app(_: Fatal) -> AsyncIterator[None]:
        loop, handled = asyncio.get_running_loop(), asyncio.Event()
        loop.call_soon(lambda: os.kill(os.getpid(), signal.SIGTERM))
        yield
        loop.add_signal_handler(signal.SIGUSR1, handled.set)
        for number in (signal.SIGTERM, signal.SIGUSR1):
            os.kill(os.getpid(), number)
        await handled.wait()

    assert process.run(open_app, patient=patient) == 0
    assert exits == ([] if patient else [128 + signal.SIGTERM])
