"""train/loop: law 9 of docs/design.md, killed equals uninterrupted, and how a training begins and ends."""

from __future__ import annotations

import json
import math
import os
import random
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest

import datakit
from datakit.events import Caution, Event, Note, Progress
from datakit.storage.commit import read_manifest, verify_commit
from datakit.storage.disk import exclusive
from datakit.train.metrics import read_metrics
from datakit.train.recipe import Recipe
from support.commits import flip_bit
from support.nursery import Nursery, Outcome
from support.tiny import VOCABULARY, commit_model, tiny_model, token_sample, token_samples, write_dataset

# 7 steps of 4 samples over 13: the run ends in its third epoch; dropout is on
SETTINGS: dict[str, Any] = {
    "steps": 7,
    "batch_size": 2,
    "grad_accum": 2,
    "rank": 4,
    "dropout": 0.2,
    "learning_rate": 1e-2,
    "warmup_steps": 2,
    "save_every_steps": 2,
    "keep": 2,
}


def recipe(**changes: Any) -> Recipe:
    return Recipe(**{**SETTINGS, "threads": 1, **changes})


def last_state(run: Path) -> dict[str, bytes]:
    """Every byte that a run promises: the adapter and the last checkpoint, with lineages and manifests."""
    newest = max((run / "checkpoints").glob("step-*"))
    return {
        str(path.relative_to(run)): path.read_bytes()
        for folder in (run / "adapter", newest)
        for path in sorted(folder.iterdir())
    }


def losses(run: Path) -> list[tuple[int, float]]:
    return [(row["step"], row["loss"]) for row in read_metrics(run / "metrics.jsonl")]


@pytest.fixture(scope="module")
def undisturbed(
    nursery: Nursery, tokens_dir: Path, base_dir: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, Outcome]:
    """The run that nobody disturbs."""
    run = tmp_path_factory.mktemp("undisturbed") / "run"
    outcome = nursery.train(tokens_dir, model=base_dir, output=run, settings=SETTINGS)
    assert outcome.code == 0, outcome
    return run, outcome


class Killer:
    """Kills a run and starts it again, always in a directory of the same name."""

    def __init__(self, nursery: Nursery, tokens_dir: Path, base_dir: Path, run: Path) -> None:
        self.nursery, self.tokens_dir, self.base_dir, self.run = nursery, tokens_dir, base_dir, run

    def go(self, **how: Any) -> Outcome:
        return self.nursery.train(self.tokens_dir, model=self.base_dir, output=self.run, settings=SETTINGS, **how)


@pytest.fixture
def killer(nursery: Nursery, tokens_dir: Path, base_dir: Path, tmp_path: Path) -> Killer:
    return Killer(nursery, tokens_dir, base_dir, tmp_path / "run")


def check_equal(run: Path, undisturbed: tuple[Path, Outcome], outcome: Outcome) -> None:
    assert outcome.code == 0, outcome
    assert last_state(run) == last_state(undisturbed[0])
    assert losses(run) == losses(undisturbed[0])
    assert outcome.result["order_digest"] == undisturbed[1].result["order_digest"]
    assert not [path for path in run.rglob("*") if ".tmp-" in path.name]


def test_two_undisturbed_runs_are_bitwise_equal(killer: Killer, undisturbed: tuple[Path, Outcome]) -> None:
    """Adapter, optimizer, state, lineage and manifests have the same bytes in two processes."""
    outcome = killer.go()

    check_equal(killer.run, undisturbed, outcome)
    assert outcome.result["steps"] == 7
    assert math.isfinite(outcome.result["loss"])


@pytest.mark.parametrize("part", range(10))
def test_killed_at_any_file_operation_and_started_again_is_bitwise_equal(
    killer: Killer, undisturbed: tuple[Path, Outcome], part: int
) -> None:
    """SIGKILL just before the n-th open, rename, mkdir or removal: saving, pruning, metrics, finishing."""
    at = 1 + part * undisturbed[1].operations // 10 + part % 3

    killed = killer.go(kill_at=at)
    outcome = killer.go()

    assert killed.code == -signal.SIGKILL
    check_equal(killer.run, undisturbed, outcome)


@pytest.mark.prove
def test_killed_at_every_file_operation_and_started_again_is_bitwise_equal(
    killer: Killer, undisturbed: tuple[Path, Outcome]
) -> None:
    """All of them, one after the other."""
    for at in range(1, undisturbed[1].operations + 1):
        shutil.rmtree(killer.run, ignore_errors=True)

        killed = killer.go(kill_at=at)
        outcome = killer.go()

        assert killed.code == -signal.SIGKILL
        check_equal(killer.run, undisturbed, outcome)


@pytest.mark.parametrize("seed", range(3))
def test_killed_at_random_moments_and_started_again_is_bitwise_equal(
    killer: Killer, undisturbed: tuple[Path, Outcome], seed: int
) -> None:
    """Between steps, inside a step, while loading: wherever the clock hits, twice in one run."""
    rest, seconds = random.Random(seed), undisturbed[1].result["seconds"]
    after_s = rest.uniform(0.0, 0.8 * seconds)
    killed = killer.go(kill_after_s=after_s)
    while killed.code == 0 and after_s > 1e-6:
        # this run was over before the clock hit, because the machine is less busy now: earlier, then
        shutil.rmtree(killer.run)
        after_s /= 2
        killed = killer.go(kill_after_s=after_s)
    killer.go(kill_after_s=rest.uniform(0.0, seconds))

    assert killed.code == -signal.SIGKILL, killed
    check_equal(killer.run, undisturbed, killer.go())


def test_killed_in_every_attempt_it_still_arrives(killer: Killer, undisturbed: tuple[Path, Outcome]) -> None:
    """Resumed, killed, resumed, killed: the second resume, in a later epoch, is as exact as the first."""
    # enough for one save in each attempt, so that each gets further than the one before
    at = undisturbed[1].operations * 45 // 100
    outcome = killer.go(kill_at=at)
    attempts = 1
    while outcome.code != 0 and attempts < 20:
        assert outcome.code == -signal.SIGKILL, outcome
        outcome = killer.go(kill_at=at)
        attempts += 1

    check_equal(killer.run, undisturbed, outcome)
    assert attempts >= 3
    assert outcome.result["attempt"] == attempts == len(json.loads((killer.run / "run.json").read_bytes())["attempts"])


@pytest.mark.parametrize("workers", [pytest.param(1, marks=pytest.mark.prove), 2])
def test_killed_with_workers_that_had_fetched_ahead_is_bitwise_equal(
    killer: Killer, undisturbed: tuple[Path, Outcome], workers: int
) -> None:
    """What was prefetched and not consumed is fetched again; the number of workers changes nothing."""
    more = {**SETTINGS, "num_workers": workers}
    arguments = {"model": killer.base_dir, "output": killer.run, "settings": more}

    killed = killer.nursery.train(killer.tokens_dir, **arguments, kill_at=70)
    outcome = killer.nursery.train(killer.tokens_dir, **arguments)

    assert killed.code == -signal.SIGKILL
    check_equal(killer.run, undisturbed, outcome)


@pytest.mark.parametrize(("number", "error"), [(signal.SIGTERM, "Interrupted"), (signal.SIGINT, "KeyboardInterrupt")])
def test_a_signal_saves_at_the_next_step_and_the_same_command_continues(
    killer: Killer, undisturbed: tuple[Path, Outcome], number: int, error: str
) -> None:
    """A reclaimed machine loses no step: the state of the step under way is committed before the process ends."""
    stopped = killer.go(signal_at_step=(int(number), 3))
    saved = sorted(path.name for path in (killer.run / "checkpoints").glob("step-*"))
    outcome = killer.go()

    assert stopped.error.startswith(error)
    assert saved == ["step-00000002", "step-00000003"]
    assert outcome.result["resumed_from"] == "step-00000003 (local)"
    check_equal(killer.run, undisturbed, outcome)


def test_it_says_from_where_it_goes_on(killer: Killer) -> None:
    """The position is said at every resume: step, checkpoint, epoch and sample."""
    killer.go(signal_at_step=(int(signal.SIGTERM), 4))

    outcome = killer.go()

    expected = "resuming after step 4 from step-00000004 (local, verified): epoch 1, sample 4 of 13"
    assert expected in outcome.messages


def test_a_damaged_checkpoint_is_set_aside_and_the_one_before_is_used(
    killer: Killer, undisturbed: tuple[Path, Outcome]
) -> None:
    """A flipped bit in the newest checkpoint costs some steps, never the result."""
    killer.go(signal_at_step=(int(signal.SIGTERM), 5))
    victim = killer.run / "checkpoints" / "step-00000005" / "optimizer.safetensors"
    data = bytearray(victim.read_bytes())
    data[-1] ^= 1
    victim.write_bytes(data)

    outcome = killer.go()

    said = [message for message in outcome.messages if "set aside" in message]
    assert "step-00000005 is not valid and is set aside as damaged-step-00000005" in said[0]
    assert "optimizer.safetensors" in said[0]
    assert outcome.result["resumed_from"] == "step-00000004 (local)"
    check_equal(killer.run, undisturbed, outcome)


def test_metrics_have_each_step_once_after_a_resume(killer: Killer) -> None:
    """Lines behind the resumed step are cut, also a line that the kill left incomplete."""
    killer.go(signal_at_step=(int(signal.SIGTERM), 4))
    with (killer.run / "metrics.jsonl").open("a") as file:
        file.write('{"step": 5, "attempt": 1, "loss": 1.0}\n{"step": 6, "att')

    killer.go()

    rows = read_metrics(killer.run / "metrics.jsonl")
    assert [row["step"] for row in rows] == list(range(1, 8))
    assert [row["attempt"] for row in rows] == [1, 1, 1, 1, 2, 2, 2]
    assert set(rows[0]) == {
        "step", "attempt", "epoch", "loss", "learning_rate", "grad_norm", "samples", "tokens", "supervised_tokens",
        "step_s", "data_wait_s", "save_stall_s", "tokens_per_s",
    }  # fmt: skip
    assert [row["epoch"] for row in rows] == [0, 0, 0, 1, 1, 1, 2]


def test_a_finished_run_started_again_does_nothing(killer: Killer, undisturbed: tuple[Path, Outcome]) -> None:
    """It verifies what is there and says so; no step is taken."""
    killer.go()

    again = killer.go()

    assert again.code == 0
    assert again.result["tokens_per_s"] == 0
    assert any("is finished: 7 of 7 steps" in message for message in again.messages)
    check_equal(killer.run, undisturbed, again)


def test_a_lost_adapter_of_a_finished_run_is_made_from_the_last_checkpoint(
    killer: Killer, undisturbed: tuple[Path, Outcome]
) -> None:
    """DVC removes outs before a stage; the adapter comes back without a training step."""
    killer.go()
    shutil.rmtree(killer.run / "adapter")

    again = killer.go()

    check_equal(killer.run, undisturbed, again)
    assert again.result["resumed_from"] == "step-00000007 (local)"


def test_of_a_finished_run_the_base_model_is_not_read(tokens_dir: Path, base_dir: Path, tmp_path: Path) -> None:
    """It would not be loaded; but where the last checkpoint turns out to be damaged, it is read before it is."""
    base, run = commit_model(base_dir, tmp_path / "base"), tmp_path / "run"
    done = run_here(tokens_dir, base, run)
    flip_bit(base / "model.safetensors", 1000)

    again = run_here(tokens_dir, base, run)

    assert (done.steps, again.steps, again.tokens_per_s) == (7, 7, 0)
    flip_bit(run / "checkpoints" / "step-00000007" / "adapter_model.safetensors", 1000)
    with pytest.raises(datakit.IntegrityError, match=r"base model: .*model\.safetensors"):
        run_here(tokens_dir, base, run)


def run_here(tokens_dir: Path, base_dir: Path, run: Path, events: list[Event] | None = None, **options: Any) -> Any:
    options.setdefault("settings", recipe())
    heard: list[Event] = [] if events is None else events
    return datakit.train(tokens_dir, model=base_dir, output=run, on_event=heard.append, **options)


def test_the_result_and_the_events_tell_what_happened(tokens_dir: Path, base_dir: Path, tmp_path: Path) -> None:
    """Totals add up from the metrics; progress counts the steps; the tail that is left out is said."""
    events: list[Event] = []

    result = run_here(tokens_dir, base_dir, tmp_path / "run", events)

    rows = read_metrics(tmp_path / "run" / "metrics.jsonl")
    assert result.tokens == sum(row["tokens"] for row in rows)
    assert result.supervised_tokens == sum(row["supervised_tokens"] for row in rows)
    assert result.samples == 28
    assert result.loss == rows[-1]["loss"]
    assert 0 <= result.data_wait_share <= 1
    assert [saved.name for saved in result.checkpoints] == [f"step-{step:08d}" for step in (2, 4, 6, 7)]
    assert [saved.local for saved in result.checkpoints] == [False, False, True, True]
    assert [event.done for event in events if isinstance(event, Progress)] == list(range(1, 8))
    assert any("leaves out 1 of 13 samples" in event.message for event in events if isinstance(event, Note))
    assert not [event for event in events if isinstance(event, Caution)]
    assert verify_commit(result.adapter).kind == "adapter"


def test_the_lineage_of_the_adapter_names_data_model_and_settings(
    tokens_dir: Path, base_dir: Path, tmp_path: Path
) -> None:
    """Digests, consumed totals and versions; no host, no time."""
    run_here(tokens_dir, base_dir, tmp_path / "run")

    lineage = json.loads((tmp_path / "run" / "adapter" / "lineage.json").read_bytes())
    manifest = read_manifest(tokens_dir)
    assert lineage["data"]["layout_digest"] == manifest.contents.layout_digest
    assert lineage["data"]["manifest_digest"] == manifest.digest
    assert lineage["base_model"]["name"] == "base"
    assert lineage["settings_digest"] == recipe().digest()
    assert lineage["consumed"]["steps"] == 7
    assert lineage["versions"]["datakit"] == datakit.__version__
    assert lineage["overrides"] == []


def test_training_lowers_the_loss(tokens_dir: Path, base_dir: Path, tmp_path: Path) -> None:
    """On data that can be learned, forty steps at a high rate bring the loss down by a tenth."""
    changes = {"steps": 40, "learning_rate": 0.05, "rank": 16, "dropout": 0.0, "save_every_steps": 40}
    settings = recipe(**changes, targets=("q_proj", "k_proj", "v_proj", "o_proj", "up_proj", "down_proj"))

    run_here(tokens_dir, base_dir, tmp_path / "run", settings=settings)

    curve = [loss for _, loss in losses(tmp_path / "run")]
    assert sum(curve[-5:]) < 0.9 * sum(curve[:5])


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("data", ("tokens (13 samples, layout", "other (13 samples, layout")),
        ("model", ("base (", "base2 (")),
        ("settings", ("learning_rate 0.01", "learning_rate 0.02")),
    ],
)
def test_a_state_written_for_something_else_is_refused_with_both_values(
    tokens_dir: Path, base_dir: Path, tmp_path: Path, what: str, words: tuple[str, str]
) -> None:
    """Other data, another base model, other settings: refused by default, overridden by name, recorded for ever."""
    run_here(tokens_dir, base_dir, tmp_path / "run", settings=recipe(steps=7))
    shutil.rmtree(tmp_path / "run" / "adapter")
    shutil.rmtree(tmp_path / "run" / "checkpoints" / "step-00000007")
    data, model, settings = tokens_dir, base_dir, recipe()
    if what == "data":
        data = tmp_path / "other"
        write_dataset(data, token_samples(13, seed=5))
    elif what == "model":
        model = tiny_model(tmp_path / "base2", seed=5)
    else:
        settings = recipe(learning_rate=0.02)

    with pytest.raises(datakit.Refused) as refusal:
        run_here(data, model, tmp_path / "run", settings=settings)
    events: list[Event] = []
    result = run_here(data, model, tmp_path / "run", events, settings=settings, accept=[what])

    assert all(word in refusal.value.message for word in words)
    assert f"--accept {what}" in str(refusal.value.hint)
    assert any(words[0] in event.message for event in events if isinstance(event, Caution))
    override = json.loads((result.adapter / "lineage.json").read_bytes())["overrides"][0]
    assert override["what"] == what
    assert override["step"] == 6
    assert words[0] in override["from"]
    assert words[1] in override["to"]


def test_a_state_past_the_end_is_refused(tokens_dir: Path, base_dir: Path, tmp_path: Path) -> None:
    """Fewer steps than are done is no training; it does not end in silent success."""
    run_here(tokens_dir, base_dir, tmp_path / "run")

    with pytest.raises(datakit.Refused, match=r"past the end: train\.steps is 5"):
        run_here(tokens_dir, base_dir, tmp_path / "run", settings=recipe(steps=5), accept=["settings"])


def test_other_threads_are_said_and_not_refused(tokens_dir: Path, base_dir: Path, tmp_path: Path) -> None:
    """They change the last bits only; without a setting a resumed run keeps the number it began with."""
    run_here(tokens_dir, base_dir, tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "checkpoints" / "step-00000007")
    shutil.copytree(tmp_path / "run", tmp_path / "kept")
    events: list[Event] = []
    kept: list[Event] = []

    run_here(tokens_dir, base_dir, tmp_path / "run", events, settings=recipe(threads=2))
    run_here(tokens_dir, base_dir, tmp_path / "kept", kept, settings=recipe(threads=None))

    cautions = [event.message for event in events if isinstance(event, Caution)]
    assert cautions == ["threads was 1, now 2: the run goes on, and will not be bitwise equal to an undisturbed one"]
    assert not [event for event in kept if isinstance(event, Caution)]


def test_an_adapter_of_a_shorter_training_is_kept_aside(tokens_dir: Path, base_dir: Path, tmp_path: Path) -> None:
    """Training on replaces the adapter only when the new one is finished, and keeps the old one under another name."""
    short = run_here(tokens_dir, base_dir, tmp_path / "run", settings=recipe(steps=4, schedule="constant"))
    before = (short.adapter / "adapter_model.safetensors").read_bytes()
    longer = {"settings": recipe(steps=6, schedule="constant"), "accept": ["settings"]}

    result = run_here(tokens_dir, base_dir, tmp_path / "run", **longer)

    assert result.resumed_from == "step-00000004 (local)"
    assert (result.adapter / "adapter_model.safetensors").read_bytes() != before
    assert (tmp_path / "run" / "previous-adapter" / "adapter_model.safetensors").read_bytes() == before


def test_resume_never_needs_an_empty_run_directory(tokens_dir: Path, base_dir: Path, tmp_path: Path) -> None:
    """Starting anew over a run that is there would mix two histories."""
    run_here(tokens_dir, base_dir, tmp_path / "run", resume="never")

    with pytest.raises(datakit.Refused, match="holds a run already"):
        run_here(tokens_dir, base_dir, tmp_path / "run", resume="never")


@pytest.mark.parametrize("options", [{"resume": "maybe"}, {"accept": ["everything"]}])
def test_words_that_are_no_option_are_refused(
    tokens_dir: Path, base_dir: Path, tmp_path: Path, options: dict[str, Any]
) -> None:
    """The message lists the words there are."""
    with pytest.raises(datakit.UsageError, match="is not one of"):
        run_here(tokens_dir, base_dir, tmp_path / "run", **options)


def test_two_trainings_in_one_directory_are_refused(tokens_dir: Path, base_dir: Path, tmp_path: Path) -> None:
    """The second one ends at once and names the process that holds the run."""
    run = tmp_path / "run"
    with (
        exclusive(run / ".lock", purpose=f"training in {run}"),
        pytest.raises(datakit.Refused, match="already training"),
    ):
        run_here(tokens_dir, base_dir, run)


def test_a_loss_that_is_not_finite_ends_the_run_and_is_not_saved(
    tokens_dir: Path, base_dir: Path, tmp_path: Path
) -> None:
    """The step, the samples and the last good state are named; the newest checkpoint is the one before."""
    settings = recipe(learning_rate=1e30, max_grad_norm=None, warmup_steps=4, save_every_steps=1)

    with pytest.raises(datakit.DatakitError, match=r"of step \d is (nan|inf).*t000"):
        run_here(tokens_dir, base_dir, tmp_path / "run", settings=settings)

    good = max((tmp_path / "run" / "checkpoints").glob("step-*"))
    assert verify_commit(good).about["step"] == len(losses(tmp_path / "run"))
    assert all(math.isfinite(loss) for _, loss in losses(tmp_path / "run"))
    assert not (tmp_path / "run" / "adapter").exists()


def test_a_step_without_a_supervised_token_is_named(base_dir: Path, tmp_path: Path) -> None:
    """A mean over no token is no number; the samples are named."""
    write_dataset(tmp_path / "silent", [token_sample(f"quiet{n}", [3, 4, 5], [0, 0, 0]) for n in range(4)])

    with pytest.raises(datakit.InputError, match=r"no token of step 1 is supervised: quiet\d"):
        run_here(tmp_path / "silent", base_dir, tmp_path / "run")


def test_a_rehearsal_leaves_the_run_alone_and_always_starts_anew(
    tokens_dir: Path, base_dir: Path, tmp_path: Path
) -> None:
    """`--smoke` takes three steps into a directory of its own, the second time as the first."""
    results = [run_here(tokens_dir, base_dir, tmp_path / "run", smoke=True) for _ in range(2)]

    assert [result.steps for result in results] == [3, 3]
    assert [result.attempt for result in results] == [1, 1]
    assert results[0].run == tmp_path / "run-smoke"
    assert not (tmp_path / "run").exists()


def test_a_rehearsal_never_removes_what_is_not_one(tokens_dir: Path, base_dir: Path, tmp_path: Path) -> None:
    """A directory in its way is refused."""
    (tmp_path / "run-smoke").mkdir()
    (tmp_path / "run-smoke" / "thesis.tex").write_text("years")

    with pytest.raises(datakit.Refused, match="in the way of a rehearsal"):
        run_here(tokens_dir, base_dir, tmp_path / "run", smoke=True)

    assert (tmp_path / "run-smoke" / "thesis.tex").read_text() == "years"


def test_what_cannot_be_trained_is_refused_in_a_sentence(tokens_dir: Path, base_dir: Path, tmp_path: Path) -> None:
    """No model, an untokenized dataset, a target that no layer has."""
    write_dataset(tmp_path / "raw", [*token_samples(1), *[datakit_sample(n) for n in range(8)]])

    with pytest.raises(datakit.NotFound, match="no base model"):
        run_here(tokens_dir, tmp_path / "nowhere", tmp_path / "a")
    with pytest.raises(datakit.InputError, match=r"has no config\.json"):
        run_here(tokens_dir, tmp_path, tmp_path / "b")
    with pytest.raises(datakit.InputError, match=r"has no part ids\.npy.*datakit tokenize"):
        run_here(tmp_path / "raw", base_dir, tmp_path / "c")
    with pytest.raises(datakit.UsageError, match=r"train\.targets nothing_proj"):
        run_here(tokens_dir, base_dir, tmp_path / "d", settings=recipe(targets=("nothing_proj",)))


def datakit_sample(number: int) -> Any:
    from datakit.data.shard import Sample

    return Sample(f"raw{number}", {"json": b"{}"})


def test_tokens_beyond_the_vocabulary_end_in_an_error(base_dir: Path, tmp_path: Path) -> None:
    """A dataset tokenized for another model is not trained on in silence."""
    write_dataset(tmp_path / "foreign", [token_sample(f"x{n}", [1, VOCABULARY + 5, 2], [0, 1, 1]) for n in range(4)])

    with pytest.raises(datakit.InputError, match="vocabulary"):
        run_here(tmp_path / "foreign", base_dir, tmp_path / "run")


def test_versions_of_today_do_not_unmake_a_finished_adapter(
    tokens_dir: Path, base_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was made by those that took its steps: started again, and made again of its checkpoint, it has its bytes."""
    run = tmp_path / "run"
    first = run_here(tokens_dir, base_dir, run)
    before = last_state(run)
    monkeypatch.setattr("datakit.train.loop.library_versions", lambda: {"python": "9.9", "torch": "9.9"})

    again = run_here(tokens_dir, base_dir, run)
    untouched = last_state(run)
    shutil.rmtree(run / "adapter")
    run_here(tokens_dir, base_dir, run)

    assert again.loss is None
    assert (
        (again.loss_first, again.loss_last)
        == (first.loss_first, first.loss_last)
        == (
            losses(run)[0][1],
            losses(run)[-1][1],
        )
    )
    assert untouched == before == last_state(run)
    assert not list(run.glob("previous-*"))


def test_what_changed_under_way_stands_in_the_lineage(tokens_dir: Path, base_dir: Path, tmp_path: Path) -> None:
    """Threads, device or versions that moved the last bits, with the step after which; nothing where none did."""
    run = tmp_path / "run"
    first = json.loads((run_here(tokens_dir, base_dir, run).adapter / "lineage.json").read_bytes())
    for path in (run / "adapter", run / "checkpoints" / "step-00000007"):
        shutil.rmtree(path)

    result = run_here(tokens_dir, base_dir, run, settings=recipe(threads=2))

    lineage = json.loads((result.adapter / "lineage.json").read_bytes())
    assert "changes" not in first
    assert lineage["changes"] == [{"what": "threads", "from": 1, "to": 2, "step": 6}]


def test_no_adapter_that_was_here_is_ever_deleted(tokens_dir: Path, base_dir: Path, tmp_path: Path) -> None:
    """Trained on twice, both earlier ones are kept, each under a name of its own."""
    for steps in (2, 3, 4):
        settings = recipe(steps=steps, schedule="constant")
        run_here(tokens_dir, base_dir, tmp_path / "run", settings=settings, accept=["settings"])

    kept = {path.name: verify_commit(path).about["step"] for path in (tmp_path / "run").glob("*adapter*")}
    assert kept == {"adapter": 4, "previous-adapter": 2, "previous-adapter-2": 3}


@pytest.mark.parametrize("what", ["rank", "targets", "model"])
def test_what_makes_another_adapter_is_refused_also_when_accepted(
    tokens_dir: Path, base_dir: Path, tmp_path: Path, what: str
) -> None:
    """Nothing is damaged, so it is no integrity error; the checkpoint stays."""
    run_here(tokens_dir, base_dir, tmp_path / "run", settings=recipe(steps=2))
    changes: dict[str, Any] = {"rank": {"rank": 2}, "targets": {"targets": ("o_proj",)}, "model": {}}[what]
    model = base_dir
    if what == "model":
        model = shutil.copytree(base_dir, tmp_path / "base2")
        config = json.loads((model / "config.json").read_bytes())
        (model / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 1}))

    with pytest.raises(datakit.Refused, match="adapter"):
        run_here(tokens_dir, model, tmp_path / "run", settings=recipe(steps=4, **changes), accept=["settings", "model"])

    assert verify_commit(tmp_path / "run" / "checkpoints" / "step-00000002")


@pytest.mark.parametrize("wrong", ["absent", "raw", "few", "model", "word", "url"])
def test_what_is_wrong_from_the_start_leaves_no_run(
    tokens_dir: Path, base_dir: Path, tmp_path: Path, wrong: str
) -> None:
    """A mistyped name is no run: the directory is made when there is something to train."""
    write_dataset(tmp_path / "raw", [datakit_sample(n) for n in range(8)])
    write_dataset(tmp_path / "few", token_samples(2))
    data = {name: tmp_path / name for name in ("absent", "raw", "few")}.get(wrong, tokens_dir)
    options: dict[str, Any] = {"word": {"resume": "maybe"}, "url": {"write_back": "nosuch://x"}}.get(wrong, {})

    with pytest.raises((datakit.InputError, datakit.UsageError)):
        run_here(data, tmp_path / "no" if wrong == "model" else base_dir, tmp_path / "run", **options)

    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("there", [False, True])
def test_what_fails_before_the_first_step_leaves_no_run(
    tokens_dir: Path, base_dir: Path, tmp_path: Path, there: bool
) -> None:
    """A model that cannot be loaded makes no run, nor a queue for one; a directory that was there stays."""
    model, run = Path(shutil.copytree(base_dir, tmp_path / "model")), tmp_path / "run"
    for file in model.glob("*.safetensors"):
        file.write_bytes(b"x")
    (model / "manifest.json").unlink(missing_ok=True)
    if there:
        run.mkdir()

    with pytest.raises(datakit.InputError, match="cannot be loaded"):
        run_here(tokens_dir, model, run, write_back=str(tmp_path / "cold"))

    assert run.exists() == there


def test_a_rehearsal_that_was_killed_while_it_was_cleared_is_cleared_again(
    killer: Killer, tokens_dir: Path, base_dir: Path
) -> None:
    """What says that it is one goes last; a temporary file says nothing."""
    killer.go(smoke=True)
    smoke = killer.run.with_name("run-smoke")
    (smoke / ".run.json.tmp-0123abcd").write_bytes(b"{")

    for at in range(1, 16):
        killer.nursery.train(tokens_dir, model=base_dir, output=killer.run, settings=SETTINGS, smoke=True, kill_at=at)

    assert run_here(tokens_dir, base_dir, killer.run, smoke=True).steps == 3


def test_a_signal_before_the_first_step_ends_the_run_at_once(
    tokens_dir: Path, base_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the model is loaded there is nothing to save and nobody reads a flag."""
    import datakit.train.loop as loop

    def slow(*_: Any, **__: Any) -> Any:
        os.kill(os.getpid(), signal.SIGTERM)
        raise AssertionError("the signal was not heard")

    monkeypatch.setattr(loop, "load_base", slow)

    with pytest.raises(datakit.Interrupted, match="before the first step"):
        run_here(tokens_dir, base_dir, tmp_path / "run")
