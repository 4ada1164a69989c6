"""The errors that may leave a service."""

import grpc
import pytest
from moe.runtime import errors

CODES = {
    errors.InvalidRequest: "INVALID_ARGUMENT",
    errors.NotFound: "NOT_FOUND",
    errors.Overloaded: "RESOURCE_EXHAUSTED",
    errors.Unavailable: "UNAVAILABLE",
    errors.DeadlineExceeded: "DEADLINE_EXCEEDED",
    errors.FailedPrecondition: "FAILED_PRECONDITION",
    errors.PermissionDenied: "PERMISSION_DENIED",
}


@pytest.mark.parametrize(("kind", "code"), CODES.items(), ids=lambda value: getattr(value, "__name__", value))
def test_each_error_has_its_status(kind, code):
    assert kind("no").code is grpc.StatusCode[code]


def test_an_invalid_request_names_its_field():
    error = errors.InvalidRequest("is nan, want 0 to 100", field="sampling.temperature")
    assert (str(error), error.field) == ("sampling.temperature: is nan, want 0 to 100", "sampling.temperature")


@pytest.mark.parametrize(("seconds", "metadata"), [(1.5, "1500"), (0.0001, "1")])
def test_an_overload_says_when_to_try_again(seconds, metadata):
    assert errors.Overloaded("full", retry_after_s=seconds).trailing_metadata() == (("retry-after-ms", metadata),)


def test_an_overload_of_unknown_length_says_nothing():
    assert errors.Overloaded("full").trailing_metadata() == ()
