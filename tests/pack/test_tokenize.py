"""pack/tokenize: records to ids and masks with a real tokenizer, shard by shard, only what changed."""

from __future__ import annotations

import datetime as dt
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from datakit import InputError, IntegrityError, NotFound, Refused, UsageError
from datakit.events import Caution, Event, Progress
from datakit.pack.build import pack
from datakit.pack.reindex import reindex
from datakit.pack.tokenize import TokenizeSettings, tokenize
from datakit.pack.tokenizer import Tokenizer, _clock
from datakit.storage.commit import read_manifest
from datakit.verify.verify import verify
from support.cli import environment
from support.packing import samples_of, small_pack, tree, write_lines
from support.tars import pairs, write_webdataset
from support.tokens import CHATML, DATED, FORGETFUL, PICKY, tiny_tokenizer


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tokenizer's directory."""
    return tiny_tokenizer(tmp_path_factory.mktemp("model"))


def chat(number: int, *, answer: str | None = None) -> dict[str, Any]:
    """A conversation of two questions."""
    turns = [f"what is it {number}", answer or f"it is {number}", "hello", "there " * (number % 7)]
    roles = ["user", "assistant"] * 2
    return {
        "id": f"c{number:04d}",
        "messages": [{"role": role, "content": turn} for role, turn in zip(roles, turns, strict=True)],
    }


def pack_chats(root: Path, records: list[dict[str, Any]]) -> Path:
    """A dataset of records in shards of 16 KiB."""
    small_pack(write_lines(root / "raw.jsonl", [json.dumps(record).encode() for record in records]), root / "ds")
    return root / "ds"


def arrays(dataset: Path) -> dict[str, tuple[list[int], list[int]]]:
    """Ids and mask of each sample, types checked."""
    found = {}
    for sample in samples_of(dataset):
        ids, mask = (np.load(io.BytesIO(sample.parts[part])) for part in ("ids.npy", "mask.npy"))
        assert (ids.dtype, mask.dtype, sample.tokens) == (np.int32, np.uint8, len(ids))
        found[sample.key] = (ids.tolist(), mask.tolist())
    return found


def test_ids_are_those_of_transformers_and_answers_are_learned(tmp_path: Path, model: Path) -> None:
    """The ids equal apply_chat_template's; masked tokens decode to the answers with their end tokens."""
    from transformers import AutoTokenizer

    records = [chat(number) for number in range(40)]
    stock = AutoTokenizer.from_pretrained(model)

    result = tokenize(pack_chats(tmp_path, records), tmp_path / "tok", model=model)

    found = arrays(tmp_path / "tok")
    for record in records:
        ids, mask = found[record["id"]]
        expected = stock.apply_chat_template(record["messages"], tokenize=True, return_dict=False)
        assert ids == list(expected)
        learned = [token for token, one in zip(ids, mask, strict=True) if one]
        answers = [turn["content"] for turn in record["messages"] if turn["role"] == "assistant"]
        assert stock.decode(learned) == "".join(f"{answer}<|im_end|>" for answer in answers)
    assert result.samples == len(records)
    assert result.tokens == sum(len(ids) for ids, _mask in found.values())
    assert result.supervised_tokens == sum(sum(mask) for _ids, mask in found.values())
    assert (result.truncated, result.dropped, result.reused) == (0, 0, 0)
    assert read_manifest(tmp_path / "tok").contents.tokens == result.tokens
    assert verify(tmp_path / "tok").findings == ()


def test_prompts_and_texts_end_with_the_end_token(tmp_path: Path) -> None:
    """The three forms may stand side by side; a beginning token comes first where the tokenizer puts one."""
    model = tiny_tokenizer(tmp_path / "model", begin=True)
    records = [{"id": "p", "prompt": "hello ", "completion": "there"}, {"id": "t", "text": "it is"}]

    tokenize(pack_chats(tmp_path, records), tmp_path / "tok", model=model)

    tokenizer = Tokenizer(model)
    found = arrays(tmp_path / "tok")
    hello, there, text = tokenizer.encode(["hello ", "there", "it is"])
    assert found["p"] == ([2, *hello, *there, 1], [0] * (1 + len(hello)) + [1] * (len(there) + 1))
    assert found["t"] == ([2, *text, 1], [0] + [1] * (len(text) + 1))


def test_long_samples_are_cut_and_told(tmp_path: Path, model: Path) -> None:
    """Cut at the end, counted; those without a learned token left are left out, counted."""
    records = [chat(1), chat(2, answer="the answer " * 50), {"id": "long", "prompt": "what " * 99, "completion": "it"}]
    told: list[Event] = []
    dataset = pack_chats(tmp_path, records)

    whole = tokenize(dataset, tmp_path / "whole", model=model)
    result = tokenize(
        dataset, tmp_path / "tok", model=model, settings=TokenizeSettings(seq_len=64), on_event=told.append
    )

    found, uncut = arrays(tmp_path / "tok"), arrays(tmp_path / "whole")
    assert set(found) == {"c0001", "c0002"}
    assert found["c0002"][0] == uncut["c0002"][0][:64]
    assert (result.truncated, result.dropped, whole.dropped) == (1 + (len(uncut["c0001"][0]) > 64), 1, 0)
    cautions = [event.message for event in told if isinstance(event, Caution)]
    assert cautions == [
        f"{result.truncated} of 2 samples {'was' if result.truncated == 1 else 'were'} cut to 64 tokens",
        "1 record was left out: nothing in the first 64 tokens is learned",
    ]
    progress = [event.done for event in told if isinstance(event, Progress)]
    assert (progress[0], progress[-1]) == (0, 3)


def test_one_shard_of_records_makes_one_shard_of_tokens(tmp_path: Path, model: Path) -> None:
    """In the same order, and the manifest says which came from which, and from what."""
    dataset = pack_chats(tmp_path, [chat(number) for number in range(120)])

    tokenize(dataset, tmp_path / "tok", model=model)

    source, made = read_manifest(dataset), read_manifest(tmp_path / "tok")
    assert len(source.contents.shards) > 3
    assert [s.samples for s in made.contents.shards] == [s.samples for s in source.contents.shards]
    assert [s.key for s in samples_of(tmp_path / "tok")] == [s.key for s in samples_of(dataset)]
    origin = made.contents.pack["from"]
    assert [each["shard"] for each in origin] == [source.member(s.name).sha256 for s in source.contents.shards]
    assert [each["made"] for each in origin] == [shard.name for shard in made.contents.shards]
    assert made.contents.pack["source"]["content_digest"] == source.contents.content_digest
    assert made.contents.pack["tokenize"] == {
        "algorithm": 1,
        "seq_len": 2048,
        "tokenizer": Tokenizer(model).digest,
    }


def test_a_second_run_redoes_only_what_changed(tmp_path: Path, model: Path) -> None:
    """One record edited: one shard; other settings: all. The result is that of a fresh run."""
    records = [chat(number) for number in range(120)]
    dataset = pack_chats(tmp_path, records)
    first = tokenize(dataset, tmp_path / "tok", model=model)

    same = tokenize(dataset, tmp_path / "tok", model=model)
    records[60] = chat(60, answer="another one")
    pack_chats(tmp_path, records)
    edited = tokenize(dataset, tmp_path / "tok", model=model)
    kept = tree(tmp_path / "tok")
    shorter = tokenize(dataset, tmp_path / "tok", model=model, settings=TokenizeSettings(seq_len=100))
    tokenize(dataset, tmp_path / "fresh" / "tok", model=model)

    assert (same.reused, same.manifest_digest) == (first.shards, first.manifest_digest)
    assert edited.reused == edited.shards - 1
    assert shorter.reused == 0
    assert kept == tree(tmp_path / "fresh" / "tok")


def test_a_dry_run_counts_and_writes_nothing(tmp_path: Path, model: Path) -> None:
    """Its numbers are those of the run, over an earlier one too."""
    dataset = pack_chats(tmp_path, [chat(number) for number in range(60)])

    planned = tokenize(dataset, tmp_path / "tok", model=model, dry_run=True)
    untouched = not (tmp_path / "tok").exists()
    done = tokenize(dataset, tmp_path / "tok", model=model)
    before = tree(tmp_path)
    again = tokenize(dataset, tmp_path / "tok", model=model, dry_run=True)

    assert untouched
    assert (planned.written, planned.manifest_digest, done.written) == (False, None, True)
    for field in ("samples", "tokens", "supervised_tokens", "shards", "shard_bytes", "content_digest", "layout_digest"):
        assert getattr(planned, field) == getattr(done, field) == getattr(again, field)
    assert again.reused == done.shards
    assert tree(tmp_path) == before


def test_the_tokenizers_digest_knows_tokens_and_template(tmp_path: Path, model: Path) -> None:
    """The same tokenizer elsewhere is the same; another template, post-processor, end or beginning is not."""
    (tmp_path / "t.jinja").write_text("{{ messages[0]['content'] }}")

    same = Tokenizer(tiny_tokenizer(tmp_path / "same")).digest
    others = {
        Tokenizer(tiny_tokenizer(tmp_path / "begin", begin=True)).digest,
        Tokenizer(model, template=str(tmp_path / "t.jinja")).digest,
        Tokenizer(tiny_tokenizer(tmp_path / "bare", template=None)).digest,
        Tokenizer(tiny_tokenizer(tmp_path / "end", end="<s>")).digest,
        Tokenizer(tiny_tokenizer(tmp_path / "start", start="<|im_end|>")).digest,
    }

    assert same == Tokenizer(model).digest
    assert len(others | {same}) == 6


def test_another_end_token_makes_every_shard_anew(tmp_path: Path, model: Path) -> None:
    """The same vocabulary and template with another end: texts end otherwise, so nothing of the old may be kept."""
    dataset = pack_chats(tmp_path, [{"id": f"t{number}", "text": f"hello {number}"} for number in range(5)])
    tokenize(dataset, tmp_path / "tok", model=model)

    result = tokenize(dataset, tmp_path / "tok", model=tiny_tokenizer(tmp_path / "other", end="<s>"))

    assert result.reused == 0
    assert {ids[-1] for ids, _mask in arrays(tmp_path / "tok").values()} == {2}


def test_a_template_that_asks_for_the_date_sees_the_one_that_was_set(tmp_path: Path) -> None:
    """Never the clock: without a date it is refused, with one the bytes are the same on any day."""
    model = tiny_tokenizer(tmp_path / "model", template=DATED)
    dataset = pack_chats(tmp_path, [chat(0)])

    with pytest.raises(InputError, match="asks for today's date") as caught:
        tokenize(dataset, tmp_path / "tok", model=model)
    first = tokenize(dataset, tmp_path / "tok", model=model, settings=TokenizeSettings(date="2024-07-26"))
    same = tokenize(dataset, tmp_path / "tok", model=model, settings=TokenizeSettings(date="2024-07-26"))
    ids, _mask = arrays(tmp_path / "tok")["c0000"]
    other = tokenize(dataset, tmp_path / "tok", model=model, settings=TokenizeSettings(date="2024-07-27"))

    assert caught.value.hint == "Set the date that it sees, and keep it: --date 2024-07-26"
    assert Tokenizer(model).decode(ids).startswith("26 Jul 2024<|im_start|>user")
    assert (same.reused, same.manifest_digest) == (1, first.manifest_digest)
    assert (other.reused, read_manifest(tmp_path / "tok").contents.pack["tokenize"]["date"]) == (0, "2024-07-27")
    with pytest.raises(UsageError, match="'tomorrow' is not a date"):
        TokenizeSettings(date="tomorrow")


@pytest.mark.parametrize("form", ["%d %b %Y", "%%d", "%%%d", "d", "", "%A, %H:%M", "%Y-%m-%d %%", "%j%j"])
@pytest.mark.parametrize("date", [dt.date(345, 7, 16), dt.date(2000, 1, 1), dt.date(2024, 7, 26)])
def test_the_date_is_written_as_strftime_writes_it(form: str, date: dt.date) -> None:
    """Whatever the format: a template with the date that was set gives what Python gives."""
    import jinja2

    template = jinja2.Environment(trim_blocks=True, lstrip_blocks=True).from_string(
        _clock(date) + "\n  {% if true %}{{ strftime_now(form) }}{% endif %}"
    )

    assert template.render(form=form) == "\n" + dt.datetime.combine(date, dt.time()).strftime(form)


@pytest.mark.parametrize("draw", ["{{ ['a', 'b'] | random }}", "{{ lipsum() }}", "{{ [['a']] | map('random') }}"])
def test_a_template_that_draws_at_random_is_refused(tmp_path: Path, draw: str) -> None:
    """Its bytes would be others on the next machine."""
    model = tiny_tokenizer(tmp_path / "model", template=draw + CHATML)

    with pytest.raises(InputError, match="draws at random"):
        tokenize(pack_chats(tmp_path, [chat(0)]), tmp_path / "tok", model=model)


def test_a_first_token_is_not_counted_as_learned(tmp_path: Path, model: Path) -> None:
    """Nothing stands before it, so no model is asked for it: the count is that of the loss."""
    dataset = pack_chats(tmp_path, [{"id": "t", "text": "it is"}])

    result = tokenize(dataset, tmp_path / "tok", model=model)

    ids, mask = arrays(tmp_path / "tok")["t"]
    assert sum(mask) == len(ids)
    assert result.supervised_tokens == len(ids) - 1


@pytest.mark.parametrize("suffix", [".tar", ".tar.index.arrow"])
def test_a_damaged_shard_of_an_earlier_run_is_made_again(tmp_path: Path, model: Path, suffix: str) -> None:
    """A flipped bit does not live on; it is told, and the dataset is that of a fresh run."""
    dataset = pack_chats(tmp_path, [chat(number) for number in range(60)])
    first = tokenize(dataset, tmp_path / "tok", model=model)
    whole = tree(tmp_path / "tok")
    victim = tmp_path / "tok" / (read_manifest(tmp_path / "tok").contents.shards[0].name.removesuffix(".tar") + suffix)
    data = bytearray(victim.read_bytes())
    data[len(data) // 2] ^= 1
    victim.write_bytes(data)
    told: list[Event] = []

    again = tokenize(dataset, tmp_path / "tok", model=model, on_event=told.append)

    assert again.reused == first.shards - 1
    assert Caution(f"{victim} is not what the manifest says; what it held is made again") in told
    assert tree(tmp_path / "tok") == whole


@pytest.mark.parametrize(
    ("template", "said"),
    [
        (None, "has no chat template"),
        (FORGETFUL, "sample c0000 of .*: the chat template changes a turn once another follows"),
        (PICKY, "sample c0000 of .*: the chat template says: roles must alternate"),
    ],
)
def test_a_template_that_cannot_be_used_is_refused(tmp_path: Path, template: str | None, said: str) -> None:
    """Named with the sample it fails on, and nothing is left behind."""
    dataset = pack_chats(tmp_path, [chat(0)])
    model = tiny_tokenizer(tmp_path / "model", template=template)

    with pytest.raises(InputError, match=said):
        tokenize(dataset, tmp_path / "tok", model=model)
    assert not (tmp_path / "tok").exists()


def test_a_template_of_ones_own_is_used(tmp_path: Path) -> None:
    """`--template FILE` takes the place of the tokenizer's."""
    (tmp_path / "t.jinja").write_text(
        "{% for m in messages %}{{ m['role'] + ': ' + m['content'] + '<|im_end|>' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ 'assistant: ' }}{% endif %}"
    )
    model = tiny_tokenizer(tmp_path / "model", template=None)
    dataset = pack_chats(tmp_path, [chat(3)])

    settings = TokenizeSettings(template=str(tmp_path / "t.jinja"))
    tokenize(dataset, tmp_path / "tok", model=model, settings=settings)

    ids, mask = arrays(tmp_path / "tok")["c0003"]
    learned = Tokenizer(model).decode([token for token, one in zip(ids, mask, strict=True) if one])
    assert learned == "it is 3<|im_end|>there there there <|im_end|>"
    with pytest.raises(NotFound, match=r"none\.jinja is not there"):
        Tokenizer(model, template=str(tmp_path / "none.jinja"))


def test_what_cannot_be_tokenized_is_refused_with_its_reason(tmp_path: Path, model: Path) -> None:
    """A record of no known form, a dataset without records, nothing to learn."""
    unknown = pack_chats(tmp_path / "a", [chat(0), {"id": "odd", "question": "?"}])
    nothing = pack_chats(tmp_path / "b", [{"id": "q", "messages": [{"role": "user", "content": "hello"}]}])
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "x.txt").write_bytes(b"x")
    small_pack(tmp_path / "files", tmp_path / "c")

    for dataset, said in {
        unknown: "sample odd of .* has neither messages",
        nothing: "no record has a token to learn",
        tmp_path / "c": "sample x of .* has no part json, it has txt",
    }.items():
        with pytest.raises(InputError, match=said):
            tokenize(dataset, tmp_path / "tok", model=model)
    assert not (tmp_path / "tok").exists()


def test_damaged_records_are_not_tokenized(tmp_path: Path, model: Path) -> None:
    """The checksum of each record is looked at."""
    dataset = pack_chats(tmp_path, [chat(0)])
    shard = next(dataset.glob("*.tar"))
    shard.write_bytes(shard.read_bytes().replace(b"what is it", b"what iz it"))

    with pytest.raises(IntegrityError, match=r"sample c0000 of .* has crc32c") as caught:
        tokenize(dataset, tmp_path / "tok", model=model)
    assert caught.value.hint == f"See all damage: datakit verify {dataset}"


def test_a_damaged_index_is_not_tokenized(tmp_path: Path, model: Path) -> None:
    """A key that is not what was packed would stand in a commit that verifies."""
    dataset = pack_chats(tmp_path, [chat(0)])
    index = next(dataset.glob("*.arrow"))
    index.write_bytes(index.read_bytes().replace(b"c0000", b"z0000"))

    with pytest.raises(IntegrityError, match=rf"{index.name} has crc32c \w+ in its bytes") as caught:
        tokenize(dataset, tmp_path / "tok", model=model)
    assert (caught.value.exit_code, caught.value.subject) == (4, str(index))
    assert not (tmp_path / "tok").exists()


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (
            b"{",
            r"tokenizer\.json is not a tokenizer that can be used: .*EOF while parsing an object at line 1 column 1$",
        ),
        (b"{}", r"tokenizer\.json is not a tokenizer that can be used: .+"),
        (None, r"model holds no tokenizer that can be loaded: it has no tokenizer\.json$"),
    ],
)
def test_a_tokenizer_that_cannot_be_used_is_said_in_one_sentence(
    tmp_path: Path, content: bytes | None, said: str
) -> None:
    """The file and the reason, not the beginning of a library's advice."""
    file = tiny_tokenizer(tmp_path / "model") / "tokenizer.json"
    file.unlink() if content is None else file.write_bytes(content)

    with pytest.raises(InputError) as caught:
        Tokenizer(tmp_path / "model")
    assert re.search(said, caught.value.message), caught.value.message
    assert caught.value.hint == "Save the model's fast tokenizer there again"


UNREADABLE = """
import os, sys
from datakit import NotAllowed
from datakit.pack.tokenizer import Tokenizer
Tokenizer(sys.argv[2])  # root imports what others may not read
if os.getuid() == 0:
    os.setuid(65534)
try:
    Tokenizer(sys.argv[1])
except NotAllowed as error:
    print(error.exit_code, error.message)
"""


def test_a_tokenizer_that_may_not_be_read_is_a_matter_of_permission(model: Path) -> None:
    """Exit code 6 and the file's name."""
    with tempfile.TemporaryDirectory() as place:  # below pytest's own directories others see nothing
        os.chmod(place, 0o755)
        copy = Path(shutil.copytree(model, f"{place}/model"))
        for path in (copy, *copy.iterdir()):
            path.chmod(0o755)
        (copy / "tokenizer.json").chmod(0)

        out = subprocess.run(
            [sys.executable, "-c", UNREADABLE, str(copy), str(model)],
            capture_output=True,
            text=True,
            env=environment(),
            check=False,
        )

    assert out.stdout == f"6 {copy}/tokenizer.json: Permission denied\n", out.stderr


def test_places_and_settings_that_cannot_be_are_refused(tmp_path: Path, model: Path) -> None:
    """No dataset, no model, a model without a tokenizer, files of others, a length that teaches nothing."""
    dataset = pack_chats(tmp_path, [chat(0)])
    write_lines(tmp_path / "full" / "notes.txt", [b"mine"])
    (tmp_path / "empty").mkdir()

    with pytest.raises(NotFound, match="nowhere is not there"):
        tokenize(tmp_path / "nowhere", tmp_path / "tok", model=model)
    with pytest.raises(NotFound, match="nowhere is not a directory with a tokenizer"):
        tokenize(dataset, tmp_path / "tok", model=tmp_path / "nowhere")
    with pytest.raises(InputError, match="is not a directory with a tokenizer"):
        tokenize(dataset, tmp_path / "tok", model=tmp_path / "full" / "notes.txt")
    with pytest.raises(InputError, match="empty holds no tokenizer that can be loaded"):
        tokenize(dataset, tmp_path / "tok", model=tmp_path / "empty")
    with pytest.raises(Refused, match="no manifest names"):
        tokenize(dataset, tmp_path / "full", model=model)
    with pytest.raises(UsageError, match="seq_len must be 2 or more"):
        TokenizeSettings(seq_len=1)


def test_without_transformers_the_extra_is_named(tmp_path: Path, model: Path) -> None:
    """One sentence says what to install."""
    dataset = pack_chats(tmp_path, [chat(0)])
    script = (
        "import sys\n"
        "sys.modules['transformers'] = None\n"
        "from datakit import MissingExtra\n"
        "from datakit.pack.tokenize import tokenize\n"
        "try:\n"
        f"    tokenize({str(dataset)!r}, 'tok', model={str(model)!r})\n"
        "except MissingExtra as error:\n"
        "    print(error)\n"
    )

    done = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, env=environment(), capture_output=True, text=True, check=True
    )

    assert done.stdout == "transformers is not installed. pip install 'datakit[train]'\n"


@pytest.mark.parametrize("dry_run", [False, True])
def test_tokens_of_another_dataset_are_not_replaced(tmp_path: Path, model: Path, dry_run: bool) -> None:
    """As `pack` replaces none of which it reads no sample; a shard, or any key, tells a later version of the same."""
    records = [chat(number) for number in range(60)]
    tokenize(pack_chats(tmp_path / "one", records), tmp_path / "tok", model=model)
    other = pack_chats(tmp_path / "two", [chat(number) for number in range(60, 90)])
    whole = tree(tmp_path / "tok")

    with pytest.raises(Refused, match=r"tok holds 60 samples of dataset tok, none of which is in .*two/ds") as caught:
        tokenize(other, tmp_path / "tok", model=model, dry_run=dry_run)
    assert str(caught.value.hint).endswith(f"remove it: rm -r {tmp_path / 'tok'}")
    assert tree(tmp_path / "tok") == whole

    edited = pack_chats(tmp_path / "one", [chat(number, answer="all anew") for number in range(59, 80)])
    assert tokenize(edited, tmp_path / "tok", model=model, dry_run=dry_run).reused == 0


@pytest.mark.parametrize("dry_run", [False, True])
def test_records_tokens_and_tars_of_others_do_not_replace_each_other(
    tmp_path: Path, model: Path, dry_run: bool
) -> None:
    """Neither are tokens written over what pack or reindex made, nor records over tokens; those only when asked for."""
    source = pack_chats(tmp_path, [chat(1)])
    small_pack(tmp_path / "raw.jsonl", tmp_path / "other" / "ds")
    write_webdataset(tmp_path / "theirs" / "000.tar", pairs(range(10)))
    reindex(tmp_path / "theirs", workers=1)
    tokenize(source, tmp_path / "tokens", model=model)
    whole = tree(tmp_path)

    with pytest.raises(Refused, match=r"other/ds holds dataset ds, which pack made"):
        tokenize(source, tmp_path / "other" / "ds", model=model, dry_run=dry_run)
    with pytest.raises(Refused, match=r"theirs holds tars that others wrote"):
        tokenize(source, tmp_path / "theirs", model=model, dry_run=dry_run)
    with pytest.raises(Refused, match=r"tokens holds dataset tokens, which tokenize made"):
        pack(tmp_path / "raw.jsonl", tmp_path / "tokens", dry_run=dry_run)

    assert tree(tmp_path) == whole
    pack(tmp_path / "raw.jsonl", tmp_path / "tokens", replace=True, dry_run=dry_run)
    assert ("tokenize" in read_manifest(tmp_path / "tokens").contents.pack) == dry_run
