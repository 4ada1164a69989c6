"""The errors that may leave a service, each with the gRPC status it leaves as.

    MoeError
    ├── InvalidRequest        INVALID_ARGUMENT     the caller sent something wrong; names the field
    ├── NotFound              NOT_FOUND            no such model, group or request
    ├── Overloaded            RESOURCE_EXHAUSTED   a bound is reached; says when to try again
    ├── Unavailable           UNAVAILABLE          a part that is needed is not there now
    ├── DeadlineExceeded      DEADLINE_EXCEEDED    it could not be done in time
    ├── FailedPrecondition    FAILED_PRECONDITION  this process can't do that in the state or configuration it is in
    ├── PermissionDenied      PERMISSION_DENIED    the caller may not
    └── StartupError          (never a status)     the process can't start; printed as `error: ...`, exit code 2

A part's own errors derive from these. Only moe.runtime.server turns them into statuses.
"""

from collections.abc import Mapping
from typing import ClassVar

import grpc

# The names below say what happened, without a suffix: ruff's N818 does not fit them.
# ruff: noqa: N818


class MoeError(Exception):
    """Something went wrong and the message says what, with which value and what to do.

    details: further facts by name, for logs; they don't leave the process.
    """

    code: ClassVar[grpc.StatusCode] = grpc.StatusCode.INTERNAL

    def __init__(self, message: str, *, details: Mapping[str, object] | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.details = dict(details or {})

    def trailing_metadata(self) -> tuple[tuple[str, str], ...]:
        """What the status carries beside its code and message, as gRPC metadata."""
        return ()


class InvalidRequest(MoeError):
    """The caller sent something wrong. field: its path in the message, such as `sampling.temperature`."""

    code = grpc.StatusCode.INVALID_ARGUMENT

    def __init__(self, message: str, *, field: str = "", details: Mapping[str, object] | None = None) -> None:
        super().__init__(f"{field}: {message}" if field else message, details=details)
        self.field = field


class NotFound(MoeError):
    """What the caller asked for does not exist here."""

    code = grpc.StatusCode.NOT_FOUND


class Overloaded(MoeError):
    """A bound is reached. retry_after_s: seconds after which another try makes sense; 0 means unknown."""

    code = grpc.StatusCode.RESOURCE_EXHAUSTED

    def __init__(
        self, message: str, *, retry_after_s: float = 0.0, details: Mapping[str, object] | None = None
    ) -> None:
        super().__init__(message, details=details)
        self.retry_after_s = retry_after_s

    def trailing_metadata(self) -> tuple[tuple[str, str], ...]:
        """`retry-after-ms`, in whole milliseconds and at least 1, when a time is known."""
        if self.retry_after_s <= 0:
            return ()
        return ((RETRY_AFTER_METADATA, str(max(1, round(self.retry_after_s * 1000)))),)


class Unavailable(MoeError):
    """A part that is needed is not there now; another try may succeed."""

    code = grpc.StatusCode.UNAVAILABLE


class DeadlineExceeded(MoeError):
    """It could not be done in the time that was given."""

    code = grpc.StatusCode.DEADLINE_EXCEEDED


class FailedPrecondition(MoeError):
    """This process can't do that in the state or configuration it is in; another try does not help."""

    code = grpc.StatusCode.FAILED_PRECONDITION


class PermissionDenied(MoeError):
    """The caller may not do that."""

    code = grpc.StatusCode.PERMISSION_DENIED


class StartupError(MoeError):
    """The process can't start with this configuration or package: `error: ...` on stderr and exit code 2."""


RETRY_AFTER_METADATA = "retry-after-ms"
"""Trailing metadata key of an `Overloaded` status: milliseconds until another try makes sense."""
