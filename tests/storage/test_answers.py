"""What `storage/answers` promises: each answer of a store becomes one of our errors, with its exit code."""

from __future__ import annotations

import pytest

from datakit.errors import (
    DatakitError,
    IntegrityError,
    NotAllowed,
    NotFound,
    Refused,
    StoreUnavailable,
    UsageError,
)
from datakit.storage.access import StoreOptions
from datakit.storage.answers import Asked, Throttled, no_answer, refused, translated

SECRET = "the-secret"
ASKED = Asked(
    "s3://bkt",
    "a/b.tar",
    StoreOptions(endpoint_url="http://store:9000", access_key_id="AKIA", secret_access_key=SECRET),
)


def body(code: str) -> str:
    return f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>says the store</Message></Error>"


@pytest.mark.parametrize(
    ("status", "code", "expected", "exit_code", "words"),
    [
        (404, "NoSuchBucket", NotFound, 2, "bucket s3://bkt does not exist at http://store:9000"),
        (404, "NoSuchKey", NotFound, 2, "s3://bkt/a/b.tar is not there"),
        (403, "AccessDenied", NotAllowed, 6, "access is denied"),
        (403, "InvalidAccessKeyId", NotAllowed, 6, "access key id is not known"),
        (403, "SignatureDoesNotMatch", NotAllowed, 6, "secret access key is wrong"),
        (403, "RequestTimeTooSkewed", NotAllowed, 6, "clock of this machine"),
        (400, "ExpiredToken", NotAllowed, 6, "session token has expired"),
        (400, "InvalidToken", NotAllowed, 6, "session token is not valid"),
        (401, "", NotAllowed, 6, "does not allow it"),
        (403, "", NotAllowed, 6, "does not allow it"),
        (301, "PermanentRedirect", UsageError, 2, "not in region us-east-1"),
        (400, "AuthorizationHeaderMalformed", UsageError, 2, "not in region"),
        (400, "InvalidRequest", DatakitError, 1, "refused the request (400 InvalidRequest)"),
        (405, "MethodNotAllowed", DatakitError, 1, "refused the request"),
        (412, "PreconditionFailed", Refused, 3, "was replaced while it was in use"),
        (416, "InvalidRange", IntegrityError, 4, "holds fewer bytes"),
        (408, "RequestTimeout", Throttled, 7, "busy or broken"),
        (429, "TooManyRequests", Throttled, 7, "busy or broken"),
        (500, "InternalError", Throttled, 7, "busy or broken"),
        (502, "", Throttled, 7, "busy or broken (502)"),
        (503, "SlowDown", Throttled, 7, "busy or broken (503 SlowDown)"),
    ],
)
def test_each_status_of_http_has_its_error(
    status: int, code: str, expected: type[DatakitError], exit_code: int, words: str
) -> None:
    """Status and S3 code decide; the sentence names the place and the code."""
    error = refused(status, body(code) if code else "", ASKED)

    assert type(error) is expected
    assert error.exit_code == exit_code
    assert words in error.message


def test_an_answer_that_never_came_is_worth_another_try() -> None:
    """No connection, a stall, a broken body: StoreUnavailable with what to look at."""
    error = no_answer(ASKED, "time-out")

    assert type(error) is StoreUnavailable
    assert "time-out" in error.message
    assert error.hint is not None


def named(name: str, text: str, base: type[Exception] = Exception) -> Exception:
    return type(name, (base,), {})(text)


CONNECT = "Generic S3 error: HTTP error: error sending request\n\nDebug source: HttpError { kind: Connect,"
SERVER = "Server returned non-2xx status code: 503 Service Unavailable: " + body("SlowDown")
CREDENTIALS = "Error performing PUT http://169.254.169.254/latest/api/token - HTTP error: kind: Connect"


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (FileNotFoundError("Object at location x not found"), NotFound),
        (FileNotFoundError("status code: 404 Not Found: " + body("NoSuchBucket")), NotFound),
        (named("AlreadyExistsError", "status code: 412 Precondition Failed"), Refused),
        (named("PreconditionError", "Request precondition failure"), Refused),
        (named("NotModifiedError", ""), Refused),
        (named("PermissionDeniedError", ""), NotAllowed),
        (named("UnauthenticatedError", ""), NotAllowed),
        (named("InvalidPathError", "a//b"), UsageError),
        (named("NotSupportedError", ""), UsageError),
        (named("UnknownConfigurationKeyError", ""), UsageError),
        (named("GenericError", CONNECT), StoreUnavailable),
        (named("GenericError", "kind: Timeout"), StoreUnavailable),
        (named("GenericError", "kind: Decode"), StoreUnavailable),
        (named("GenericError", "kind: Interrupted"), StoreUnavailable),
        (named("GenericError", "operation timed out"), StoreUnavailable),
        (named("GenericError", SERVER), Throttled),
        (named("GenericError", CREDENTIALS), NotAllowed),
        (named("JoinError", "task panicked"), StoreUnavailable),
        (OSError("anything"), StoreUnavailable),
    ],
    ids=lambda value: getattr(value, "__name__", type(value).__name__),
)
def test_each_exception_of_obstore_has_its_error(error: Exception, expected: type[DatakitError]) -> None:
    """All classes of `obstore.exceptions`, and the texts that tell generic ones apart."""
    said = translated(error, ASKED)

    assert type(said) is expected
    assert SECRET not in str(said)
    assert "Debug source" not in str(said)


def test_the_list_of_obstore_exceptions_is_complete() -> None:
    """A new class in obstore must be thought about: this test names those of 0.12."""
    from obstore import exceptions

    classes = {name for name in dir(exceptions) if isinstance(getattr(exceptions, name), type)}

    assert {name for name in classes if name.endswith("Error")} == {
        "AlreadyExistsError",
        "BaseError",
        "GenericError",
        "InvalidPathError",
        "JoinError",
        "NotFoundError",
        "NotModifiedError",
        "NotSupportedError",
        "PermissionDeniedError",
        "PreconditionError",
        "UnauthenticatedError",
        "UnknownConfigurationKeyError",
    }


def test_without_an_endpoint_the_sentence_names_none() -> None:
    """AWS itself needs no address in the message."""
    error = refused(404, body("NoSuchBucket"), Asked("s3://bkt", "", StoreOptions()))

    assert error.message == "bucket s3://bkt does not exist"


@pytest.mark.parametrize(
    ("status", "code"),
    [
        (307, "TemporaryRedirect"),
        (400, "RequestTimeout"),
        (409, "ConditionalRequestConflict"),
        (409, "OperationAborted"),
    ],
)
def test_what_the_store_asks_to_be_tried_again_is(status: int, code: str) -> None:
    """Below 500, and no fault of ours: the next try may go through."""
    error = refused(status, f"<Error><Code>{code}</Code></Error>", Asked("s3://bkt", "k", StoreOptions()))

    assert isinstance(error, StoreUnavailable)


@pytest.mark.parametrize(
    ("scheme", "name"),
    [("s3", "AWS_ACCESS_KEY_ID"), ("gs", "GOOGLE_APPLICATION_CREDENTIALS"), ("az", "AZURE_STORAGE_ACCOUNT_KEY")],
)
def test_missing_credentials_are_asked_for_by_the_names_of_the_store(scheme: str, name: str) -> None:
    """A user of Google Cloud is not sent to AWS's variables."""
    error = translated(OSError("http://169.254.169.254/x"), Asked(f"{scheme}://b", "k", StoreOptions()))

    assert isinstance(error, NotAllowed)
    assert name in str(error.hint)
