"""The table from error to status."""

import importlib
import inspect
import pkgutil
import re

import grpc
import pytest
from google.rpc import error_details_pb2, status_pb2

import serving
from serving import errors
from serving.status import CODES, MAX_DETAIL_CHARACTERS, clip, code_of, failure_of, to_status

PRIVATE = "text of a user"
SAMPLES: list[tuple[errors.ServiceError, grpc.StatusCode]] = [
    (errors.InvalidRequest("TEXT_BLANK", "no visible character", field="texts[3]"), grpc.StatusCode.INVALID_ARGUMENT),
    (errors.Unauthenticated("API_KEY_MISSING", "a key is required"), grpc.StatusCode.UNAUTHENTICATED),
    (errors.PermissionDenied("COLLECTION_FORBIDDEN", "not yours"), grpc.StatusCode.PERMISSION_DENIED),
    (errors.NotFound("COLLECTION_NOT_FOUND", "no such collection"), grpc.StatusCode.NOT_FOUND),
    (errors.AlreadyExists("COLLECTION_EXISTS", "it exists"), grpc.StatusCode.ALREADY_EXISTS),
    (errors.Misconfigured("VECTOR_SIZE_MISMATCH", "8 is not 384"), grpc.StatusCode.FAILED_PRECONDITION),
    (errors.Overloaded("QUEUE_FULL", "full", retry_after_s=1.25), grpc.StatusCode.RESOURCE_EXHAUSTED),
    (errors.DeviceOutOfMemory("DEVICE_OUT_OF_MEMORY", "no", retry_after_s=1.25), grpc.StatusCode.RESOURCE_EXHAUSTED),
    (errors.NotReady("STARTING", "loading"), grpc.StatusCode.UNAVAILABLE),
    (errors.Unavailable("ENCODER_UNAVAILABLE", "gone", stage="encode"), grpc.StatusCode.UNAVAILABLE),
    (errors.DeadlineSpent("DEADLINE_SPENT", "late", stage="queue"), grpc.StatusCode.DEADLINE_EXCEEDED),
    (errors.InferenceFailed("NON_FINITE", PRIVATE), grpc.StatusCode.INTERNAL),
]


def details_of(error: BaseException) -> tuple[status_pb2.Status, error_details_pb2.ErrorInfo, list[str]]:
    """Unpack what travels in the trailing metadata."""
    ((key, value),) = to_status(error, "abc").trailing_metadata
    assert key == "grpc-status-details-bin"
    status = status_pb2.Status.FromString(value)
    info = error_details_pb2.ErrorInfo()
    assert status.details[0].Unpack(info)
    return status, info, [detail.TypeName() for detail in status.details]


def every_kind() -> set[type[errors.ServiceError]]:
    """Find all subclasses of ServiceError that servers can raise; the command line's own never become a status."""
    for module in pkgutil.iter_modules(serving.__path__):
        importlib.import_module(f"serving.{module.name}")
    found, todo = set[type[errors.ServiceError]](), [errors.ServiceError]
    while todo:
        children = [kind for kind in todo.pop().__subclasses__() if not kind.__module__.startswith(("test_", "cli."))]
        found.update(children)
        todo.extend(children)
    return found


def test_every_member_of_the_tree_is_in_the_table():
    """No error that is raised on purpose falls through to INTERNAL by being forgotten."""
    kinds = every_kind()
    assert len(kinds) >= 9
    for kind in kinds:
        assert any(parent in CODES for parent in kind.__mro__), kind
    assert set(CODES) <= kinds
    assert grpc.StatusCode.UNKNOWN not in CODES.values()


def test_the_samples_below_cover_the_table():
    """A new row of the table needs a sample here."""
    assert {type(error) for error, _ in SAMPLES} == set(CODES)


def test_every_member_says_when_it_is_raised():
    """An error without a sentence cannot be acted upon."""
    assert all(inspect.getdoc(kind) for kind in every_kind())


@pytest.mark.parametrize(("error", "code"), SAMPLES, ids=lambda value: type(value).__name__)
def test_code_reason_and_domain_arrive(error: errors.ServiceError, code: grpc.StatusCode):
    """The status has the table's code, and ErrorInfo the stable reason (field failure 37)."""
    status, info, _ = details_of(error)
    assert (code_of(error), to_status(error, "abc").code, status.code) == (code, code, code.value[0])
    assert (info.reason, info.domain) == (error.reason, "twostage")
    assert status.message == to_status(error, "abc").details


@pytest.mark.parametrize(("error", "code"), SAMPLES, ids=lambda value: type(value).__name__)
def test_only_overload_says_when_to_retry(error: errors.ServiceError, code: grpc.StatusCode):
    """RetryInfo comes with the one error that passes by waiting, and has its delay exactly."""
    status, _, kinds = details_of(error)
    overloaded = code is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert kinds == ["google.rpc.ErrorInfo", "google.rpc.RetryInfo"][: 2 if overloaded else 1]
    if overloaded:
        retry = error_details_pb2.RetryInfo()
        status.details[1].Unpack(retry)
        assert retry.retry_delay.ToNanoseconds() == 1_250_000_000


@pytest.mark.parametrize("error", [errors.InferenceFailed("X", PRIVATE), ValueError(PRIVATE), KeyError(PRIVATE)])
def test_what_is_our_fault_has_a_fixed_text_and_an_id(error: Exception):
    """INTERNAL never carries the message, only an id to look for in the log (field failure 38)."""
    status, info, _ = details_of(error)
    assert status.code == grpc.StatusCode.INTERNAL.value[0]
    assert status.message == "internal error, id=abc"
    assert info.metadata["error_id"] == "abc"
    assert PRIVATE not in str(status)
    assert PRIVATE.encode() not in status.SerializeToString()


def test_the_parts_of_a_message_are_there_for_programs():
    """The field of a wrong request can be read without parsing prose."""
    _, info, _ = details_of(SAMPLES[0][0])
    assert dict(info.metadata) == {"field": "texts[3]"}


def test_a_subclass_has_the_code_of_its_parent():
    """The table is walked up the tree."""

    class Special(errors.NotFound):
        """A NotFound of a test."""

    assert code_of(Special("X", "y")) is grpc.StatusCode.NOT_FOUND


@pytest.mark.parametrize("character", ["x", "熊", "\U0001f43c"])
def test_long_details_are_cut(character: str):
    """Message and metadata stay within what a header carries (field failure 37)."""
    error = errors.InvalidRequest("LONG", character * 5000, field=character * 5000)
    status, info, _ = details_of(error)
    assert len(status.message) == MAX_DETAIL_CHARACTERS
    assert status.message.endswith("...")
    assert len(info.metadata["field"]) == MAX_DETAIL_CHARACTERS
    assert clip(character * MAX_DETAIL_CHARACTERS) == character * MAX_DETAIL_CHARACTERS


@pytest.mark.parametrize("error", [errors.NotFound("X", "a\ud800b", name="\udfff"), errors.NotFound("X", "y", count=3)])
def test_what_protobuf_cannot_hold_does_not_break_the_answer(error: errors.ServiceError):
    """A lone surrogate or a number in an error still gives the error's own status."""
    status, _, _ = details_of(error)
    assert status.code == grpc.StatusCode.NOT_FOUND.value[0]


def test_a_failure_inside_a_stream_tells_the_same():
    """Messages of a stream report code, reason and text by the same table, with an id of their own."""
    assert failure_of(SAMPLES[0][0]) == (3, "TEXT_BLANK", "texts[3]: no visible character")
    code, reason, text = failure_of(ValueError(PRIVATE))
    assert (code, reason) == (13, "INTERNAL")
    assert re.fullmatch("internal error, id=[0-9a-f]{12}", text)
