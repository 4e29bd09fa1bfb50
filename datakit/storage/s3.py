"""s3: the calls of S3 for an upload in parts; botocore's door.

obstore has no such calls: its own upload begins anew each time, and one that was killed leaves its parts, billed for
ever. Promises: each request is counted as it is made, and made once (patience is whose who calls); every part carries
its md5, and its signature covers that header; errors are ours, with a sentence and without a secret.

Sources: Amazon S3 API reference (CreateMultipartUpload, UploadPart, ListParts, ListMultipartUploads,
CompleteMultipartUpload, AbortMultipartUpload); botocore 1.43 for the names of its errors.
"""

from __future__ import annotations

import base64
import contextlib
import os
import ssl
import threading
from collections.abc import Iterator, Mapping
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any

from datakit.errors import DatakitError, MissingExtra, StoreUnavailable, UsageError
from datakit.storage.access import StoreOptions
from datakit.storage.answers import Asked, already_there, no_answer, no_credentials, refused, untrusted
from datakit.storage.client import CONNECT_TIMEOUT_S
from datakit.storage.counts import Meter
from datakit.storage.multipart import Kept, Lost, Pending
from datakit.storage.objects import Part
from datakit.storage.profiles import Profile

ANSWER_TIMEOUT_S = 60
"""botocore's own: the answer to a part comes when it is stored everywhere, to the end when the parts are joined."""

CONNECTIONS = 256
"""Connections that are kept open; more are closed after each request."""

_ENDED = ("NoSuchUpload", "InvalidPart", "InvalidPartOrder")
_TORN = ("BadDigest", "XAmzContentSHA256Mismatch", "XAmzContentChecksumMismatch")
"""What a store says of a body that arrived with other bytes than were sent."""

_CREDENTIALS = (
    "CredentialRetrievalError",
    "LoginError",
    "MetadataRetrievalError",
    "NoAuthTokenError",
    "NoCredentialsError",
    "PartialCredentialsError",
    "RefreshWithMFAUnsupportedError",
    "SSOError",
    "TokenRetrievalError",
    "UnknownCredentialError",
)
_ROADS = {
    "ConnectTimeoutError": "no connection",
    "EndpointConnectionError": "no connection",
    "ProxyConnectionError": "no connection to the proxy",
    "ReadTimeoutError": "time-out",
    "ResponseStreamingError": "the body broke off",
    "IncompleteReadError": "the body broke off",
    "ConnectionClosedError": "the connection broke off",
    "ConnectionError": "the connection failed",
    "HTTPClientError": "the connection failed",
}
"""By class, the nearest in the order of inheritance: how the way to the store failed."""

_AUTHORITIES = ("/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt")
"""Where Debian and Fedora keep what a machine trusts; botocore alone would look into a list of its own."""


class S3Calls:
    """What `multipart` asks of a bucket.

    Args:
        url: `s3://bucket`.
        options: How to reach it.
        meter: Counts the requests.
    """

    def __init__(self, url: str, options: StoreOptions, *, meter: Meter) -> None:
        self._url = url
        self._bucket = url.partition("://")[2]
        self._options = options
        self._profile = options.profile(url)
        self._meter = meter
        self._client: Any = None
        self._guard = threading.Lock()

    def under_way(self, key: str) -> list[Pending]:
        """One LIST: S3 sorts by key, so that those of this very key come before those of longer ones."""
        with self._door(key) as client:
            self._meter.add(list=1)
            answer = client.list_multipart_uploads(Bucket=self._bucket, Prefix=key)
            found = [each for each in answer.get("Uploads", ()) if each["Key"] == key]
            date = answer["ResponseMetadata"]["HTTPHeaders"].get("date")
            now = parsedate_to_datetime(date) if date else max((each["Initiated"] for each in found), default=None)
            return [
                Pending(each["UploadId"], (now - each["Initiated"]).total_seconds(), is_plain=_is_plain(each))
                for each in found
            ]

    def kept(self, key: str, upload: str) -> list[Kept]:
        """One LIST for each thousand parts."""
        found: list[Kept] = []
        page: dict[str, Any] = {"NextPartNumberMarker": 0, "IsTruncated": True}
        with self._door(key) as client:
            while page["IsTruncated"]:
                marker = page["NextPartNumberMarker"]
                self._meter.add(list=1)
                page = client.list_parts(Bucket=self._bucket, Key=key, UploadId=upload, PartNumberMarker=marker)
                if page["IsTruncated"] and page["NextPartNumberMarker"] <= marker:
                    message = f"{self._url}/{key}: the store says that the list of its parts goes on, and not how"
                    raise StoreUnavailable(message, hint="Run the same command again", subject=key)
                found += [Kept(each["PartNumber"], each["Size"], each["ETag"]) for each in page.get("Parts", ())]
        return sorted(found, key=lambda part: part.number)

    def begin(self, key: str) -> str:
        """One PUT."""
        with self._door(key) as client:
            self._meter.add(put=1)
            return str(client.create_multipart_upload(Bucket=self._bucket, Key=key)["UploadId"])

    def send(self, key: str, upload: str, part: Part) -> str:
        """One PUT."""
        where = {"Bucket": self._bucket, "Key": key, "UploadId": upload, "PartNumber": part.number}
        with self._door(key) as client:
            self._meter.add(put=1, bytes_out=len(part.data))
            answer = client.upload_part(**where, Body=part.data, ContentMD5=base64.b64encode(part.md5).decode())
            return str(answer["ETag"])

    def complete(self, key: str, upload: str, tags: Mapping[int, str], *, create: bool) -> str | None:
        """One PUT, with If-None-Match where asked; a HEAD before where the store does not keep it, and a PUT more."""
        parts = [{"PartNumber": number, "ETag": tags[number]} for number in sorted(tags)]
        what = {"Bucket": self._bucket, "Key": key, "UploadId": upload, "MultipartUpload": {"Parts": parts}}
        condition = {"IfNoneMatch": "*"} if create and self._profile.conditional else {}
        with self._door(key) as client:
            if create and not condition:
                self._look(client, key)
            self._meter.add(put=1)
            try:
                answer = client.complete_multipart_upload(**what, **condition)
            except client.exceptions.ClientError as error:
                if _status(error) == 412:
                    raise already_there(f"{self._url}/{key}") from error
                if _status(error) != 501 or not condition:
                    raise
                self._look(client, key)
                self._meter.add(put=1)
                answer = client.complete_multipart_upload(**what)
            tag = answer.get("ETag")
            return None if tag is None else str(tag)

    def _look(self, client: Any, key: str) -> None:
        """See that there is no object yet, which leaves a moment in between."""
        self._meter.add(head=1)
        try:
            client.head_object(Bucket=self._bucket, Key=key)
        except client.exceptions.ClientError as error:
            if _status(error) != 404:
                raise
        else:
            raise already_there(f"{self._url}/{key}")

    def abort(self, key: str, upload: str) -> None:
        """One DELETE."""
        with self._door(key) as client, contextlib.suppress(client.exceptions.NoSuchUpload):
            self._meter.add(delete=1)
            client.abort_multipart_upload(Bucket=self._bucket, Key=key, UploadId=upload)

    @contextlib.contextmanager
    def _door(self, key: str) -> Iterator[Any]:
        try:
            with self._guard:
                self._client = self._client or _connect(self._options, self._profile)
            yield self._client
        except DatakitError:
            raise
        except Exception as error:
            raise translated(error, Asked(self._url, key, self._options)) from error


def _connect(options: StoreOptions, profile: Profile) -> Any:
    try:
        import botocore
        from botocore.config import Config
        from botocore.session import Session
    except ImportError:
        raise MissingExtra("botocore", extra="s3") from None
    known = options.anonymous or options.access_key_id is not None
    # what the options say is all there is: a profile that is named in the environment is part of them already
    files = dict.fromkeys(("config_file", "credentials_file"), (None, None, os.devnull, None))
    session = Session(session_vars={"profile": (None, None, None, None), **files} if known else None)
    config = Config(
        connect_timeout=CONNECT_TIMEOUT_S,
        read_timeout=ANSWER_TIMEOUT_S,
        retries={"mode": "standard", "total_max_attempts": 1},
        max_pool_connections=CONNECTIONS,
        tcp_keepalive=True,
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
        signature_version=botocore.UNSIGNED if options.anonymous else "s3v4",
        # the md5 of a body is signed and vouches for it: a sha256 of the same bytes would cost as much again
        s3={"addressing_style": "virtual" if profile.virtual_hosted else "path", "payload_signing_enabled": False},
    )
    return session.create_client(
        "s3",
        region_name=options.region or profile.region,
        endpoint_url=options.endpoint_url,
        aws_access_key_id=options.access_key_id,
        aws_secret_access_key=options.secret_access_key,
        aws_session_token=options.session_token,
        config=config,
        verify=_authorities(),
    )


def _is_plain(upload: Mapping[str, Any]) -> bool:
    """Whether an upload was begun as we begin ours: one with checksums wants them of each part, and at the end."""
    return "ChecksumAlgorithm" not in upload and upload.get("StorageClass", "").upper() in ("", "STANDARD")


def _authorities() -> str | None:
    """The file of certificates that the rest of datakit trusts, or None for botocore's own choice."""
    if "AWS_CA_BUNDLE" in os.environ:
        return None
    files = (ssl.get_default_verify_paths().cafile, *_AUTHORITIES)  # which is SSL_CERT_FILE where that is set
    return next((file for file in files if file is not None and Path(file).is_file()), None)


def translated(error: Exception, asked: Asked) -> DatakitError:
    """The error of our tree for an exception of botocore; its own text is never passed on."""
    answer = getattr(error, "response", None)
    if isinstance(answer, Mapping):
        return _refused(str(answer.get("Error", {}).get("Code", "")), _status(error), asked)
    names = [one.__name__ for one in type(error).__mro__]
    if any(name in _CREDENTIALS for name in names):
        return no_credentials(asked)
    if "SSLError" in names and "CERTIFICATE_VERIFY_FAILED" in str(error):
        return untrusted(asked, "see the authorities that this machine trusts")
    for name in names:
        if name in _ROADS:
            return no_answer(asked, _ROADS[name])
    if "ResponseParserError" in names:  # which is no broken body: its length was right
        hint = "Check the endpoint, and what stands between it and here"
        return DatakitError(f"{asked.where}: the answer{asked.at} is none of S3's", hint=hint, subject=asked.where)
    hint = "Check the address; DATAKIT_DEBUG=1 shows what botocore says"
    return UsageError(f"{asked.where}: botocore cannot do this ({names[0]})", hint=hint, subject=asked.where)


def _refused(code: str, status: int, asked: Asked) -> DatakitError:
    if code in _ENDED:
        message = f"{asked.where}: its upload was ended, or a part of it put over, by another ({status} {code})"
        return Lost(message, hint="Run the same command again", subject=asked.where)
    if code in _TORN:
        return no_answer(asked, f"the bytes that arrived have another checksum: {status} {code}")
    return refused(status, "" if code.isdigit() else f"<Code>{code}</Code>", asked)


def _status(error: Any) -> int:
    return int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
