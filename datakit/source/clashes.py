"""clashes: keys that are, or that a file system would take for, one and the same.

The file systems of macOS and Windows merge names that differ only by case or by the way an accent is composed, so an
unpacked dataset would lose samples there; such keys are refused like equal ones. Equal hashes are looked for first, and
confirmed by the keys themselves.
"""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from datakit.data.keys import key_hash
from datakit.source.columns import IN_MEMORY, Positions, Spill, picked, repeated, stretches
from datakit.source.records import KeyColumn
from datakit.source.troubles import Raw, Trouble

_LOOKED_AT = 2**16
"""Keys looked at at once."""


@dataclass(frozen=True, slots=True)
class Clash:
    """A record whose key an earlier one has, or has in other letters."""

    position: int
    key: str
    earlier: int
    earlier_key: str

    def trouble(self, *, where: str, earlier: str, hint: str, raws: tuple[Raw, ...]) -> Trouble:
        """It as an offender; the places of the two, and what to do."""
        problem = f"its key {self.key} is that of {earlier}"
        if self.key != self.earlier_key:
            problem = f"its key {self.key} differs from {self.earlier_key} ({earlier}) only by {self._difference()}"
        return Trouble(where, problem, key=self.key, hint=hint, raws=raws)

    def _difference(self) -> str:
        composed = "the way an accent is composed"
        if self.key.lower() == self.earlier_key.lower():
            return "case"
        one, other = (unicodedata.normalize("NFC", key) for key in (self.key, self.earlier_key))
        return composed if one == other else f"case and {composed}"


def clashes(keys: KeyColumn, *, spill: Spill = IN_MEMORY) -> list[Clash]:
    """The records whose keys clash with an earlier one, in order.

    Args:
        keys: All keys.
        spill: Where a column goes that is long.

    Raises:
        NoSpace: The spool's disk is full.
    """
    found = [clash for some in repeated(folded_hashes(keys, spill=spill)) for clash in among(keys, some)]
    return sorted(found, key=lambda clash: clash.position)


def among(keys: KeyColumn, some: Positions) -> list[Clash]:
    """Those of some records, whose positions rise, that clash with an earlier one of them."""
    by_key: dict[str, int] = {}
    by_fold: dict[str, tuple[int, str]] = {}
    found = []
    for position, key in zip(some.tolist(), keys.take(some), strict=True):
        if key in by_key:
            found.append(Clash(position, key, by_key[key], key))
            continue
        by_key[key] = position
        earlier, name = by_fold.setdefault(folded(key), (position, key))
        if earlier != position:
            found.append(Clash(position, key, earlier, name))
    return found


def folded(key: str) -> str:
    """A key as a file system that minds neither case nor composition compares it."""
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", key).lower())


def folded_hashes(keys: KeyColumn, *, spill: Spill) -> npt.NDArray[np.uint64]:
    """`key_hash` of each key as it is compared; computed anew only where that is another text.

    Args:
        keys: All keys.
        spill: Where a column goes that is long.

    Raises:
        NoSpace: The spool's disk is full.
    """
    if all(_is_plain(keys.text[some].tobytes()) for some in stretches(len(keys.text), keys.text)):
        return keys.hashes()
    hashes = spill.column(np.uint64)
    for some in stretches(len(keys), rows=_LOOKED_AT):
        its = picked(keys.hashes(), some)
        for number, key in enumerate(keys.take(np.arange(some.start, some.stop))):
            if (other := key.lower() if key.isascii() else folded(key)) != key:
                its[number] = key_hash(other)
        hashes.append(its)
    return hashes.done()


def _is_plain(text: bytes) -> bool:
    return text.isascii() and text.lower() == text
