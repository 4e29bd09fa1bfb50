"""answers: what a store's refusal means, as an error of ours.

It reads the class and the text of an exception and gives back the error that says it in a sentence. The client's own
text is never passed on: it is long, and it may tell more than it should. It imports no client library; the names of
obstore's exception classes (0.12) and S3's error codes are matched as words.

Source of the codes: "Error responses", Amazon S3 API reference.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from datakit.errors import DatakitError, IntegrityError, NotAllowed, NotFound, Refused, StoreUnavailable, UsageError
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
_INVALID_PATH = re.compile(r'Path "([^"]*)"')
_CODE = re.compile(r"<Code>(\w+)</Code>")
_DENIED = {
    "AccessDenied": "access is denied",
    "ExpiredToken": "the session token has expired",
    "InvalidAccessKeyId": "the access key id is not known there",
    "InvalidToken": "the session token is not valid",
    "RequestTimeTooSkewed": "the clock of this machine differs too much from the store's",
    "SignatureDoesNotMatch": "the secret access key is wrong",
}
_OTHER_REGION = ("PermanentRedirect", "AuthorizationHeaderMalformed", "IllegalLocationConstraintException")
_PASSING = ("ConditionalRequestConflict", "OperationAborted", "RequestTimeout", "TemporaryRedirect")
"""Codes with a status below 500 that S3 asks to be tried again."""
_STATUS_OF_CLASS = {
    "NotModifiedError": 412,
    "PermissionDeniedError": 403,
    "PreconditionError": 412,
    "UnauthenticatedError": 401,
}
_IMPOSSIBLE = ("InvalidPathError", "NotSupportedError", "UnknownConfigurationKeyError")
_CREDENTIALS = {
    "s3": "Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or stores: in params.yaml",
    "gs": "Set GOOGLE_APPLICATION_CREDENTIALS to the file of a service account",
    "az": "Set AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY",
}
"""Where a person puts credentials, by scheme; the names are those that obstore reads."""
_METADATA_SERVICE = "169.254.169.254"
"""Where clouds give credentials to their machines; a failure there means that none were found anywhere else."""


@dataclass(frozen=True, slots=True)
class Asked:
    """Whom we asked for what, to be named in a sentence."""

    url: str
    key: str
    options: StoreOptions

    @property
    def where(self) -> str:
        """The object, or the bucket when a list was asked for."""
        return f"{self.url}/{self.key}" if self.key else self.url

    @property
    def at(self) -> str:
        """The endpoint as the end of a phrase, when it is not the usual one."""
        return f" at {self.options.endpoint_url}" if self.options.endpoint_url else ""


def translated(error: Exception, asked: Asked) -> DatakitError:
    """The error of our tree for an exception of obstore."""
    text, kind = str(error), type(error).__name__
    status = int(match.group(1)) if (match := _STATUS.search(text)) else None
    if _METADATA_SERVICE in text:
        return no_credentials(asked)
    if kind == "AlreadyExistsError":
        return already_there(asked.where)
    if kind == "InvalidPathError" and (key := _INVALID_PATH.search(text)):
        message = f'{asked.url} holds the key "{key.group(1)}", which cannot be the name of a file'
        return UsageError(message, hint="Rename it, or name a folder beside it", subject=asked.url)
    if kind in _IMPOSSIBLE:
        hint = "Check the address; of s3:// another client may, with client: fsspec under stores:"
        return UsageError(f"{asked.where}: obstore cannot do this ({kind})", hint=hint, subject=asked.where)
    if "certificate" in text and status is None:
        return untrusted(asked, "see the authorities that this machine trusts")
    status = status or (301 if "BareRedirect" in text else _status_of(error))
    return no_answer(asked, _transport(text)) if status is None else refused(status, text, asked)


def is_mute(error: Exception) -> bool:
    """Whether an exception of obstore is about a 400 that names no code, as an expired token's answer to a HEAD."""
    text = str(error)
    match = _STATUS.search(text)
    return match is not None and match.group(1) == "400" and _CODE.search(text) is None


def _status_of(error: Exception) -> int | None:
    """The status that an exception stands for which names none."""
    if isinstance(error, FileNotFoundError):
        return 404
    return _STATUS_OF_CLASS.get(type(error).__name__)


def refused(status: int, text: str, asked: Asked) -> DatakitError:
    """The error of our tree for an answer over HTTP that is not a success.

    Args:
        status: Of the answer.
        text: Its body, or anything that quotes it.
        asked: What was asked.
    """
    code = match.group(1) if (match := _CODE.search(text)) else None
    said = f"{status} {code}" if code else str(status)
    where, at = asked.where, asked.at
    if code == "NoSuchBucket":
        hint = "Create it, or check its name and the endpoint"
        return NotFound(f"bucket {asked.url} does not exist{at}", hint=hint, subject=asked.url)
    if code in _OTHER_REGION or status == 301:
        message = f"{asked.url} is not in region {asked.options.region or 'us-east-1'} ({said})"
        return UsageError(message, hint="Set AWS_REGION to the bucket's region", subject=asked.url)
    if code in _DENIED or status in (401, 403):
        reason = _DENIED.get(code or "", "the store does not allow it")
        hint = "Check the credentials and what they permit"
        return NotAllowed(f"{where}{at}: {reason} ({said})", hint=hint, subject=where)
    if status == 412:
        return changed(where)
    if status == 416:
        return IntegrityError(f"{where} holds fewer bytes than it should", hint="It was replaced, or is not whole")
    if status == 404:
        return NotFound(f"{where} is not there{at}", hint="Check its name, and what was put there", subject=where)
    if (status < 500 or status == 501) and status not in (307, 408, 429) and code not in _PASSING:
        hint = "Check the address, the endpoint and the region"
        return DatakitError(f"{where}{at}: the store refused the request ({said})", hint=hint, subject=where)
    return Throttled(f"{where}{at}: the store is busy or broken ({said})", hint="Try again later", subject=where)


def no_key(key: str) -> UsageError:
    """The error of a key that obstore does not take."""
    message = f"{key!a} cannot be the key of an object: obstore takes no control characters and no empty step"
    return UsageError(message, hint="Rename it", subject=ascii(key))


def no_credentials(asked: Asked) -> NotAllowed:
    """The error of a store for which nobody knows who asks."""
    hint = _CREDENTIALS.get(asked.url.partition("://")[0], _CREDENTIALS["s3"])
    return NotAllowed(f"no credentials were found for {asked.url}{asked.at}", hint=hint, subject=asked.url)


def no_answer(asked: Asked, reason: str) -> StoreUnavailable:
    """The error of a request that got no whole answer."""
    hint = "Check the endpoint, the network and the proxy settings"
    message = f"{asked.where}: no proper answer from the store{asked.at} ({reason})"
    return StoreUnavailable(message, hint=hint, subject=asked.where)


def untrusted(asked: Asked, reason: str) -> DatakitError:
    """The error of a store whose certificate is not accepted; trying again would not change it."""
    hint = "Set SSL_CERT_FILE to the certificate of its authority, or check the endpoint"
    return DatakitError(f"{asked.url}: the certificate of the store{asked.at} is not trusted ({reason})", hint=hint)


def _transport(text: str) -> str:
    if "operation timed out" in text or "TimedOut" in text:
        return "time-out"
    match = re.search(r"kind: (Connect|Timeout|Decode|Interrupted)", text)
    return {
        "Connect": "no connection",
        "Timeout": "time-out",
        "Decode": "the body broke off",
        "Interrupted": "the connection broke off",
    }.get(match.group(1) if match else "", "the connection failed")
