"""stretch: what a stretch of a file comes to as its bytes pass by once: checksums, and what contradicts its index."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import TypeAlias

from datakit.data.digest import PART_BYTES, Buffer, crc32c
from datakit.verify.damage import Finding
from datakit.verify.tape import Tape

MOST_FINDINGS = 20
"""Findings listed for one shard: after so many it is to be fetched again whatever the rest says."""

Compare: TypeAlias = Callable[[Tape], Iterable[Finding]]
"""Looks at bytes that pass by, as far as it likes."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """Checksums of a stretch, and findings in it.

    Attributes:
        crcs: The crc32c of each of its 16 MiB parts, 8 hex digits.
        sha256: Of all of it, or None where that was not asked for.
        findings: Where it is not what its index says.
    """

    crcs: tuple[str, ...]
    sha256: str | None
    findings: tuple[Finding, ...] = ()


def stretch(
    pieces: Iterable[Buffer], start: int, stop: int, compare: Compare | None = None, *, whole: bool = True
) -> Stretch:
    """Look at the bytes of a stretch that begins with a part.

    Args:
        pieces: The bytes.
        start: Where it begins in its file, in bytes.
        stop: Where it ends.
        compare: Looks at the bytes too.
        whole: Whether it is a whole file, whose sha256 says something.
    """
    sums = _Sums(start, stop, whole=whole)
    tape = Tape(sums.passing(pieces), start)
    findings = tuple(islice(compare(tape), MOST_FINDINGS)) if compare is not None else ()
    tape.run_out()
    return Stretch(tuple(sums.crcs), None if sums.whole is None else sums.whole.hexdigest(), findings)


class _Sums:
    """Checksums of what passes."""

    def __init__(self, start: int, stop: int, *, whole: bool) -> None:
        self.whole = hashlib.sha256() if whole else None
        self.crcs: list[str] = []
        self._crc = 0
        self._at = start
        self._stop = stop

    def passing(self, pieces: Iterable[Buffer]) -> Iterator[Buffer]:
        """Hand on what was summed up."""
        for piece in pieces:
            if self.whole is not None:
                self.whole.update(piece)
            rest = memoryview(piece)
            while rest:
                room = PART_BYTES - self._at % PART_BYTES
                now, rest = rest[:room], rest[room:]
                self._crc = crc32c(now, self._crc)
                self._at += len(now)
                if self._at % PART_BYTES == 0 or self._at == self._stop:
                    self.crcs.append(f"{self._crc:08x}")
                    self._crc = 0
            yield piece
