"""source/spans: any cut of a file into spans lists the same lines."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from datakit.data.keys import key_hash
from datakit.data.shard import sample_digest
from datakit.source.naming import Naming
from datakit.source.spans import LineFile, Span, list_span, places, spans_of, troubles_of

LINES = st.lists(
    st.sampled_from([b"", b" ", b"no", b'{"id": "k%d"}', b'{"t": "%d"}\r', b"\xef\xbb\xbf{}"]), max_size=12
)


def columns(spans: list[Span]) -> list[object]:
    """What spans hold, joined."""
    pieces = [list_span(span) for span in spans]
    return [
        b"".join(piece.keys for piece in pieces),
        *[
            [value for piece in pieces for value in getattr(piece, name).tolist()]
            for name in ("lengths", "hashes", "offsets", "sizes", "digests")
        ],
        troubles_of(spans, pieces),
        [remark for piece in pieces for remark in piece.remarks],
    ]


@given(LINES, st.booleans(), st.lists(st.integers(0, 200), max_size=6))
def test_any_cut_into_spans_gives_the_same_lines(
    tmp_path_factory: pytest.TempPathFactory, lines: list[bytes], end: bool, cuts: list[int]
) -> None:
    """Borders inside lines, at line feeds, several in one line; troubles with their true line numbers."""
    path = tmp_path_factory.mktemp("spans") / "x.jsonl"
    data = b"\n".join(line % number if b"%d" in line else line for number, line in enumerate(lines)) + b"\n" * end
    path.write_bytes(data)
    file = LineFile("x.jsonl", str(path))
    borders = sorted({0, len(data), *(cut for cut in cuts if cut < len(data))})

    whole = columns([Span(0, file, 0, len(data), Naming())])
    pieces = columns([Span(0, file, a, b, Naming()) for a, b in itertools.pairwise(borders)])

    if data:
        assert pieces == whole


def test_a_span_notes_what_a_record_is(tmp_path: Path) -> None:
    """Key, its hash, place, size and digest of the bytes."""
    path = tmp_path / "x.jsonl"
    path.write_bytes(b'\n{"id": 5}\n{"id": "b"}')

    piece = list_span(Span(0, LineFile("x", str(path)), 0, 100, Naming()))

    assert (piece.keys, piece.lengths.tolist()) == (b"5b", [1, 1])
    assert piece.hashes.tolist() == [key_hash("5"), key_hash("b")]
    assert (piece.offsets.tolist(), piece.sizes.tolist()) == ([1, 11], [9, 11])
    assert [bytes(row) for row in piece.digests] == [
        sample_digest({"json": b'{"id": 5}'}),
        sample_digest({"json": b'{"id": "b"}'}),
    ]


def test_spans_cover_files_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each byte of each file, an empty file none."""
    monkeypatch.setattr("datakit.source.spans.SPAN_BYTES", 10)
    files = []
    for name, size in (("a", 25), ("b", 0), ("c", 10)):
        (tmp_path / name).write_bytes(b"x" * size)
        files.append(LineFile(name, str(tmp_path / name)))

    spans = spans_of(files, naming=Naming())

    assert [(span.number, span.start, span.stop) for span in spans] == [
        (0, 0, 10),
        (0, 10, 20),
        (0, 20, 25),
        (2, 0, 10),
    ]


def test_a_line_of_50_mb_is_a_record(tmp_path: Path) -> None:
    """It spans several spans, and belongs to the one that it begins in."""
    path = tmp_path / "x.jsonl"
    long = b'{"id": "long", "t": "' + b"x" * 50_000_000 + b'"}'
    path.write_bytes(b'{"id": "a"}\n' + long + b'\n{"id": "b"}\n')
    spans = spans_of([LineFile("x.jsonl", str(path))], naming=Naming())

    pieces = [list_span(span) for span in spans]

    assert [piece.keys for piece in pieces] == [b"along", b"", b"b"]
    assert np.concatenate([piece.sizes for piece in pieces]).tolist() == [11, len(long), 11]


def test_places_are_counted_in_one_pass(tmp_path: Path) -> None:
    """The number of line feeds before a record, and one."""
    (tmp_path / "x").write_bytes(b"a\n\nbc\nd")

    assert places(LineFile("x", str(tmp_path / "x")), [0, 2, 3, 3, 6]) == ["x:1", "x:2", "x:3", "x:3", "x:4"]


def test_a_file_of_another_kind_is_given_up_soon(tmp_path: Path) -> None:
    """A million messages help nobody: one more than is tolerated stops the pack."""
    path = tmp_path / "x"
    path.write_bytes(b"no json\n" * 1000)

    span = Span(0, LineFile("x", str(path)), 0, 8000, Naming(), limit=5)

    piece = list_span(span)

    assert [trouble.where for trouble in troubles_of([span], [piece])] == [f"x:{number}" for number in range(1, 7)]
    assert piece.num_lines == 1000


@given(st.lists(st.sampled_from([b'{"id": "%d"}', b"bad", b"", b"x" * 40]), max_size=30), st.integers(1, 30))
def test_line_numbers_are_those_of_the_file_however_it_is_cut(
    tmp_path_factory: pytest.TempPathFactory, kinds: list[bytes], step: int
) -> None:
    """Also behind a span that was given up; no span reads more than itself and the lines that begin in it, so that
    a bad line in each of many does not read the file as many times.
    """
    rows = [kind % number if b"%" in kind else kind for number, kind in enumerate(kinds)]
    path = tmp_path_factory.mktemp("spans") / "x"
    path.write_bytes(b"".join(row + b"\n" for row in rows))
    file, size = LineFile("x", str(path)), path.stat().st_size
    expected = [f"x:{number}" for number, row in enumerate(rows, start=1) if row.strip() and row[:1] != b"{"]

    spans = [Span(0, file, start, min(start + step, size), Naming(), limit=9) for start in range(0, size, step)]
    pieces = [list_span(span) for span in spans]
    given_up = [list_span(replace(span, limit=0)) for span in spans]

    assert [trouble.where for trouble in troubles_of(spans, pieces)] == expected
    assert [piece.num_lines for piece in given_up] == [piece.num_lines for piece in pieces]
    assert sum(piece.num_lines for piece in pieces) == len(rows)
    path.unlink()
    assert len(troubles_of(spans, pieces)) == len(expected), "nothing is read for it"
