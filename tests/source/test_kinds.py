"""source/kinds: what a source holds is told by names that agree, and never guessed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from datakit import InputError
from datakit.source.kinds import Kind, kind_of, lines_name, plain_name, used

_NAMES = [
    f"n{ending}{packed}"
    for ending in (".jsonl", ".ndjson", ".csv", ".tsv", ".tar")
    for packed in ("", ".gz", ".zst")
] + ["n.tgz", "n.parquet"]  # fmt: skip


@pytest.mark.parametrize(
    ("names", "kind"),
    [
        (["a.jsonl"], "jsonl"),
        (["a.jsonl", "b.jsonl.gz", "c.ndjson", "d.jsonl.zst"], "jsonl"),
        (["a.json", "a.jpg"], "files"),
        (["a.json"], "files"),
        (["a.parquet", "x/b.parquet"], "parquet"),
        (["a.csv", "b.tsv.gz"], "csv"),
        (["a.tar", "b.tar.gz", "c.tgz", "d.tar.zst"], "tar"),
        (["a.tar", "a.tar.index.arrow", "manifest.json", "a.tar.idx", "a.idx"], "tar"),
        (["data-00000-of-00001.arrow", "dataset_info.json", "state.json"], "hf"),
    ],
)
def test_the_kind_follows_from_names_that_agree(names: list[str], kind: Kind) -> None:
    """Records where all files hold records of one kind; else files."""
    assert kind_of(names, wanted="auto", src="src", single=False) == kind
    assert kind_of(names, wanted=kind, src="src", single=False) == kind
    assert kind_of(names, wanted="files", src="src", single=False) == "files"


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (["a.jsonl", "notes.txt"], r"holds JSON lines \(a\.jsonl\) and other files \(notes\.txt\)"),
        (["cat.jpg", "labels.csv"], r"holds CSV files \(labels\.csv\) and other files \(cat\.jpg\)"),
        (["a.parquet", "b.jsonl"], r"holds JSON lines \(b\.jsonl\) and other files \(a\.parquet\)"),
        (["a.tar", "README.md"], r"holds tars \(a\.tar\) and other files \(README\.md\)"),
    ],
)
def test_a_mix_is_not_guessed_at(names: list[str], said: str) -> None:
    """The message names one of each, the hint how to pack them whole."""
    with pytest.raises(InputError, match=said) as caught:
        kind_of(names, wanted="auto", src="src", single=False)

    assert "--input files" in str(caught.value.hint)


@pytest.mark.parametrize("wanted", ["jsonl", "parquet", "csv", "tar", "hf"])
def test_a_kind_that_is_not_there_is_refused(wanted: Kind) -> None:
    """Whatever else is."""
    with pytest.raises(InputError, match="src holds no"):
        kind_of(["a.jpg"], wanted=wanted, src="src", single=True)


def test_one_json_file_is_lines_or_an_array() -> None:
    """By itself it would be a dataset of one sample; in a folder it may be a part."""
    assert kind_of(["a.json"], wanted="auto", src="a.json", single=True) == "jsonl"
    assert kind_of(["a.json.gz"], wanted="jsonl", src="a.json.gz", single=True) == "jsonl"


def test_a_dictionary_of_datasets_is_refused_with_the_way_to_one() -> None:
    """One dataset is packed at a time; its splits are named."""
    names = ["dataset_dict.json", "test/state.json", "test/x.arrow", "train/state.json", "train/x.arrow"]

    with pytest.raises(InputError, match=r"dictionary of saved datasets \(test, train\)") as caught:
        kind_of(names, wanted="auto", src="saved/", single=False)

    assert caught.value.hint == "Pack one of them: datakit pack saved/test DEST"


def test_side_files_are_not_read_as_records() -> None:
    """Index, manifest and other readers' side files beside tars; in a folder of files they are files."""
    names = ["a.tar", "a.tar.index.arrow", "manifest.json"]

    assert used(names, "tar") == ["a.tar"]
    assert used(names, "files") == names
    assert used(["cache-1.arrow", "dataset_info.json", "state.json", "x.txt"], "hf") == [
        "cache-1.arrow",
        "dataset_info.json",
        "state.json",
    ]


@pytest.mark.parametrize(
    ("name", "plain"), [("a.jsonl.gz", "a.jsonl"), ("a.tar.zst", "a.tar"), ("a.tgz", "a.tar"), ("a.csv", "a.csv")]
)
def test_a_plain_name_has_no_ending_of_compression(name: str, plain: str) -> None:
    """What the file is called once it is laid down."""
    assert plain_name(name) == plain


@given(st.lists(st.sampled_from([*_NAMES, "a", "b.jpg", "c.tar.d", ".tar/x"]), min_size=1, max_size=3))
def test_endings_that_tell_nothing_mean_files(names: list[str]) -> None:
    """The look at the few endings leaves out no kind: with a name that tells one, the answer is not just files."""
    telling = [name for name in names if name in _NAMES]

    if not telling:
        assert kind_of(names, wanted="auto", src="src", single=False) == "files"
    elif len(telling) < len(names):
        with pytest.raises(InputError, match="other files"):
            kind_of(names, wanted="auto", src="src", single=False)


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz", "a.ndjson.zst", "a.json", "a.json.gz"])
def test_lines_out_of_a_file_are_called_like_lines(name: str) -> None:
    """Whatever they came from, in a folder too."""
    assert kind_of([lines_name(name)], wanted="auto", src="src", single=False) == "jsonl"
