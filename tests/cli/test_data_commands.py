"""cli: pack, verify, inspect, cat and tokenize as people and scripts meet them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from datakit.data.manifest import Manifest
from datakit.storage.commit import read_manifest
from support.cli import datakit, datakit_process, environment, start
from support.packing import raw_lines, samples_of, tree, write_lines, write_pairs
from support.tokens import tiny_tokenizer


@pytest.fixture
def raw(clean_room: Path) -> Path:
    """200 records in the current directory."""
    return write_lines(clean_room / "raw.jsonl", raw_lines(200))


def test_pack_says_what_it_did(raw: Path) -> None:
    """People read one sentence and the datasets on stderr; stdout stays empty."""
    answer = datakit("pack", "raw.jsonl", "ds", "--shard-size", "16KiB", "--split", "train=9", "--split", "dev=1")

    assert (answer.code, answer.stdout) == (0, "")
    assert "Packed 200 records into" in answer.stderr
    assert "ds-train" in answer.stderr
    assert "0 reused" in answer.stderr
    assert len(samples_of(Path("ds/train"))) + len(samples_of(Path("ds/dev"))) == 200


def test_pack_answers_in_json(raw: Path) -> None:
    """Scripts read totals, and for each dataset its digests, which are those of the manifests."""
    answer = datakit("pack", "raw.jsonl", "ds", "--json").json

    result = answer["result"]
    (dataset,) = result["datasets"]
    manifest = Manifest.from_bytes(Path("ds/manifest.json").read_bytes())
    assert answer["ok"]
    assert (result["records"], result["samples"], result["requests"], result["written"]) == (200, 200, 0, True)
    assert dataset["manifest_digest"] == manifest.digest
    assert dataset["content_digest"] == manifest.contents.content_digest
    assert dataset["layout_digest"] == manifest.contents.layout_digest


def test_pack_tried_dry_changes_nothing(raw: Path) -> None:
    """It says what it would do."""
    answer = datakit("pack", "raw.jsonl", "ds", "--dry-run")

    assert "Would pack 200 records into 1 shard of" in answer.stderr
    assert [path.name for path in raw.parent.iterdir()] == ["raw.jsonl"]


def test_flags_stand_over_the_settings_file(raw: Path) -> None:
    """params.yaml names the splits and the size; a flag changes the one it names."""
    Path("params.yaml").write_text("pack:\n  shard_size: 8KiB\n  splits: {train: 4, dev: 1}\n")

    small = datakit("pack", "raw.jsonl", "small", "--json").json["result"]
    large = datakit("pack", "raw.jsonl", "large", "--shard-size", "1MiB", "--json").json["result"]

    assert [dataset["split"] for dataset in small["datasets"]] == ["train", "dev"]
    assert small["shards"] > large["shards"] == 2


def test_pack_says_who_asked_for_splits(raw: Path) -> None:
    """A settings file that happens to lie here makes a folder of datasets; without splits nothing is said."""
    none = datakit("pack", "raw.jsonl", "none").stderr
    Path("params.yaml").write_text("pack:\n  splits: {train: 4, dev: 1}\n")

    told = datakit("pack", "raw.jsonl", "told").stderr
    flag = datakit("pack", "raw.jsonl", "flag", "--split", "a=9", "--split", "b=1").stderr

    assert "splits" not in none
    assert "train 4, dev 1 (pack.splits, params.yaml line 2)" in told
    assert "a 9, b 1 (--split)" in flag


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["nowhere.jsonl", "ds"], 2, "nowhere.jsonl is not there"),
        (["raw.jsonl", "ds", "--shard-size", "huge"], 2, "'huge' is not a size"),
        (["raw.jsonl", "ds", "--layout", "random"], 2, "layout"),
        (["raw.jsonl", "ds", "--split", "train"], 2, "--split train is not NAME=WEIGHT"),
        (["raw.jsonl", "ds", "--split", "a=1", "--split", "a=2"], 2, "--split a is given twice"),
        (["raw.jsonl", "ds", "--split", "train=0.95"], 2, "--split train=0.95: a weight is a whole number"),
        (["raw.jsonl", "ds", "--split", "a=-1"], 2, "a weight is a whole number"),
        (["raw.jsonl", "s3://bucket/ds"], 2, "not to s3://bucket/ds"),
        (["raw.jsonl", "ds", "--workers", "0"], 2, "--workers is 0\nhint: It must be 1 or more"),
        (["bad.jsonl", "ds"], 1, "bad.jsonl:2: not JSON"),
        (["array.jsonl", "ds"], 1, "array.jsonl[0]: a number, not a JSON object"),
        (["twice.jsonl", "ds"], 1, "twice.jsonl:2: its key a is that of twice.jsonl:1"),
        (["empty.jsonl", "ds"], 1, "empty.jsonl is empty"),
        (["raw.jsonl", "full"], 3, "full holds files that no manifest names"),
    ],
)
def test_what_goes_wrong_is_one_sentence_and_leaves_nothing(raw: Path, words: list[str], code: int, said: str) -> None:
    """The right exit code, a hint where there is one, no traceback, nothing half-made."""
    write_lines(Path("bad.jsonl"), [b"{}", b"nonsense"])
    write_lines(Path("array.jsonl"), [b"[1]"])
    write_lines(Path("twice.jsonl"), [b'{"id": "a"}', b'{"id": "a"}'])
    write_lines(Path("empty.jsonl"), [])
    write_lines(Path("full/notes.txt"), [b"mine"])
    before = tree(raw.parent)

    answer = datakit("pack", *words)

    assert answer.code == code
    assert said in answer.stderr
    assert answer.stderr.startswith("error: ")
    assert "Traceback" not in answer.stderr
    assert tree(raw.parent) == before
    assert not Path("ds").exists()


def test_a_full_disk_ends_with_5(raw: Path) -> None:
    """As the system tells it, in a process of its own under a limit on the size of files."""
    script = (
        "import resource, sys\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, resource.RLIM_INFINITY))\n"
        "from datakit.cli.main import main\n"
        "sys.exit(main(['pack', 'raw.jsonl', 'ds']))\n"
    )

    done = subprocess.run(
        [sys.executable, "-c", script], env=environment(), capture_output=True, text=True, check=False
    )

    assert done.returncode == 5
    assert done.stderr.startswith("error: no space to write")
    assert [path.name for path in raw.parent.iterdir()] == ["raw.jsonl"]


def test_ctrl_c_ends_with_130_and_one_line(clean_room: Path) -> None:
    """No traceback from the command or its workers, nothing left of the dataset."""
    write_lines(clean_room / "raw.jsonl", raw_lines(20_000))
    process = start("pack", "raw.jsonl", "ds", "--shard-size", "64KiB", "--workers", "2", cwd=clean_room)
    deadline = time.monotonic() + 60
    while not list(clean_room.glob(".ds.tmp-*")) and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.01)

    os.killpg(process.pid, signal.SIGINT)
    _stdout, stderr = process.communicate(timeout=60)

    assert process.returncode == 130
    assert stderr == "error: interrupted\n"
    assert [path.name for path in clean_room.iterdir()] == ["raw.jsonl"]


def test_verify_says_that_a_dataset_is_whole(raw: Path) -> None:
    """On stdout, with what was checked; as JSON, the report."""
    datakit("pack", "raw.jsonl", "ds", "--shard-size", "16KiB")

    answer, quick = datakit("verify", "ds"), datakit("verify", "ds", "--quick", "--json").json

    assert answer.code == 0
    assert answer.stdout.startswith("ds is whole: 200 samples in")
    assert "every byte checked" in answer.stdout
    assert (quick["result"]["quick"], quick["result"]["findings"]) == (True, [])


def test_verify_names_the_damage_and_ends_with_4(raw: Path) -> None:
    """Each finding a line on stdout, the first as the error; as JSON with sample, part and byte."""
    datakit("pack", "raw.jsonl", "ds", "--shard-size", "16KiB")
    sample = samples_of(Path("ds"))[-1]
    shard = next(path for path in Path("ds").glob("*.tar") if sample.parts["json"] in path.read_bytes())
    data = bytearray(shard.read_bytes())
    at = data.index(sample.parts["json"])
    data[at] ^= 4
    shard.write_bytes(data)

    answer, told = datakit("verify", "ds"), datakit("verify", "ds", "--json").json

    assert answer.code == 4
    assert answer.stdout.startswith(f"{shard.name}: part json of sample {sample.key} (bytes {at} to")
    assert answer.stderr.startswith(f"error: {shard.name}: part json of sample {sample.key}")
    (finding,) = told["result"]["findings"]
    assert (finding["file"], finding["sample"], finding["part"], finding["byte"]) == (
        shard.name,
        sample.key,
        "json",
        at,
    )
    assert (told["ok"], told["exit_code"], told["error"]["kind"]) == (False, 4, "IntegrityError")


def test_inspect_shows_totals_sizes_and_samples(clean_room: Path) -> None:
    """One page for people, everything for scripts."""
    write_pairs(clean_room / "raw", 20)
    datakit("pack", "raw", "ds")

    answer, told = datakit("inspect", "ds", "--show", "2"), datakit("inspect", "ds", "--json").json["result"]

    assert answer.code == 0
    for words in ("samples          20", "part jpg: 20 samples", "below 128 B", "#", "SAMPLE", "/img-00"):
        assert words in answer.stdout
    assert (told["samples"], told["parts"]["jpg"]["samples"], len(told["first_samples"])) == (20, 20, 3)


def test_cat_writes_the_bytes_as_they_are(clean_room: Path) -> None:
    """No newline is added, nothing decoded; JSON describes instead."""
    write_pairs(clean_room / "raw", 4)
    datakit("pack", "raw", "ds")
    script = [sys.executable, "-c", "import sys; from datakit.cli.main import main; sys.exit(main())"]

    done = subprocess.run([*script, "cat", "ds", "1/img-0003.jpg"], env=environment(), capture_output=True, check=False)
    told = datakit("cat", "ds", "1/img-0003.jpg", "--json").json

    expected = (clean_room / "raw/1/img-0003.jpg").read_bytes()
    assert (done.returncode, done.stdout, done.stderr) == (0, expected, b"")
    assert told["result"].items() >= {"dataset": "ds", "key": "1/img-0003.jpg", "bytes": len(expected)}.items()
    assert (told["result"]["part"], told["result"]["requests"]["get"]) == ("jpg", 0)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["cat", "ds", "nobody"], "has no sample 'nobody'"),
        (["cat", "ds", "r00001.txt"], "has no part txt\nhint: Name one that it has: r00001.json"),
        (["cat", "nowhere", "a"], "nowhere is not there"),
        (["verify", "empty"], "has no manifest.json"),
        (["tokenize", "s3://bucket/ds", "tok", "--model", "m"], "tokenize works on a local directory"),
        (["tokenize", "ds", "tok", "--model", "nowhere"], "nowhere is not a directory with a tokenizer"),
        (["tokenize", "ds", "tok", "--model", "m", "--seq-len", "1"], "seq_len must be 2 or more"),
        (["tokenize", "ds", "tok"], "--model"),
    ],
)
def test_what_is_not_there_ends_with_2(raw: Path, words: list[str], said: str) -> None:
    """A wrong place or name is wrong usage."""
    datakit("pack", "raw.jsonl", "ds")
    Path("empty").mkdir()

    answer = datakit(*words)

    assert answer.code == 2
    assert said in answer.stderr


def test_tokenize_says_what_it_made_of_the_records(clean_room: Path) -> None:
    """Samples, tokens, learned tokens, what was cut; flag over file; JSON has the same numbers."""
    record = {"messages": [{"role": "user", "content": "what " * 20}, {"role": "assistant", "content": "it is " * 40}]}
    write_lines(clean_room / "raw.jsonl", [json.dumps({"id": n, **record}).encode() for n in range(5)])
    tiny_tokenizer(clean_room / "model")
    Path("params.yaml").write_text("tokenize:\n  seq_len: 2\n")
    datakit("pack", "raw.jsonl", "ds")

    dry = datakit("tokenize", "ds", "tok", "--model", "model", "--seq-len", "80", "--dry-run")
    answer = datakit("tokenize", "ds", "tok", "--model", "model", "--seq-len", "80")
    told = datakit("tokenize", "ds", "tok", "--model", "model", "--seq-len", "80", "--json").json

    assert "Would tokenize 5 samples into 400 tokens" in dry.stderr
    assert answer.code == 0
    assert "Tokenized 5 samples into 400 tokens" in answer.stderr
    assert "caution: 5 of 5 samples were cut to 80 tokens" in answer.stderr
    assert (told["result"]["tokens"], told["result"]["truncated"], told["result"]["reused"]) == (400, 5, 1)
    assert told["cautions"][0]["message"] == "5 of 5 samples were cut to 80 tokens"


def test_commands_leave_each_others_datasets_alone(raw: Path) -> None:
    """Tokens are not written over records."""
    tiny_tokenizer(raw.parent / "model")
    write_lines(raw, [b'{"id": "a", "text": "it is"}'])
    datakit("pack", "raw.jsonl", "ds")
    before = tree(Path("ds"))

    answer = datakit_process("tokenize", "ds", "ds", "--model", "model")

    assert answer.code == 2
    assert "ds is the dataset that is read" in answer.stderr
    assert tree(Path("ds")) == before


@pytest.mark.parametrize("name", ["raw.jsonl", "raw.csv"])
def test_records_without_their_field_are_told(raw: Path, name: str) -> None:
    """A field that was named is in none: refused; the usual one only here and there: told. Without it a hash names."""
    header = b"id,a,b\n" if name == "raw.csv" else b""
    rows = [b"x,1,2", b"y,3,4"] if header else [b'{"id": "x", "a": 1}', b'{"a": 2}', b'{"a": 3}']
    Path(name).write_bytes(header + b"\n".join(rows))

    named = datakit("pack", name, "named", "--key-field", "nosuch", "--json")
    usual = datakit("pack", name, "usual", "--json")
    Path(name).write_bytes((header + b"\n".join(rows)).replace(b"id", b"no"))
    none = datakit("pack", name, "none", "--json")
    hashed = datakit("pack", name, "hashed", "--key-field", "", "--json")

    fields = "id, a, b" if header else "id, a"
    assert (named.code, named.json["error"]["subject"]) == (1, "nosuch")
    assert named.json["error"]["message"] == f"no record has the field nosuch; the first has {fields}"
    some = [] if header else ["2 of 3 records lack the field id and are named by content"]
    assert [one["message"] for one in usual.json["cautions"]] == some
    assert none.json["cautions"] == hashed.json["cautions"] == []
    assert ("no record has the field id" in none.stderr) == bool(header)
    assert "no record has the field" not in hashed.stderr
    assert read_manifest(Path("hashed")).contents.content_digest == read_manifest(Path("none")).contents.content_digest


def test_a_name_with_dots_is_told_how_its_key_was_written(raw: Path) -> None:
    """Who asks for a file by its own name cuts it elsewhere than a dataset of escaped keys did."""
    (raw.parent / "cats").mkdir()
    (raw.parent / "cats" / "photo.v1.jpg").write_bytes(b"x")
    datakit("pack", "cats", "ds", "--escape", "percent")

    answer = datakit("cat", "ds", "photo.v1.jpg")

    assert answer.code == 2
    assert "Its keys are escaped, a dot is %2E" in answer.stderr


def test_a_derived_size_is_explained_once(raw: Path) -> None:
    """Before the work begins; a size of one's own, or the default, with the facts."""
    auto = datakit("pack", "raw.jsonl", "ds", "--shard-size", "auto")
    default = datakit("pack", "raw.jsonl", "other")

    assert auto.stderr.count("no other power of two costs less") == 1
    assert "64.0 MiB, the default: a change re-sends much of a set this small, less of it" in default.stderr


def test_lines_that_a_tar_makes_many_times_larger_are_told_with_the_flag(raw: Path) -> None:
    """Not of bundles, nor where other readers are to see each line."""
    write_lines(raw, [b'{"id": "r%d"}' % number for number in range(1100)])

    answers = [datakit("pack", "raw.jsonl", "ds", "--dry-run", *words) for words in ([], ["--bundle", "16"])]
    answers.append(datakit("pack", "raw.jsonl", "ds", "--dry-run", "--index", "dali"))

    assert ["--bundle 16 makes about" in " ".join(answer.stderr.split()) for answer in answers] == [True, False, False]


def test_tiny_shards_are_told_with_what_is_usual(raw: Path) -> None:
    """A shard for nearly each of 1,100 records."""
    write_lines(raw, [b'{"id": "r%d"}' % number for number in range(1100)])

    answer = datakit("pack", "raw.jsonl", "ds", "--shard-size", "1", "--dry-run")

    assert " shards of 2.0 KiB on average: each is a file to open" in answer.stderr
    assert "--shard-size 64MiB" in answer.stderr


def test_another_dataset_is_replaced_by_name_only(raw: Path) -> None:
    """Exit code 3 and both ways out; a part that was told to replace names a commit that does."""
    write_lines(Path("old.jsonl"), [b'{"id": "old"}'])
    datakit("pack", "old.jsonl", "ds")

    refused = datakit("pack", "raw.jsonl", "ds")
    part = datakit("pack", "raw.jsonl", "ds", "--part", "0/1", "--replace")
    answer = datakit("pack", "raw.jsonl", "ds", "--replace")

    assert refused.code == 3
    assert f"error: {Path.cwd()}/ds holds 1 sample of dataset ds, which is not in raw.jsonl\n" in refused.stderr
    assert "another destination" in refused.stderr
    assert "--replace" in refused.stderr
    assert "commits: datakit pack raw.jsonl ds --replace" in part.stderr
    assert answer.code == 0


@pytest.mark.parametrize("word", ["3", "a/b", "1/", "/2", "-1/2"])
def test_a_part_is_two_numbers(raw: Path, word: str) -> None:
    """Anything else than I/N is wrong usage, and the hint shows four good ones."""
    answer = datakit("pack", "raw.jsonl", "ds", f"--part={word}")

    assert answer.code == 2
    assert "is not I/N" in answer.stderr
    assert "0/4, 1/4" in answer.stderr


@pytest.mark.parametrize(
    ("words", "setting"),
    [
        (["--bundle", "1"], "pack: bundle"),
        (["--key", "dash"], "pack.key"),
        (["--escape", "base64"], "pack.escape"),
        (["--dedupe", "fuzzy"], "pack.dedupe"),
        (["--on-error", "ignore"], "pack.on_error"),
        (["--max-errors", "0"], "pack: max_errors"),
        (["--index", "mds"], "pack.index"),
        (["--expected-edits", "0"], "pack: expected_edits"),
    ],
)
def test_a_flag_is_a_setting_and_checked_as_one(raw: Path, words: list[str], setting: str) -> None:
    """A value that cannot be ends the command with 2 and names setting and flag."""
    answer = datakit("pack", "raw.jsonl", "ds", *words)

    assert answer.code == 2
    assert setting in answer.stderr
    assert not Path("ds").exists()
