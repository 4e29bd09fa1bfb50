"""uploads: uploads in parts as S3 keeps them, for the server of `faulty`."""

from __future__ import annotations

import hashlib
import re
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime


class Unfit(Exception):
    """A call that S3 answers with an error: its status and code."""

    def __init__(self, status: int, code: str) -> None:
        super().__init__(code)
        self.status, self.code = status, code


@dataclass
class Pending:
    """One upload: the object to be, when it began, and its parts with their tags by number."""

    key: str
    started_s: float
    begun_with: str = ""  # further elements of its entry in a list
    parts: dict[int, tuple[bytes, str]] = field(default_factory=dict)


class Uploads(dict[str, Pending]):
    """Uploads under way, by id.

    Args:
        tag_of: What a part is tagged with.
    """

    def __init__(self, tag_of: Callable[[bytes], str]) -> None:
        super().__init__()
        self._tag_of = tag_of
        self._guard = threading.Lock()
        self._count = 0
        self.page_parts = 1000

    def begin(self, key: str, now_s: float) -> str:
        with self._guard:
            self._count += 1
            name = f"upload-{self._count}"
            self[name] = Pending(key, now_s)
        return name

    def send(self, name: str, number: int, body: bytes) -> str:
        with self._guard:
            pending, tag = self._of(name), self._tag_of(body)
            pending.parts[number] = (body, tag)
        return tag

    def complete(self, name: str, told: str) -> tuple[bytes, str]:
        """The bytes of the parts that are named, and the md5 that their tag begins with; the upload is no more."""
        with self._guard:
            pending = self._of(name)
            named = re.findall(r"<Part>(.*?)</Part>", told, re.DOTALL)
            bodies: list[bytes] = []
            for each in named:
                number = int(re.findall(r"<PartNumber>(\d+)</PartNumber>", each)[0])
                tag = re.findall(r"<ETag>(.*?)</ETag>", each)[0].replace("&quot;", '"')
                body, kept = pending.parts.get(number, (b"", ""))
                if tag.strip('"') != kept.strip('"'):
                    raise Unfit(400, "InvalidPart")
                bodies.append(body)
            del self[name]
        md5s = b"".join(hashlib.md5(body).digest() for body in bodies)
        return b"".join(bodies), f"{hashlib.md5(md5s).hexdigest()}-{len(named)}"

    def abort(self, name: str) -> None:
        with self._guard:
            self._of(name)
            del self[name]

    def listed(self, prefix: str) -> str:
        with self._guard:
            rows = [
                f"<Upload><Key>{each.key}</Key><UploadId>{name}</UploadId><Initiated>{_moment(each.started_s)}</Initiated>"
                f"{each.begun_with}</Upload>"
                for name, each in sorted(self.items(), key=lambda item: item[1].key)
                if each.key.startswith(prefix)
            ]
        return (
            f"<ListMultipartUploadsResult><IsTruncated>false</IsTruncated>{''.join(rows)}</ListMultipartUploadsResult>"
        )

    def parts_of(self, name: str, after: int) -> str:
        with self._guard:
            parts = sorted((number, *part) for number, part in self._of(name).parts.items() if number > after)
        page = parts[: self.page_parts]
        rows = "".join(
            f"<Part><PartNumber>{number}</PartNumber><ETag>{tag}</ETag><Size>{len(body)}</Size></Part>"
            for number, body, tag in page
        )
        more = "true" if len(page) < len(parts) else "false"
        last = page[-1][0] if page else 0
        head = f"<IsTruncated>{more}</IsTruncated><NextPartNumberMarker>{last}</NextPartNumberMarker>"
        return f"<ListPartsResult>{head}{rows}</ListPartsResult>"

    def _of(self, name: str) -> Pending:
        if name not in self:
            raise Unfit(404, "NoSuchUpload")
        return self[name]


def _moment(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S.000Z")
