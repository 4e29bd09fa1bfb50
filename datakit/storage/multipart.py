"""multipart: a large object put in parts, continued where another process, or another machine, has ended.

The state is in the store alone: before an upload begins, those under way of that very key are listed, and the tags of
their parts are compared with the source's own. Tags that are the md5 of a part prove it, and it is not sent again; any
other tag proves nothing. The end names the tag of each part, so that what another writer has put over is refused there:
then a new upload of one's own begins. Two writers of one key never end with mixed bytes.

What becomes of an upload that ends too early:

- What the same command can continue is left: the way to the store is broken, the work was stopped, a limit reached,
  credentials have ended; and the store lets uploads be listed, and tags parts by their md5.
- Any other is aborted: the source is damaged, the object is there already, the parts would not be recognised.
- One that does not fit the source is another machine's, and left to it for a day; then it is aborted.
- kill -9 leaves it, to be continued.

It makes no requests itself (that is `s3`), and does not look at the object that it has made (that is `upload`).

Source: "Uploading and copying objects using multipart upload", Amazon S3 user guide; that a part's tag is its md5:
"Checking object integrity", ibid.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from datakit.errors import DatakitError, Interrupted, LimitExceeded, NotAllowed, NotFound, Refused, StoreUnavailable
from datakit.storage import etags
from datakit.storage.crew import Task, drive
from datakit.storage.limits import regardless
from datakit.storage.objects import Body, ObjectInfo, Part, Patience

STALE_S = 86_400.0
"""An upload that does not fit is left alone for so long, for it may be a live one of another machine.

The shortest time that a rule of a bucket can give uploads too: one day ("Managing your storage lifecycle", Amazon S3).
"""

UPLOADS = 3
"""How many uploads are begun for one object while others end them or put over their parts."""

ABORT_TRIES = 3
"""How often an upload is aborted that the store is too busy to abort; at once, because whoever failed is waiting."""

_PASSING = (StoreUnavailable, Interrupted, LimitExceeded, NotAllowed)
"""Errors after which the same command may go through."""


class Lost(DatakitError):
    """An upload has ended, or a part of it is not the one that was sent. It does not leave this wing."""


@dataclass(frozen=True, slots=True)
class Kept:
    """A part that the store has."""

    number: int
    bytes: int
    etag: str


@dataclass(frozen=True, slots=True)
class Pending:
    """An upload under way: how old it is by the store's own clock, and whether it was begun as ours are."""

    id: str
    age_s: float
    is_plain: bool


class Calls(Protocol):
    """The calls of S3 for an upload in parts, one request each, but for long lists; errors are those of `Store`."""

    def under_way(self, key: str) -> list[Pending]:
        """Uploads of this very key that have not ended."""
        ...

    def kept(self, key: str, upload: str) -> list[Kept]:
        """The parts that an upload has, by number."""
        ...

    def begin(self, key: str) -> str:
        """A new upload."""
        ...

    def send(self, key: str, upload: str, part: Part) -> str:
        """Put a part, whose md5 the store compares; gives its tag."""
        ...

    def complete(self, key: str, upload: str, tags: Mapping[int, str], *, create: bool) -> str | None:
        """Make the object of the parts with these tags; gives its own."""
        ...

    def abort(self, key: str, upload: str) -> None:
        """Drop an upload and its parts; none there is fine."""
        ...


@dataclass(frozen=True, slots=True)
class _Begun:
    """The upload to send parts for: the tags of those that it has, and whether it is our own."""

    id: str
    tags: Mapping[int, str]
    own: bool


class Multipart:
    """One object on its way up in parts.

    Args:
        calls: How to ask the store.
        key: Where the object will be.
        body: Its parts.
        head: Gives what is there now.
        connections: Parts under way at once, and in memory.
        create: Whether an object that is there at the end is an error, where the store can decide it.
        patience: Of every request.
    """

    def __init__(
        self,
        calls: Calls,
        key: str,
        body: Body,
        *,
        head: Callable[[str], ObjectInfo],
        connections: int,
        create: bool,
        patience: Patience,
    ) -> None:
        self._calls = calls
        self._key = key
        self._body = body
        self._head = head
        self._connections = connections
        self._create = create
        self._patience = patience
        self._is_listed = False
        self._is_recognised = False

    def put(self) -> ObjectInfo:
        """Send what the store lacks, and make the object.

        Raises:
            IntegrityError: The source is not what it should be.
            Refused: The object is there already; or others ended each of the uploads that were begun.
            StoreUnavailable: The patience is used up.
        """
        for number in range(UPLOADS):
            begun = (None if number else self._found()) or self._begin()
            try:
                return self._finish(begun)
            except Lost as error:
                lost = error
                if begun.own:
                    self._take_back(begun)
                # the answer to an earlier end of ours was lost, or another has sent the very same bytes
                if (there := self._made()) is not None:
                    return there
            except BaseException as error:
                if not self._can_continue(error):
                    self._take_back(begun)
                raise
        raise Refused(lost.message, hint="Run it again when nobody else puts this object", subject=self._key)

    def _found(self) -> _Begun | None:
        """The upload under way that fits best, if one does; those that do not are aborted when they are old."""
        fitting: list[_Begun] = []
        try:
            pending = self._patience(lambda: self._calls.under_way(self._key))
            self._is_listed = True
            for upload in pending:
                with contextlib.suppress(Lost):  # it has ended meanwhile
                    kept = self._kept(upload)
                    if upload.is_plain and self._fits(kept):
                        fitting.append(_Begun(upload.id, {part.number: part.etag for part in kept}, own=False))
                    elif upload.age_s >= STALE_S:
                        self._abort(upload.id)
        except (StoreUnavailable, Interrupted, LimitExceeded):
            raise
        except DatakitError:  # who may not list can put all the same, and cannot continue
            self._is_listed = False
            return None
        return max(fitting, key=lambda begun: len(begun.tags), default=None)

    def _kept(self, upload: Pending) -> list[Kept]:
        return self._patience(lambda: self._calls.kept(self._key, upload.id))

    def _fits(self, kept: Sequence[Kept]) -> bool:
        """Whether parts are as large as the source's own, and the first of them is one of its own."""
        size_bytes, part_bytes = self._body.bytes, self._body.part_bytes
        spans = [(part.bytes, min(part_bytes, size_bytes - (part.number - 1) * part_bytes)) for part in kept]
        if any(there != here for there, here in spans):
            return False
        return not kept or etags.same(kept[0].etag, etags.single(self._body.md5_of(kept[0].number).hex()))

    def _begin(self) -> _Begun:
        tried = False

        def act() -> str:
            nonlocal tried
            if tried and self._is_listed:  # the answer to the first try was lost, and its upload is there
                for upload in self._calls.under_way(self._key):
                    if upload.is_plain and not self._calls.kept(self._key, upload.id):
                        return upload.id
            tried = True
            return self._calls.begin(self._key)

        return _Begun(self._patience(act), {}, own=True)

    def _finish(self, begun: _Begun) -> ObjectInfo:
        tags: dict[int, str] = {}

        def send(part: Part) -> int:
            tag = self._patience(lambda: self._calls.send(self._key, begun.id, part))
            self._is_recognised = etags.same(tag, etags.single(part.md5.hex()))
            tags[part.number] = tag
            return len(part.data)

        def missing() -> Iterator[Task]:
            for part in self._body.parts():
                if etags.same(begun.tags.get(part.number), etags.single(part.md5.hex())):
                    self._is_recognised = True
                    tags[part.number] = begun.tags[part.number]
                    self._patience(lambda: None)  # to hear of an end between parts that are not sent too
                else:
                    yield lambda part=part: send(part)  # type: ignore[misc] # mypy cannot infer a lambda with a default

        drive(missing(), workers=self._connections, on_bytes=lambda _: None)
        tag = self._patience(lambda: self._calls.complete(self._key, begun.id, tags, create=self._create))
        return ObjectInfo(self._key, self._body.bytes, tag)

    def _made(self) -> ObjectInfo | None:
        """The object that is there, if its tag is the one that our parts must give."""
        with contextlib.suppress(NotFound):
            there = self._patience(lambda: self._head(self._key))
            if etags.same(there.etag, etags.multipart(part.md5 for part in self._body.parts())):
                return there
        return None

    def _can_continue(self, error: BaseException) -> bool:
        """Whether the same command continues an upload that has ended so."""
        final = isinstance(error, DatakitError) and not isinstance(error, _PASSING)
        return not final and self._is_listed and self._is_recognised

    def _take_back(self, begun: _Begun) -> None:
        """Abort what was begun, also where a limit is reached: its parts would be billed for ever."""
        with regardless():
            self._abort(begun.id)

    def _abort(self, upload: str) -> None:
        for _ in range(ABORT_TRIES):
            try:
                self._calls.abort(self._key, upload)
            except StoreUnavailable:
                continue
            except DatakitError:  # what went wrong before is what is told
                pass
            return
