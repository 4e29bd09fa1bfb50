"""clashes: keys that are, or that a file system would take for, one and the same.

The file systems of macOS and Windows merge names that differ only by case or by the way an accent is composed, so an
unpacked dataset would lose samples there; such keys are refused like equal ones. Equal hashes are looked for first, in
one sorted column, and confirmed by the keys themselves, so memory is two columns of eight bytes.
"""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from datakit.data.keys import key_hash
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


def clashes(keys: KeyColumn) -> list[Clash]:
    """The records whose keys clash with an earlier one, in order."""
    hashes = _folded_hashes(keys)
    hashes.sort()
    twice = np.unique(hashes[1:][hashes[1:] == hashes[:-1]])
    if not len(twice):
        return []
    suspects = np.flatnonzero(np.isin(_folded_hashes(keys), twice))
    by_key: dict[str, int] = {}
    by_fold: dict[str, tuple[int, str]] = {}
    found = []
    for position, key in zip(suspects.tolist(), keys.take(suspects), strict=True):
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


def _folded_hashes(keys: KeyColumn) -> npt.NDArray[np.uint64]:
    """`key_hash` of each key as it is compared; computed anew only where that is another text."""
    hashes = keys.hashes().copy()
    plain = keys.text.isascii() and keys.text.lower() == keys.text
    for start in range(0, 0 if plain else len(keys), _LOOKED_AT):
        positions = np.arange(start, min(start + _LOOKED_AT, len(keys)))
        for position, key in zip(positions.tolist(), keys.take(positions), strict=True):
            if (other := key.lower() if key.isascii() else folded(key)) != key:
                hashes[position] = key_hash(other)
    return hashes
