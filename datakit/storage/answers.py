"""answers: what a store's refusal means, as an error of ours.

It reads the class and the text of an exception and gives back the error that says it in a sentence. The client's own
text is never passed on: it is long, and it may tell more than it should. It imports no client library; the names of
obstore's exception classes (0.12) and S3's error codes are matched as words.

Source of the codes: "Error responses", Amazon S3 API reference.
"""

from __future__ import annotations

import re

from datakit.errors import DatakitError, NotAllowed, NotFound, Refused, StoreUnavailable, UsageError
from datakit.storage.access import StoreOptions


class Throttled(StoreUnavailable):
    """The store answered that it is busy or broken (429, 5xx): everyone slows down. It does not leave this wing."""


def changed(where: str) -> Refused:
    """The error of an object that is no longer the version that was asked for."""
    return Refused(
        f"{where} was replaced while it was in use",
        hint="Run the same command again: it starts from the new one",
        subject=where,
    )


def already_there(where: str) -> Refused:
    """The error of an object that was to be created and exists."""
    return Refused(f"{where} exists already and is not overwritten", hint="Name another place", subject=where)


_STATUS = re.compile(r"status code: (\d{3})")
_CODE = re.compile(r"<Code>(\w+)</Code>")
_DENIED = {
    "AccessDenied": "access is denied",
    "ExpiredToken": "the session token has expired",
    "InvalidAccessKeyId": "the access key id is not known there",
    "InvalidToken": "the session token is not valid",
    "RequestTimeTooSkewed": "the clock of this machine differs too much from the store's",
    "SignatureDoesNotMatch": "the secret access key is wrong",
}
_METADATA_SERVICE = "169.254.169.254"
"""Where clouds give credentials to their machines; a failure there means that none were found anywhere else."""


def translated(error: Exception, *, url: str, key: str, options: StoreOptions) -> DatakitError:
    """The error of our tree for one of the client's."""
    text = str(error)
    status_match, code_match = _STATUS.search(text), _CODE.search(text)
    status = int(status_match.group(1)) if status_match else None
    code = code_match.group(1) if code_match else None
    where = f"{url}/{key}" if key else url
    at = f" at {options.endpoint_url}" if options.endpoint_url else ""
    kind = type(error).__name__
    said = " ".join(str(word) for word in (status, code) if word is not None) or kind
    if code == "NoSuchBucket":
        return NotFound(
            f"bucket {url} does not exist{at}", hint="Create it, or check its name and the endpoint", subject=url
        )
    if _METADATA_SERVICE in text:
        hint = "Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or stores: in params.yaml"
        return NotAllowed(f"no credentials were found for {url}{at}", hint=hint, subject=url)
    if code in _DENIED or status in (401, 403) or kind in ("PermissionDeniedError", "UnauthenticatedError"):
        reason = _DENIED.get(code or "", "the store does not allow it")
        return NotAllowed(
            f"{where}{at}: {reason} ({said})", hint="Check the credentials and what they permit", subject=where
        )
    if kind == "AlreadyExistsError":
        return already_there(where)
    if kind in ("PreconditionError", "NotModifiedError") or status in (412, 416):
        return changed(where)
    if isinstance(error, FileNotFoundError) or status == 404:
        return NotFound(f"{where} is not there{at}", subject=where)
    if code in ("PermanentRedirect", "AuthorizationHeaderMalformed", "IllegalLocationConstraintException"):
        hint = "Set AWS_REGION to the bucket's region"
        return UsageError(f"{url} is not in region {options.region or 'us-east-1'} ({said})", hint=hint, subject=url)
    if kind in ("InvalidPathError", "NotSupportedError", "UnknownConfigurationKeyError"):
        return UsageError(f"{where}: obstore cannot do this ({kind})", subject=where)
    if status is not None and status < 500 and status not in (408, 429):
        return DatakitError(f"{where}{at}: the store refused the request ({said})", subject=where)
    if status is not None:
        return Throttled(f"{where}{at}: the store is busy or broken ({said})", hint="Try again later", subject=where)
    hint = "Check the endpoint, the network and the proxy settings"
    return StoreUnavailable(
        f"{where}: no proper answer from the store{at} ({_transport(text)})", hint=hint, subject=where
    )


def _transport(text: str) -> str:
    match = re.search(r"kind: (Connect|Timeout|Decode|Interrupted)", text)
    if "operation timed out" in text or "TimedOut" in text:
        return "time-out"
    return {"Connect": "no connection", "Decode": "the body broke off", "Interrupted": "the connection broke off"}.get(
        match.group(1) if match else "", "the connection failed"
    )
