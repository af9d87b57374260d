"""What a status means to a person, and the exit status it becomes."""

import grpc
import pytest
import typer

from cli.calls import CHANNEL_OPTIONS, CODE_BY_NUMBER, EXIT_BY_CODE, CallFailed, explain, reported
from serving.errors import Misconfigured, Unavailable


def test_every_code_that_servers_send_has_an_exit_status() -> None:
    """Codes of our own table are told apart; INTERNAL is the fault of a server."""
    assert CODE_BY_NUMBER[13] is grpc.StatusCode.INTERNAL
    assert set(EXIT_BY_CODE.values()) == {1, 2, 69}


def test_an_attempt_to_connect_has_the_time_that_a_long_way_needs() -> None:
    """TLS takes several times the way there and back, and gRPC gives an attempt no more than its least backoff."""
    options = dict(CHANNEL_OPTIONS)
    assert options["grpc.min_reconnect_backoff_ms"] >= 2_000
    assert options["grpc.max_reconnect_backoff_ms"] <= 1_000


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (CallFailed(grpc.StatusCode.NOT_FOUND, "COLLECTION_NOT_FOUND", "no"), 1),
        (CallFailed(grpc.StatusCode.FAILED_PRECONDITION, "ENCODER_MISMATCH", "no"), 2),
        (CallFailed(grpc.StatusCode.RESOURCE_EXHAUSTED, "QUEUE_FULL", "no"), 69),
        (CallFailed(grpc.StatusCode.INTERNAL, "INTERNAL", "no"), 70),
        (Misconfigured("BUNDLE_MISSING", "no"), 2),
        (Unavailable("HUB_UNREACHABLE", "no"), 69),
    ],
)
def test_errors_become_exit_statuses(error: Exception, status: int, capsys: pytest.CaptureFixture[str]) -> None:
    """Whatever is raised on purpose ends the command with one line and its status."""
    with pytest.raises(typer.Exit) as caught, reported():
        raise error
    assert caught.value.exit_code == status
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.splitlines()[0].startswith("error: ")


def test_what_to_do_follows_the_reason_before_the_code() -> None:
    """The most exact advice that is known is given."""
    line, todo = explain(CallFailed(grpc.StatusCode.UNAVAILABLE, "RERANKER_UNAVAILABLE", "the reranker is away"), "a:1")
    assert line == "UNAVAILABLE RERANKER_UNAVAILABLE: the reranker is away"
    assert "--rerank best-effort" in todo


def test_a_defect_of_ours_is_not_dressed_up() -> None:
    """An exception nobody meant keeps its trace."""
    with pytest.raises(ZeroDivisionError), reported():
        raise ZeroDivisionError
