"""What can go wrong, sorted by who has to act; knows no transport.

::

    ServiceError
    +-- InvalidRequest        the caller's request is wrong whatever our state
    +-- Unauthenticated       the caller does not say who it is, or nobody knows it
    +-- PermissionDenied      the caller may not do this
    +-- NotFound              what the caller named does not exist
    +-- AlreadyExists         what the caller wants to create exists
    +-- Misconfigured         an operator has to act
    +-- Overloaded            a queue is full; try again after `retry_after_s`
    |   +-- DeviceOutOfMemory a batch does not fit into the device's memory
    +-- NotReady              starting or draining
    +-- Unavailable           a backend cannot be reached
    +-- DeadlineSpent         the caller's time is over
    +-- InferenceFailed       the engine failed or gave a non-finite answer

`serving.status` is the one place that turns these into gRPC statuses.
"""


class ServiceError(Exception):
    """Base of everything a service reports on purpose.

    Args:
        reason: Stable UPPER_SNAKE_CASE word for programs, for example "TEXT_TOO_LONG".
        message: One sentence for people: what was wrong, the value, the limit. Never the user's text.
        metadata: Anything variable in the message, again, for programs.
    """

    def __init__(self, reason: str, message: str, **metadata: str) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message
        self.metadata = metadata


class InvalidRequest(ServiceError):
    """The caller's request is wrong whatever our state; `field` names the part, for example `texts[3]`."""

    def __init__(self, reason: str, message: str, *, field: str) -> None:
        super().__init__(reason, f"{field}: {message}", field=field)
        self.field = field


class Unauthenticated(ServiceError):
    """The caller does not say who it is, or is nobody that this server knows."""


class PermissionDenied(ServiceError):
    """The caller may not do this; the same for what exists and for what does not."""


class NotFound(ServiceError):
    """What the caller named does not exist."""


class AlreadyExists(ServiceError):
    """What the caller wants to create exists already."""


class Misconfigured(ServiceError):
    """An operator has to act: a wrong model, a missing file, a collection of another encoder."""


class Overloaded(ServiceError):
    """A queue is full; the caller may try again after `retry_after_s` seconds."""

    def __init__(self, reason: str, message: str, *, retry_after_s: float, **metadata: str) -> None:
        super().__init__(reason, message, **metadata)
        self.retry_after_s = retry_after_s


class DeviceOutOfMemory(Overloaded):
    """A batch does not fit into what memory the device has left; a smaller one, or a later one, may."""


class NotReady(ServiceError):
    """This server is starting or draining."""


class Unavailable(ServiceError):
    """A backend of ours cannot be reached; the caller may try again after `retry_after_s` seconds where that is set."""

    def __init__(self, reason: str, message: str, *, retry_after_s: float | None = None, **metadata: str) -> None:
        super().__init__(reason, message, **metadata)
        self.retry_after_s = retry_after_s


class DeadlineSpent(ServiceError):
    """The caller's time is over; nothing more was computed."""


class InferenceFailed(ServiceError):
    """The engine failed or gave a non-finite answer; details are in the log only."""
