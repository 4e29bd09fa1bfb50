"""train/attempt: where an attempt goes on, and what it refuses."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from datakit import NotAllowed, Refused, StoreUnavailable, UsageError, train
from datakit.data.order import Cursor
from datakit.events import Caution, Event, Note, ignore
from datakit.train import shelf
from datakit.train.attempt import Fetch, Start, begin, check_geometry, check_place, check_request, record_attempt
from datakit.train.checkpoint import State, save_checkpoint
from datakit.train.identity import differences
from datakit.train.model import identify
from datakit.train.preview import preview
from datakit.train.recipe import Recipe
from datakit.train.step import make_optimizer
from datakit.version.lineage import read_run
from support.commits import make_commit

IDENTITY: dict[str, Any] = {
    "data": {"name": "chat", "layout_digest": "a" * 64, "samples": 100},
    "base_model": {"name": "base", "digest": "b" * 64},
    "settings": {"steps": 40, "seed": 0, "learning_rate": 0.1},
}


def other(what: str, **changes: Any) -> dict[str, Any]:
    return {**IDENTITY, what: {**IDENTITY[what], **changes}}


def put(
    run: Path, step: int, identity: dict[str, Any] = IDENTITY, overrides: tuple[Mapping[str, Any], ...] = ()
) -> Path:
    parameters = {"lora_A.weight": torch.nn.Parameter(torch.full((2, 2), float(step)))}
    state = State(
        step=step,
        cursor=Cursor(1, step),
        samples=step,
        tokens=0,
        supervised_tokens=0,
        order_digest="00" * 32,
        identity=identity,
        geometry={},
        overrides=overrides,
    )
    return save_checkpoint(
        run / "checkpoints",
        parameters=parameters,
        optimizer=make_optimizer(parameters, Recipe()),
        state=state,
        config=b"{}",
        lineage=b"{}",
    )


def start(run: Path, identity: dict[str, Any] = IDENTITY, **options: Any) -> Start:
    options.setdefault("on_event", ignore)
    return begin(run, identity=identity, **options)


def test_with_nothing_there_it_begins_at_the_beginning(tmp_path: Path) -> None:
    """No run directory, an empty one, and one that was killed before its first checkpoint are the same."""
    (tmp_path / "empty").mkdir()
    (tmp_path / "early" / "checkpoints").mkdir(parents=True)

    starts = [start(tmp_path / name) for name in ("none", "empty", "early")]

    assert starts == [Start(1, None, "local", Cursor(), ())] * 3
    assert starts[0].step == 0


def test_it_continues_the_newest_checkpoint(tmp_path: Path) -> None:
    """With its tensors, its cursor, and a note that says where."""
    put(tmp_path, 10)
    put(tmp_path, 20)
    events: list[Event] = []

    begun = start(tmp_path, on_event=events.append)

    assert begun.checkpoint is not None
    assert (begun.step, begun.cursor, begun.source) == (20, Cursor(1, 20), "local")
    assert float(begun.checkpoint.adapter["lora_A.weight"][0, 0]) == 20
    said = "resuming after step 20 from step-00000020 (local, verified): epoch 1, sample 20 of 100"
    assert events == [Note(said)]


def test_all_that_is_damaged_is_set_aside_and_it_begins_anew(tmp_path: Path) -> None:
    """Each is named with the reason; none is deleted; none is in the way of the next save of that step."""
    for step in (10, 20):
        (put(tmp_path, step) / "state.json").write_bytes(b"x")
    events: list[Event] = []

    begun = start(tmp_path, on_event=events.append)

    assert begun.checkpoint is None
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == [
        "damaged-step-00000010",
        "damaged-step-00000020",
    ]
    assert ["step-00000020" in event.message for event in events if isinstance(event, Caution)] == [True, False]
    assert put(tmp_path, 10).is_dir()


def test_a_killed_writers_leftovers_are_swept(tmp_path: Path) -> None:
    """What a kill left under a temporary name goes away; what is not ours stays."""
    put(tmp_path, 10)
    leftover = tmp_path / "checkpoints" / ".step-00000020.tmp-0123abcd"
    leftover.mkdir()
    (tmp_path / ".notes").write_text("mine")

    start(tmp_path)

    assert not leftover.exists()
    assert (tmp_path / ".notes").exists()


def fetcher(run: Path, step: int | None, asked: list[int]) -> Fetch:
    def fetch(directory: Path, newest: int, check: Callable[[Path], None]) -> str | None:
        asked.append(newest)
        assert directory == run / "checkpoints"
        if step is None:
            return None
        check(put(run, step))
        return "s3://bucket/run"

    return fetch


@pytest.mark.parametrize(("here", "there", "step"), [(None, 20, 20), (10, 20, 20), (20, None, 20)])
def test_a_newer_checkpoint_of_a_colder_tier_is_used(
    tmp_path: Path, here: int | None, there: int | None, step: int
) -> None:
    """The colder tier is asked for what is newer than what is valid here, and its URL is said."""
    if here is not None:
        put(tmp_path, here)
    asked: list[int] = []

    begun = start(tmp_path, fetch=fetcher(tmp_path, there, asked))

    assert begun.step == step
    assert begun.source == ("local" if there is None else "s3://bucket/run")
    assert asked == [-1 if here is None else here]


def test_a_damaged_checkpoint_is_fetched_again(tmp_path: Path) -> None:
    """The colder tier is asked for what is newer than the valid one, so a whole copy of the damaged one comes back."""
    put(tmp_path, 10)
    (put(tmp_path, 20) / "state.json").write_bytes(b"x")
    asked: list[int] = []

    begun = start(tmp_path, fetch=fetcher(tmp_path, 20, asked))

    assert asked == [10]
    assert begun.step == 20


def test_trouble_of_the_colder_tier_is_the_callers(tmp_path: Path) -> None:
    """What `fetch` raises ends the attempt; what it swallows does not."""

    def fetch(directory: Path, newest: int, check: Callable[[Path], None]) -> str | None:
        raise StoreUnavailable("no answer")

    with pytest.raises(StoreUnavailable):
        start(tmp_path, fetch=fetch)


@pytest.mark.parametrize(
    ("identity", "what", "before", "after"),
    [
        (
            other("data", layout_digest="c" * 64, samples=90),
            "data",
            "chat (100 samples, layout aaaa",
            "chat (90 samples",
        ),
        (other("base_model", digest="c" * 64), "model", "base (bbbbbbbbbbbb)", "base (cccccccccccc)"),
        (other("settings", learning_rate=0.2), "settings", "learning_rate 0.1", "learning_rate 0.2"),
        (other("settings", seed=1), "settings", "seed 0", "seed 1"),
    ],
)
def test_another_identity_is_refused_and_can_be_accepted(
    tmp_path: Path, identity: dict[str, Any], what: str, before: str, after: str
) -> None:
    """Both values and the override are named; accepted, it is said, and recorded with the step."""
    put(tmp_path, 20)
    events: list[Event] = []

    with pytest.raises(Refused) as refusal:
        start(tmp_path, identity)
    for word in {"data", "model", "settings"} - {what}:
        with pytest.raises(Refused):
            start(tmp_path, identity, accept=[word])
    begun = start(tmp_path, identity, accept=[what], on_event=events.append)

    assert before in refusal.value.message
    assert after in refusal.value.message
    assert refusal.value.hint is not None
    assert f"--accept {what}" in refusal.value.hint
    assert isinstance(events[0], Caution)
    (override,) = begun.overrides
    assert (override["what"], override["step"]) == (what, 20)


def test_an_order_that_changed_is_begun_anew(tmp_path: Path) -> None:
    """Other data or another seed visit samples in another order: a position in the old one means nothing in it."""
    put(tmp_path, 20)

    cursors = [
        start(tmp_path, other("data", layout_digest="c" * 64), accept=["data"]).cursor,
        start(tmp_path, other("settings", seed=1), accept=["settings"]).cursor,
        start(tmp_path, other("settings", learning_rate=0.2), accept=["settings"]).cursor,
    ]

    assert cursors == [Cursor(), Cursor(), Cursor(1, 20)]


def test_overrides_add_up(tmp_path: Path) -> None:
    """The second override does not hide the first."""
    put(tmp_path, 20)
    changed = other("data", layout_digest="c" * 64)
    first = start(tmp_path, changed, accept=["data"])
    put(tmp_path, 30, changed, overrides=first.overrides)
    both = {**changed, "base_model": {"name": "base", "digest": "d" * 64}}
    second = start(tmp_path, both, accept=["model"])

    assert [override["what"] for override in second.overrides] == ["data", "model"]
    assert [override["step"] for override in second.overrides] == [20, 30]


def test_a_state_past_the_last_step_is_refused(tmp_path: Path) -> None:
    """Also when settings may differ: there is nothing to train."""
    put(tmp_path, 20)

    with pytest.raises(Refused, match=r"past the end: train\.steps is 10"):
        start(tmp_path, other("settings", steps=10), accept=["settings"])


def test_never_refuses_what_is_there_and_asks_nobody(tmp_path: Path) -> None:
    """A checkpoint or an adapter is in the way; the colder tier is not looked at."""
    put(tmp_path / "a", 10)
    (tmp_path / "b" / "adapter").mkdir(parents=True)
    asked: list[int] = []

    fresh = start(tmp_path / "c", resume="never", fetch=fetcher(tmp_path / "c", 10, asked))
    for name in "ab":
        with pytest.raises(Refused, match="holds a run already"):
            start(tmp_path / name, resume="never")

    assert (fresh.checkpoint, asked) == (None, [])


@given(
    old=st.dictionaries(st.sampled_from("abcd"), st.integers(0, 2)),
    new=st.dictionaries(st.sampled_from("abcd"), st.integers(0, 2)),
)
def test_settings_differ_where_values_do(old: dict[str, int], new: dict[str, int]) -> None:
    """Also where only one side has a name, as after an upgrade; equal settings are no difference."""
    found = differences({**IDENTITY, "settings": old}, {**IDENTITY, "settings": new})

    wanted = sorted(name for name in {*old, *new} if old.get(name) != new.get(name))
    assert [list(difference.fields) for difference in found] == ([wanted] if wanted else [])


def test_what_changes_only_bits_is_said(tmp_path: Path) -> None:
    """Threads, devices and versions do not change what is trained; each change is one caution."""
    events: list[Event] = []

    check_geometry(
        {"threads": 1, "torch": "2.13"}, {"threads": 2, "torch": "2.13", "device": "H200"}, on_event=events.append
    )

    assert [event.message.split(":")[0] for event in events if isinstance(event, Caution)] == [
        "device was None, now H200",
        "threads was 1, now 2",
    ]


def test_attempts_are_counted_in_the_runs_file(tmp_path: Path) -> None:
    """Host and time stand there, and from where each attempt went on; facts are those of the last one."""
    first = start(tmp_path)
    record_attempt(tmp_path, first, facts={"settings": {"rank": 4}})
    put(tmp_path, 10)
    second = start(tmp_path)
    record_attempt(tmp_path, second, facts={"settings": {"rank": 4}})

    run = read_run(tmp_path)
    assert (first.number, second.number) == (1, 2)
    assert [attempt["resumed_from"] for attempt in run["attempts"]] == [None, "step-00000010"]
    assert all(attempt["host"] and attempt["started"] for attempt in run["attempts"])
    assert run["settings"] == {"rank": 4}


def test_a_checkpoint_that_was_never_whole_is_not_called_damaged(tmp_path: Path) -> None:
    """One without a manifest is moved away with a note, and goes once that step is whole."""
    put(tmp_path, 10)
    (put(tmp_path, 20) / "manifest.json").unlink()
    events: list[Event] = []

    first = start(tmp_path, on_event=events.append)
    moved = sorted(path.name for path in (tmp_path / "checkpoints").iterdir())
    put(tmp_path, 20)
    second = start(tmp_path)

    assert (first.step, second.step) == (10, 20)
    assert not [event for event in events if isinstance(event, Caution)]
    assert moved == ["step-00000010", "unfinished-step-00000020"]
    assert not list((tmp_path / "checkpoints").glob("unfinished-*"))


def test_what_another_trainer_made_is_never_removed(tmp_path: Path) -> None:
    """Though it lies among a run's own, is called like a checkpoint, and that step is whole by now."""
    theirs = tmp_path / "checkpoints" / "step-00000020"
    theirs.mkdir(parents=True)
    (theirs / "model.pt").write_text("precious")
    put(tmp_path, 10)

    start(tmp_path)
    put(tmp_path, 20)
    second = start(tmp_path)

    assert second.step == 20
    assert (tmp_path / "checkpoints" / "unfinished-step-00000020" / "model.pt").read_text() == "precious"


def test_never_refuses_what_a_colder_tier_holds(tmp_path: Path) -> None:
    """It is looked at, not fetched."""
    with pytest.raises(Refused, match="s3://b/run/step-00000010 is there already"):
        start(tmp_path, resume="never", look=lambda: "s3://b/run/step-00000010")


def test_what_the_guard_let_pass_is_recorded_once(tmp_path: Path) -> None:
    """A run that goes on under the same acceptance writes the same lineage as one that nobody disturbed."""
    stale = {"what": "stale data/tokens", "from": "1", "to": "2"}
    newer = {"what": "stale data/tokens", "from": "1", "to": "3"}
    fresh = start(tmp_path, allowed=[stale])
    put(tmp_path, 10, overrides=fresh.overrides)

    again = start(tmp_path, allowed=[stale])
    moved_on = start(tmp_path, allowed=[newer])
    without = start(tmp_path)

    assert fresh.overrides == ({**stale, "step": 0},)
    assert again.overrides == without.overrides == fresh.overrides
    assert moved_on.overrides == ({**stale, "step": 0}, {**newer, "step": 10})


ASKED: list[tuple[dict[str, Any], str]] = [
    ({"resume": "always"}, "--resume 'always'"),
    ({"accept": ["all"]}, "--accept 'all'"),
    ({"output": "s3://bucket/run"}, "s3://bucket/run cannot be a run"),
]


@pytest.mark.parametrize("begin_it", [train, preview])
@pytest.mark.parametrize(("wish", "said"), ASKED)
def test_a_preview_refuses_what_the_training_refuses(
    tmp_path: Path, begin_it: Callable[..., object], wish: dict[str, Any], said: str
) -> None:
    """By the same sentence, before the data is opened."""
    options = {"model": tmp_path / "base", "output": tmp_path / "run", "settings": Recipe(), **wish}

    with pytest.raises(UsageError, match=re.escape(said)):
        begin_it(tmp_path / "data", **options)


@pytest.mark.parametrize("begin_it", [train, preview])
@pytest.mark.parametrize(
    ("place", "said"),
    [
        ("table", "is the checkpoint table, a commit"),
        ("table/deeper/run", "lies inside the checkpoint table, a commit"),
        ("raw", "holds chat.jsonl and 1 more, and is no run"),
        ("raw/chat.jsonl", "is not a directory, and a run is one"),
        ("raw/chat.jsonl/deeper/run", "raw/chat.jsonl is not a directory, and "),
        ("dangling", "is not a directory, and a run is one"),
        ("lightning", "holds hparams.yaml, and is no run"),
        ("hub", "holds notes.txt, and is no run"),
        ("epochs", "holds checkpoints/epoch=1.ckpt, and is no run"),
        ("steps", "holds checkpoints/step-00000100, and is no run"),
        ("steps-and-more", "holds checkpoints/step-00000100, and is no run"),
        ("mixed", "holds checkpoints/latest and 1 more, and is no run"),
        ("stock", "holds adapter/adapter_model.safetensors, and is no run"),
        ("peft", "holds checkpoints/step-00000001, and is no run"),
        ("wandb", "holds checkpoints/step-00000100, and is no run"),
    ],
)
def test_a_directory_that_is_something_else_is_refused_untouched(
    tmp_path: Path, tokens_dir: Path, base_dir: Path, begin_it: Callable[..., object], place: str, said: str
) -> None:
    """A commit, a place inside one, a folder of files: nothing is written into it, by a preview neither."""
    make_commit(tmp_path / "table", {"a": b"a"}, kind="checkpoint")
    (tmp_path / "raw").mkdir()
    (tmp_path / "raw" / "chat.jsonl").write_text("{}")
    (tmp_path / "raw" / "more.jsonl").write_text("{}")
    (tmp_path / "dangling").symlink_to("nowhere")
    make_commit(tmp_path / "mixed" / "checkpoints" / "step-00000002", {"a": b"a"}, kind="checkpoint")
    for name in (
        *("lightning/checkpoints/epoch=1.ckpt", "lightning/hparams.yaml", "hub/adapter/x.bin", "hub/notes.txt"),
        *("epochs/checkpoints/epoch=1.ckpt", "steps/checkpoints/step-00000100/model.pt"),
        *("steps-and-more/checkpoints/step-00000100/model.pt", "steps-and-more/hparams.yaml"),
        *("mixed/checkpoints/step-00000001/model.pt", "mixed/checkpoints/latest"),
        *("stock/adapter/adapter_model.safetensors", "peft/checkpoints/step-00000001/adapter_model.safetensors"),
        *("wandb/checkpoints/step-00000100/model.pt", "wandb/run.json"),
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "wandb" / "run.json").write_text('{"id": "wandb-1"}')
    before = sorted(tmp_path.rglob("*"))

    with pytest.raises(Refused, match=re.escape(said)) as refused:
        begin_it(tokens_dir, model=base_dir, output=tmp_path / place, settings=Recipe(steps=1))

    assert place not in str(refused.value.hint)
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("name", [".lock", "slurm-17.out", "train.log", "lost+found", "write-back", "checkpoints"])
def test_a_directory_that_may_become_a_run_is_taken(tmp_path: Path, name: str) -> None:
    """What a job's script writes there beforehand, what a volume holds, and what a killed attempt has left."""
    (tmp_path / name).touch()

    check_place(tmp_path)


def test_what_a_killed_attempt_has_left_is_a_run_whatever_lies_beside_it(tmp_path: Path) -> None:
    """Folders without a state, before there is a `run.json`; and a checkpoint that was fetched, with a user's notes."""
    for name in ("write-back", "checkpoints"):
        (tmp_path / "begun" / name).mkdir(parents=True)
    make_commit(tmp_path / "fetched" / "checkpoints" / "step-00000002", {"a": b"a"}, kind="checkpoint")
    (tmp_path / "fetched" / "notes.txt").touch()

    for name in ("damaged-step-00000002", "unfinished-step-00000003-2", "step-00000004", ".step-00000005.tmp-0123abcd"):
        (tmp_path / "copied" / "checkpoints" / name).mkdir(parents=True)
        (tmp_path / "copied" / "checkpoints" / name / "state.json").touch()
    make_commit(tmp_path / "copied" / "adapter", {"a": b"a"}, kind="adapter")

    check_place(tmp_path / "begun")
    check_place(tmp_path / "fetched")
    check_place(tmp_path / "copied")


def test_a_place_on_this_disk_may_be_a_url(tmp_path: Path) -> None:
    """`file://` and a path; of any other kind none is a directory, a named store's neither."""
    asked: dict[str, Any] = {"resume": "auto", "accept": (), "environ": {}}

    assert check_request(output=f"file://{tmp_path}/run", **asked) == tmp_path / "run"
    for elsewhere in ("cold://b/run", "hf://x", "S3://b/x"):
        with pytest.raises(UsageError, match=re.escape(f"{elsewhere} cannot be a run")):
            check_request(output=elsewhere, **asked)


@pytest.mark.parametrize("look_at", [check_place, shelf.look, identify])
def test_a_place_below_a_closed_door_is_not_allowed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, look_at: Callable[[Path], object]
) -> None:
    """In a sentence; a bare PermissionError would name neither exit code nor hint."""
    closed, real = tmp_path / "closed" / "run", os.stat

    def stat(path: Any, **options: Any) -> os.stat_result:
        if str(path) == str(closed):  # the tests' user may be root, whom no mode keeps out
            raise PermissionError(13, "Permission denied", str(path))
        return real(path, **options)

    monkeypatch.setattr(os, "stat", stat)

    with pytest.raises(NotAllowed, match="closed/run: Permission denied"):
        look_at(closed)


@pytest.mark.parametrize("begin_it", [train, preview])
@pytest.mark.parametrize("what", ["dataset", "model"])
def test_training_names_the_command_that_brings_what_is_elsewhere(
    tmp_path: Path, tokens_dir: Path, base_dir: Path, begin_it: Callable[..., object], what: str
) -> None:
    """A URL is told that it is none of a local directory, with its two slashes."""
    places: dict[str, Any] = {"dataset": tokens_dir, "model": base_dir, what: "s3://b/x"}

    with pytest.raises(UsageError, match=re.escape("s3://b/x is not on a local disk")) as caught:
        begin_it(places.pop("dataset"), output=tmp_path / "run", settings=Recipe(), **places)

    assert caught.value.hint == "Bring it here: datakit sync s3://b/x DIR"


@pytest.mark.parametrize("begin_it", [train, preview])
def test_a_training_among_ranks_makes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, begin_it: Callable[..., object]
) -> None:
    """It is refused before the data is opened, by a preview too."""
    monkeypatch.setenv("WORLD_SIZE", "2")

    with pytest.raises(UsageError, match="WORLD_SIZE is 2"):
        begin_it(tmp_path / "data", model=tmp_path / "base", output=tmp_path / "run", settings=Recipe())

    assert list(tmp_path.iterdir()) == []
