"""train/upload and the command: written back while it trains, resumed on a fresh machine, trouble never in the way."""

from __future__ import annotations

import dataclasses
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from datakit import NotFound, Refused, StoreUnavailable
from datakit.events import Caution, Event, Note
from datakit.storage.access import StoreOptions
from datakit.storage.commit import verify_commit
from datakit.storage.copies import write_state
from datakit.storage.sync import sync
from datakit.storage.writeback import Failed, Published, WriteBack
from datakit.train import upload as upload_room
from datakit.train.loop import train
from datakit.train.recipe import Recipe
from datakit.train.result import TrainResult
from datakit.train.shelf import QUEUE_NAME, copy_name
from datakit.train.signals import StopRequest
from datakit.train.upload import Upload
from support.cli import Answer, datakit, datakit_process, environment, start
from support.commits import make_commit
from support.faulty import Fault, FaultyServer, faulty_server
from support.nursery import Nursery
from support.s3server import S3Server

FLAGS = ("--steps", 6, "--batch-size", 4, "--learning-rate", 0.01, "--rank", 4)
PARAMS = "train: {save_every_steps: 2, warmup_steps: 2, dropout: 0.2, keep: 2, threads: 1}\n"
RECIPE = Recipe(
    steps=6,
    batch_size=4,
    learning_rate=0.01,
    rank=4,
    save_every_steps=2,
    warmup_steps=2,
    dropout=0.2,
    keep=2,
    threads=1,
)
NOBODY = "http://127.0.0.1:9"  # the discard port: nobody listens there


@pytest.fixture(autouse=True)
def params(clean_room: Path) -> None:
    (clean_room / "params.yaml").write_text(PARAMS)


def command(tokens_dir: Path, base_dir: Path, run: Path, *more: Any) -> tuple[Any, ...]:
    return ("train", tokens_dir, "--model", base_dir, "--output", run, *FLAGS, *more)


def here(tokens_dir: Path, base_dir: Path, run: Path, events: list[Event] | None = None, **options: Any) -> TrainResult:
    heard: list[Event] = [] if events is None else events
    return train(tokens_dir, model=base_dir, output=run, settings=RECIPE, on_event=heard.append, **options)


def bytes_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def bytes_below(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def cautions(events: list[Event]) -> list[str]:
    return [event.message for event in events if isinstance(event, Caution)]


def test_everything_is_verified_at_the_destination(
    tokens_dir: Path, base_dir: Path, tmp_path: Path, bucket: str
) -> None:
    """Checkpoints and adapter come back from S3 with the bytes that were committed."""
    result = here(tokens_dir, base_dir, tmp_path / "run", write_back=f"{bucket}/runs/run")
    assert result.adapter_copy is not None
    sync(result.adapter_copy, tmp_path / "fetched")

    assert result.write_back == f"{bucket}/runs/run"
    assert result.unpublished == {}
    assert [(saved.name, saved.remote) for saved in result.checkpoints] == [
        (f"step-{step:08d}", "verified") for step in (2, 4, 6)
    ]
    assert bytes_of(tmp_path / "fetched") == bytes_of(result.adapter)


class Repeating(WriteBack):
    """A write-back whose agent had a commit under way when it was offered again, and so tells of it twice."""

    def poll(self) -> list[Published | Failed]:
        return [each for each in super().poll() for _ in range(2)]


def test_what_is_offered_again_while_it_is_under_way_is_told_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last checkpoint is, at the end of a training; that its copy is there is news once."""
    monkeypatch.setattr(upload_room, "WriteBack", Repeating)
    step = tmp_path / "run" / "checkpoints" / "step-00000006"
    make_commit(step, {"state.json": b"{}"}, kind="checkpoint")
    events: list[Event] = []

    with Upload(str(tmp_path / "cold"), run=tmp_path / "run", stores=None, on_event=events.append) as upload:
        upload.start()
        upload.offer(step)
        missing = upload.finish(StopRequest())

    assert missing == {}
    assert events == [Note(f"{step.name} is verified at {tmp_path / 'cold' / step.name}")]


def test_a_fresh_machine_goes_on_from_the_destination(
    nursery: Nursery, tokens_dir: Path, base_dir: Path, tmp_path: Path, s3: S3Server, bucket: str
) -> None:
    """The first machine is lost with its disk; the second ends with the bytes of an undisturbed run."""
    alone = here(tokens_dir, base_dir, tmp_path / "alone" / "run")
    first, second = tmp_path / "first" / "run", tmp_path / "second" / "run"
    settings = {name: value for name, value in RECIPE.to_json().items() if name != "threads"}

    lost = nursery.train(
        tokens_dir,
        model=base_dir,
        output=first,
        settings=settings,
        signal_at_step=(int(signal.SIGTERM), 4),
        write_back=f"{bucket}/run",
        env=s3.env,
    )
    shutil.rmtree(first)
    events: list[Event] = []
    result = here(tokens_dir, base_dir, second, events, write_back=f"{bucket}/run")

    assert lost.error.startswith("Interrupted")
    assert result.resumed_from == f"step-00000004 ({bucket}/run)"
    assert bytes_of(result.adapter) == bytes_of(alone.adapter)
    assert cautions(events) == []


def test_a_damaged_checkpoint_at_the_destination_is_passed_over(
    tokens_dir: Path, base_dir: Path, tmp_path: Path
) -> None:
    """A shared directory serves too; the checkpoint before the damaged one is used, and the damage is said."""
    cold = tmp_path / "cold"
    first = here(tokens_dir, base_dir, tmp_path / "first" / "run", write_back=str(cold))
    victim = cold / "step-00000006" / "optimizer.safetensors"
    data = bytearray(victim.read_bytes())
    data[-1] ^= 1
    victim.write_bytes(data)
    events: list[Event] = []

    result = here(tokens_dir, base_dir, tmp_path / "second" / "run", events, write_back=str(cold))

    assert first.unpublished == {}
    assert result.resumed_from == f"step-00000004 ({cold})"
    assert any("step-00000006 is not valid and is passed over" in message for message in cautions(events))


def test_a_destination_that_goes_away_does_not_stop_training(
    tokens_dir: Path, base_dir: Path, tmp_path: Path, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The adapter is finished, the trouble is said and stands in the result; the next start uploads and no more."""
    here(tokens_dir, base_dir, tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "adapter")
    shutil.rmtree(tmp_path / "run" / "checkpoints" / "step-00000006")
    events: list[Event] = []

    with monkeypatch.context() as unreachable:
        unreachable.setenv("AWS_ENDPOINT_URL", NOBODY)
        cut = here(tokens_dir, base_dir, tmp_path / "run", events, write_back=f"{bucket}/run")
    again = here(tokens_dir, base_dir, tmp_path / "run", write_back=f"{bucket}/run")

    assert cut.steps == 6
    assert verify_commit(cut.adapter)
    assert set(cut.unpublished) == {"step-00000006", "adapter"}
    assert any("cannot be asked for a newer checkpoint" in message for message in cautions(events))
    assert any("adapter is not at" in message for message in cautions(events))
    assert again.unpublished == {}
    assert again.loss is None


def test_a_destination_that_cannot_be_asked_is_refused_before_the_first_step(
    tokens_dir: Path, base_dir: Path, tmp_path: Path, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With nothing here, a state there may exist: an unreachable store, or a bucket that is not there, ends it."""
    with pytest.raises(NotFound, match="no-such-bucket"):
        here(tokens_dir, base_dir, tmp_path / "a", write_back="s3://no-such-bucket/run")
    monkeypatch.setenv("AWS_ENDPOINT_URL", NOBODY)
    with pytest.raises(StoreUnavailable):
        here(tokens_dir, base_dir, tmp_path / "b", write_back=f"{bucket}/run")

    assert not list(tmp_path.rglob("step-*"))


def test_a_named_store_of_the_settings_is_where_it_goes(
    tokens_dir: Path, base_dir: Path, tmp_path: Path, server: S3Server, clean_room: Path
) -> None:
    """Its options reach the agent, although this process's environment knows nothing of them."""
    url = server.make_bucket("named-store")
    options = StoreOptions(
        url=f"{url}/team", endpoint_url=server.endpoint, region="us-east-1", access_key_id="a", secret_access_key="b"
    )

    result = here(tokens_dir, base_dir, tmp_path / "run", write_back="cold://runs/a", stores={"cold": options})

    assert result.write_back == f"{url}/team/runs/a"
    assert result.unpublished == {}
    assert result.adapter_copy is not None
    assert result.adapter_copy.startswith(f"{url}/team/runs/a/adapter-00000006-")
    assert f"{result.adapter_copy.removeprefix(url).lstrip('/')}/manifest.json" in server.keys("named-store")


def test_the_trainer_loads_no_object_store_client(
    tokens_dir: Path, base_dir: Path, tmp_path: Path, bucket: str
) -> None:
    """Obstore hangs in forked children: it lives in the agent, which is started by exec."""
    code = (
        "import sys; from datakit.cli.main import main; code = main(sys.argv[1:]);"
        "print(code, sorted({'obstore', 'fsspec.asyn', 's3fs'} & set(sys.modules)))"
    )
    words = command(tokens_dir, base_dir, tmp_path / "run", "--write-back", f"{bucket}/run")

    out = subprocess.run(
        [sys.executable, "-c", code, *map(str, words)], capture_output=True, text=True, env=environment(), check=False
    )

    assert out.stdout.splitlines()[-1] == "0 []", out.stderr


def test_the_command_kills_resumes_and_tells(tokens_dir: Path, base_dir: Path, tmp_path: Path, bucket: str) -> None:
    """`datakit train` killed by -9, run again: from where it went on is said, and the JSON result says the rest."""
    run = tmp_path / "killed" / "run"
    alone = here(tokens_dir, base_dir, tmp_path / "alone" / "run")
    words = command(tokens_dir, base_dir, run, "--write-back", f"{bucket}/run", "--json")
    process = start(*words)
    while process.poll() is None and not any((run / "checkpoints").glob("step-*")):
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()

    told = datakit_process(*words)

    assert told.code == 0, told.stderr
    result = told.json["result"]
    assert result["resumed_from"] is not None
    assert "resuming after step" in told.stderr
    assert result["steps"] == 6
    assert result["unpublished"] == {}
    assert bytes_of(run / "adapter") == bytes_of(alone.adapter)


def test_sigterm_ends_the_command_with_75_and_ctrl_c_with_130(tokens_dir: Path, base_dir: Path, tmp_path: Path) -> None:
    """Both save first; no stack trace; the same command continues."""
    numbers = {75: signal.SIGTERM, 130: signal.SIGINT}
    words = {code: command(tokens_dir, base_dir, tmp_path / str(code)) for code in numbers}
    # both at once: most of their time is Python's, importing torch
    processes = {code: start(*(10_000 if word == 6 else word for word in words[code])) for code in numbers}
    for code, process in processes.items():
        run = tmp_path / str(code)
        while process.poll() is None and not any((run / "checkpoints").glob("step-*")):
            time.sleep(0.02)
        process.send_signal(numbers[code])
    for code, process in processes.items():
        _, said = process.communicate(timeout=60)

        assert process.returncode == code, said
        assert "Traceback" not in said
        assert "the same command continues" in said
        saved = max((tmp_path / str(code) / "checkpoints").glob("step-*"))
        rows = (tmp_path / str(code) / "metrics.jsonl").read_text().splitlines()
        assert json.loads(rows[-1])["step"] == int(saved.name.removeprefix("step-"))


def test_missing_copies_end_the_command_with_7(
    tokens_dir: Path, base_dir: Path, tmp_path: Path, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The adapter is finished and its path is told, but a script sees that it is not safe yet."""
    here(tokens_dir, base_dir, tmp_path / "run")
    monkeypatch.setenv("AWS_ENDPOINT_URL", NOBODY)

    told = datakit(*command(tokens_dir, base_dir, tmp_path / "run", "--write-back", f"{bucket}/run", "--json"))

    assert told.code == 7
    assert told.json["result"]["adapter"] == str(tmp_path / "run" / "adapter")
    assert "run the same command again" in told.json["error"]["hint"].lower()


def test_copies_that_may_not_be_written_end_the_command_with_6(
    tokens_dir: Path, base_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Credentials that may read and not write: the adapter is finished, and a person has to do something."""
    here(tokens_dir, base_dir, tmp_path / "run")
    with faulty_server() as store:
        store.faults = [Fault("denied", method="PUT", times=10_000)]
        for name, value in store.env.items():
            monkeypatch.setenv(name, value)

        told = datakit(*command(tokens_dir, base_dir, tmp_path / "run", "--write-back", f"{store.url}/run", "--json"))

    assert told.code == 6
    assert "the adapter is finished, but" in told.json["error"]["message"]
    assert "it only uploads" in told.json["error"]["hint"]
    assert "unpublished_kinds" not in told.json["result"]


def test_an_older_checkpoint_that_nobody_will_ask_for_is_no_trouble_at_the_end(
    tokens_dir: Path, base_dir: Path, tmp_path: Path, faulty: FaultyServer
) -> None:
    """What a lost machine left of step 4 is in its way; it is said when it happens, and step 6 has a verified copy."""
    faulty.put("runs/step-00000004/state.json", b"of another machine")
    events: list[Event] = []

    result = here(tokens_dir, base_dir, tmp_path / "run", events, write_back=f"{faulty.url}/runs")

    second, fourth, sixth = (str(saved.remote) for saved in result.checkpoints)
    assert (second, sixth) == ("verified", "verified")
    assert "step-00000004 holds no commit, but what another upload has left" in fourth
    assert any(fourth in said for said in cautions(events))
    assert result.unpublished == {}
    assert faulty.objects["runs/step-00000004/state.json"][0] == b"of another machine"


def test_a_copy_that_is_refused_ends_the_command_with_3(tokens_dir: Path, base_dir: Path, tmp_path: Path) -> None:
    """Something else stands where the adapter's copy would go: waiting does not mend that."""
    run, cold = tmp_path / "run", tmp_path / "cold"
    here(tokens_dir, base_dir, run)
    make_commit(cold / copy_name(run / "adapter"), {"a.tar": b"mine"}, kind="dataset")

    told = datakit(*command(tokens_dir, base_dir, run, "--write-back", cold))

    assert told.code == 3
    assert "holds the dataset adapter-" in told.stderr
    assert "Mend that first" in told.stderr


SLOW_TORCH = """
import sys, time
print("loading", flush=True)
try:
    time.sleep(60)
except {caught}:
    raise ImportError("half of torch is not there")
"""


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 75), (signal.SIGHUP, 75), (signal.SIGINT, 130)])
@pytest.mark.parametrize("caught", ["ZeroDivisionError", "Exception"])
def test_a_signal_while_libraries_load_ends_as_it_does_later(
    tokens_dir: Path, base_dir: Path, tmp_path: Path, number: signal.Signals, code: int, caught: str
) -> None:
    """Python takes seconds to import torch; a library that catches what the signal raised changes nothing."""
    (tmp_path / "slow").mkdir()
    (tmp_path / "slow" / "torch.py").write_text(SLOW_TORCH.format(caught=caught))
    path = os.pathsep.join([str(tmp_path / "slow"), environment()["PYTHONPATH"]])
    process = start(*command(tokens_dir, base_dir, tmp_path / "run"), env={"PYTHONPATH": path})
    assert process.stdout is not None
    assert process.stdout.readline() == "loading\n"

    process.send_signal(number)
    _, said = process.communicate(timeout=30)

    assert process.returncode == code, said
    assert "Traceback" not in said
    assert not (tmp_path / "run").exists()


def test_an_error_after_the_steps_is_told_as_it_is(
    tokens_dir: Path, base_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A first SIGTERM while the run leaves cuts nothing short that could be gone on with."""

    def fail(_self: Upload, _stop: StopRequest) -> dict[str, str]:
        raise ZeroDivisionError("the true reason")

    def leave(*_: object) -> None:
        os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(Upload, "finish", fail)
    monkeypatch.setattr(Upload, "__exit__", leave)
    with pytest.raises(ZeroDivisionError, match="the true reason"):
        here(tokens_dir, base_dir, tmp_path / "run")


def test_a_rehearsal_says_that_it_is_not_written_back(tokens_dir: Path, base_dir: Path, tmp_path: Path) -> None:
    """`--smoke --write-back URL` uploads nothing, and not silently."""
    events: list[Event] = []

    result = here(tokens_dir, base_dir, tmp_path / "run", events, smoke=True, write_back=str(tmp_path / "cold"))

    notes = [event.message for event in events if isinstance(event, Note)]
    assert f"a rehearsal is not written back: nothing goes to {tmp_path / 'cold'}" in notes
    assert result.write_back is None
    assert not (tmp_path / "cold").exists()


def test_a_dry_run_tells_and_writes_nothing(tokens_dir: Path, base_dir: Path, tmp_path: Path) -> None:
    """What it would train, from where; a refusal is refused here too."""
    run = tmp_path / "run"
    fresh = datakit(*command(tokens_dir, base_dir, run, "--dry-run", "--json"))
    nothing = run.exists()
    here(tokens_dir, base_dir, run)
    before = sorted(str(path) for path in run.rglob("*"))

    finished = datakit(*command(tokens_dir, base_dir, run, "--dry-run"))
    brief = datakit(*command(tokens_dir, base_dir, tmp_path / "brief", "--dry-run", "--steps", 1))
    single = datakit(*command(tokens_dir, base_dir, tmp_path / "brief", "--dry-run", "--batch-size", 13))
    refused = datakit(*command(tokens_dir, base_dir, run, "--dry-run", "--seed", 9))

    plan = fresh.json["result"]
    assert not nothing
    assert (plan["steps_done"], plan["steps_per_epoch"], plan["left_out"], plan["samples"]) == (0, 3, 1, 13)
    assert "is finished: 6 steps" in finished.stderr
    assert "2.0, each of 3 steps" in finished.stderr
    assert "33.33% of one, which has 3 steps" in brief.stderr
    assert "6.0, each of 1 step\n" in single.stderr
    assert refused.code == 3
    assert "--accept settings" in refused.stderr
    assert sorted(str(path) for path in run.rglob("*")) == before


def test_a_dry_run_asks_the_destination_as_the_training_does(
    tokens_dir: Path, base_dir: Path, tmp_path: Path, faulty: FaultyServer
) -> None:
    """No URL is 2, a bucket that lets nobody in is 6, and a checkpoint that lies there is what it would go on from."""
    run, cold = tmp_path / "run", tmp_path / "cold"
    faulty.faults = [Fault("denied", times=10_000)]
    for step in (2, 4):
        make_commit(cold / f"step-{step:08d}", {"state.json": b"{}"}, kind="checkpoint")

    def tell(url: object, *more: object) -> Answer:
        return datakit(*command(tokens_dir, base_dir, run, "--write-back", url, "--dry-run", *more))

    slip, shut = tell("s3:/x"), tell(f"{faulty.url}/run")
    found, never = tell(cold), tell(cold, "--resume", "never")

    assert (slip.code, shut.code, found.code, never.code) == (2, 6, 0, 3)
    assert "continue after step 4 and train to step 6" in found.stderr
    assert f"{cold}/step-00000004" in found.stderr
    assert not run.exists()


def test_a_dry_run_compares_only_what_it_would_go_on_from(tokens_dir: Path, base_dir: Path, tmp_path: Path) -> None:
    """Of other settings here, and a newer one there: the training fetches that and compares no other."""
    run, cold = tmp_path / "run", tmp_path / "cold"
    train(tokens_dir, model=base_dir, output=run, settings=dataclasses.replace(RECIPE, steps=4))
    make_commit(cold / "step-00000006", {"state.json": b"{}"}, kind="checkpoint")

    here_only = datakit(*command(tokens_dir, base_dir, run, "--dry-run"))
    newer_there = datakit(*command(tokens_dir, base_dir, run, "--write-back", cold, "--dry-run", "--json"))

    assert here_only.code == 3
    assert newer_there.json["result"]["resumes_from"] == f"{cold}/step-00000006"


def test_a_dry_run_goes_on_from_here_when_the_destination_cannot_be_asked(
    tokens_dir: Path, base_dir: Path, tmp_path: Path, faulty: FaultyServer
) -> None:
    """As the training does: it is said, and is no reason to stop."""
    here(tokens_dir, base_dir, tmp_path / "run")
    faulty.faults = [Fault("denied", times=10_000)]

    told = datakit(*command(tokens_dir, base_dir, tmp_path / "run", "--write-back", f"{faulty.url}/run", "--dry-run"))

    assert told.code == 0
    assert "cannot be asked for a newer checkpoint" in told.stderr
    assert "is finished: 6 steps" in told.stderr


def test_the_command_refuses_in_a_sentence(tokens_dir: Path, base_dir: Path, tmp_path: Path) -> None:
    """Wrong usage is 2, a state of something else is 3; nobody sees a stack trace."""
    here(tokens_dir, base_dir, tmp_path / "run")

    answers: dict[int, Answer] = {
        2: datakit(*command(tokens_dir, tmp_path / "nowhere", tmp_path / "x")),
        3: datakit(*command(tokens_dir, base_dir, tmp_path / "run", "--seed", 9)),
    }

    assert {code: told.code for code, told in answers.items()} == {2: 2, 3: 3}
    assert "no base model at" in answers[2].stderr
    assert "seed 0; this is seed 9" in answers[3].stderr
    assert not any("Traceback" in told.stderr for told in answers.values())


def test_an_adapter_that_was_trained_on_is_written_back_beside_the_first(
    tokens_dir: Path, base_dir: Path, tmp_path: Path
) -> None:
    """A commit is never overwritten in place: each adapter's copy has a name of its own."""
    run, cold = tmp_path / "run", tmp_path / "cold"
    first = here(tokens_dir, base_dir, run, write_back=str(cold))
    longer = dataclasses.replace(RECIPE, steps=8)

    second = train(tokens_dir, model=base_dir, output=run, settings=longer, accept=["settings"], write_back=str(cold))

    assert (first.unpublished, second.unpublished) == ({}, {})
    assert second.adapter_copy is not None
    assert bytes_of(Path(second.adapter_copy)) == bytes_of(second.adapter)
    assert sorted(path.name[:16] for path in cold.glob("adapter-*")) == ["adapter-00000006", "adapter-00000008"]


def test_a_new_run_never_begins_over_copies_of_another(tokens_dir: Path, base_dir: Path, tmp_path: Path) -> None:
    """`never` looks at the destination too: its uploads would be refused, and a later resume would go on from there."""
    cold = str(tmp_path / "cold")
    here(tokens_dir, base_dir, tmp_path / "first" / "run", write_back=cold)

    with pytest.raises(Refused, match=r"step-00000006 is there already"):
        here(tokens_dir, base_dir, tmp_path / "second" / "run", write_back=cold, resume="never")

    assert not list((tmp_path / "second").rglob("step-*"))


def test_the_requests_of_write_back_stand_in_the_result(
    tokens_dir: Path, base_dir: Path, tmp_path: Path, bucket: str
) -> None:
    """By class: the look at the start, and each upload."""
    requests = here(tokens_dir, base_dir, tmp_path / "run", write_back=f"{bucket}/run").requests

    assert requests.list >= 1
    assert requests.put >= 4 * 4  # three checkpoints and the adapter, of at least four files each
    assert requests.bytes_out > 0


def test_an_agent_that_is_still_fetching_is_waited_for(tokens_dir: Path, base_dir: Path, tmp_path: Path) -> None:
    """A quick restart after a kill meets the fetch of the attempt before; it ends by itself."""
    cold, second = tmp_path / "cold", tmp_path / "second" / "run"
    here(tokens_dir, base_dir, tmp_path / "first" / "run", write_back=str(cold))
    arriving = second / "checkpoints" / ".step-00000006.arriving"
    arriving.parent.mkdir(parents=True)
    hold = (
        "import sys, time; from pathlib import Path; from datakit.storage.disk import exclusive\n"
        "from datakit.storage.commit import lock_path\n"
        "with exclusive(lock_path(Path(sys.argv[1])), purpose='writing'):\n    print('held', flush=True); time.sleep(6)"
    )
    events: list[Event] = []

    with subprocess.Popen(
        [sys.executable, "-c", hold, str(arriving)], stdout=subprocess.PIPE, env=environment()
    ) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        result = here(tokens_dir, base_dir, second, events, write_back=str(cold))

    assert result.resumed_from == f"step-00000006 ({cold})"
    assert any("waiting for an earlier attempt's fetch" in event.message for event in events if isinstance(event, Note))


def test_only_a_lock_is_waited_for(tmp_path: Path) -> None:
    """A place that cannot be used, here for a link to a folder, will not be another one in half a minute."""
    cold, events = tmp_path / "cold", list[Event]()
    make_commit(cold / "step-00000006", {"a": b"1"})
    (cold / "latest").symlink_to("step-00000006")

    with (
        Upload(str(cold), run=tmp_path / "run", stores=None, on_event=events.append) as upload,
        pytest.raises(Refused, match="latest is a link to a folder"),
    ):
        upload.fetch(tmp_path / "run" / "checkpoints", -1)

    assert events == []


def test_a_commit_that_was_never_offered_has_a_status(tmp_path: Path) -> None:
    """Of a name that nobody knows there is no reason to tell."""
    upload = Upload(str(tmp_path / "cold"), run=tmp_path / "run", stores=None, on_event=lambda _event: None)

    assert upload.status("step-00000002") == "not offered"


def test_a_copy_that_is_verified_while_it_is_asked_for_was_offered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The agent writes the state between two looks at it."""
    name = "step-00000002"
    upload = Upload(str(tmp_path / "cold"), run=tmp_path, stores=None, on_event=lambda _event: None)
    where = {"path": str(tmp_path / name), "dest": str(tmp_path / "cold" / name)}
    file = tmp_path / QUEUE_NAME / f"{name}.json"
    file.parent.mkdir()
    write_state(file, **where, state="uploading")
    state, reason = WriteBack.state, WriteBack.reason

    def verified_after(said: Any) -> Any:
        write_state(file, **where, state="verified")
        return said

    monkeypatch.setattr(WriteBack, "state", lambda back, of: verified_after(state(back, of)))
    monkeypatch.setattr(WriteBack, "reason", lambda back, of: verified_after(reason(back, of)))

    assert upload.status(name) == "uploading"
    assert upload.status(name) == "verified"


def test_a_dry_run_hears_every_option(tokens_dir: Path, base_dir: Path, tmp_path: Path) -> None:
    """`--smoke` and `--resume` change what would happen, so they change what is told."""
    run = tmp_path / "run"
    here(tokens_dir, base_dir, run)

    smoke = datakit(*command(tokens_dir, base_dir, run, "--dry-run", "--smoke", "--json"))
    never = datakit(*command(tokens_dir, base_dir, run, "--dry-run", "--resume", "never"))
    wrong = datakit(*command(tokens_dir, base_dir, run, "--dry-run", "--resume", "maybe"))

    plan = smoke.json["result"]
    assert (plan["run"], plan["steps"], plan["resumes_from"]) == (f"{run}-smoke", 3, None)
    assert (never.code, wrong.code) == (3, 2)
    assert "holds a run already" in never.stderr


LEADER = """
import fcntl, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
from datakit.cli.main import main
sys.exit(main())
"""


def test_a_lost_terminal_saves_first(tokens_dir: Path, base_dir: Path, tmp_path: Path) -> None:
    """The kernel sends SIGHUP, and each write to the terminal fails from then on: the state is saved all the same."""
    run = tmp_path / "run"
    words = tuple(10_000 if word == 6 else word for word in command(tokens_dir, base_dir, run))
    master, terminal = os.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", LEADER, *map(str, words)],
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
        start_new_session=True,
        env=environment({"TERM": "xterm"}),
    )
    os.close(terminal)
    deadline = time.monotonic() + 60
    while not any((run / "checkpoints").glob("step-*")) and time.monotonic() < deadline:
        if select.select([master], [], [], 0.05)[0]:
            os.read(master, 65536)
    os.close(master)

    assert process.wait(60) == 75
    saved = max((run / "checkpoints").glob("step-*"))
    rows = (run / "metrics.jsonl").read_text().splitlines()
    assert json.loads(rows[-1])["step"] == int(saved.name.removeprefix("step-"))


def test_a_lost_destination_is_filled_again_and_never_called_verified(
    tokens_dir: Path, base_dir: Path, tmp_path: Path, bucket: str, s3: S3Server
) -> None:
    """The bucket lost everything since: the same command uploads what is here, and what it says then is true."""
    first = here(tokens_dir, base_dir, tmp_path / "run", write_back=f"{bucket}/run")
    name = bucket.removeprefix("s3://")
    for key in s3.keys(name):
        s3.request("DELETE", f"{name}/{key}")
    events: list[Event] = []

    again = here(tokens_dir, base_dir, tmp_path / "run", events, write_back=f"{bucket}/run")

    assert (first.adapter_copy, again.unpublished) == (again.adapter_copy, {})
    assert again.adapter_copy is not None
    assert any("is not there any more" in message for message in cautions(events))
    for there in (again.adapter_copy, f"{bucket}/run/step-00000006", f"{bucket}/run/step-00000004"):
        sync(there, tmp_path / "fetched" / there[-4:])


def test_a_damaged_copy_is_put_again_once_its_step_is_made_again(
    tokens_dir: Path, base_dir: Path, tmp_path: Path, bucket: str, s3: S3Server
) -> None:
    """A bit of the newest copy is wrong: a fresh machine passes it over, makes the step again, and heals the copy."""
    here(tokens_dir, base_dir, tmp_path / "first" / "run", write_back=f"{bucket}/run")
    key = f"{bucket.removeprefix('s3://')}/run/step-00000006/optimizer.safetensors"
    whole = s3.get(key)
    s3.put(key, bytes([whole[0] ^ 4]) + whole[1:])
    events: list[Event] = []

    second = here(tokens_dir, base_dir, tmp_path / "second" / "run", write_back=f"{bucket}/run")
    third = here(tokens_dir, base_dir, tmp_path / "third" / "run", events, write_back=f"{bucket}/run")

    assert second.resumed_from == f"step-00000004 ({bucket}/run)"
    assert [(saved.name, saved.remote) for saved in second.checkpoints] == [("step-00000006", "verified")]
    assert (second.unpublished, s3.get(key) == whole) == ({}, True)
    assert third.resumed_from == f"step-00000006 ({bucket}/run)"
    assert cautions(events) == []


def test_a_damaged_copy_without_a_whole_commit_here_ends_the_command_with_4(
    tokens_dir: Path, base_dir: Path, tmp_path: Path, bucket: str, s3: S3Server
) -> None:
    """Nobody can put it again: it is named, with what is left to do; once it is gone, all is well."""
    here(tokens_dir, base_dir, tmp_path / "run")
    torn = f"{bucket.removeprefix('s3://')}/run/step-00000009/manifest.json"
    s3.put(torn, (tmp_path / "run" / "checkpoints" / "step-00000006" / "manifest.json").read_bytes()[:100])
    words = command(tokens_dir, base_dir, tmp_path / "run", "--write-back", f"{bucket}/run", "--json")

    told = datakit(*words)
    s3.request("DELETE", torn)
    again = datakit(*words)

    assert told.code == 4
    assert list(told.json["result"]["unpublished"]) == ["step-00000009"]
    assert "1 commit has no good copy" in told.json["error"]["message"]
    assert "step-00000009/manifest.json" in told.json["error"]["message"]
    assert told.json["error"]["hint"].startswith(f"Remove {bucket}/run/step-00000009")
    assert (again.code, again.json["result"]["unpublished"]) == (0, {})


def test_a_copy_that_only_a_newer_datakit_reads_is_no_trouble_of_the_run(
    tokens_dir: Path, base_dir: Path, tmp_path: Path
) -> None:
    """It is passed over with the way out, is not called damaged, and nobody is told to remove it."""
    run, cold = tmp_path / "run", tmp_path / "cold"
    make_commit(cold / "step-00000020", {"a": b"1"}, kind="checkpoint")
    manifest = cold / "step-00000020" / "manifest.json"
    manifest.write_text(json.dumps(json.loads(manifest.read_text()) | {"format": 99}))
    before = manifest.read_bytes()

    told = datakit(*command(tokens_dir, base_dir, run, "--write-back", cold, "--json"))

    assert (told.code, told.json["result"]["unpublished"]) == (0, {})
    assert [(said["message"].split(":")[0], said["hint"]) for said in told.json["cautions"]] == [
        (f"{cold}/step-00000020 cannot be read here and is passed over", "Use a newer datakit")
    ]
    assert (manifest.read_bytes(), (run / "write-back" / "step-00000020.json").exists()) == (before, False)


def test_commits_whose_state_cannot_be_kept_have_no_copy(
    tokens_dir: Path, base_dir: Path, tmp_path: Path, clean_room: Path
) -> None:
    """Something stands where each state would: nothing is dropped or called verified, each is named, with its error."""
    run, cold = tmp_path / "run", tmp_path / "cold"
    here(tokens_dir, base_dir, tmp_path / "first" / "run")
    names = [f"step-{step:08d}" for step in (2, 4, 6)]
    for name in (*names, copy_name(tmp_path / "first" / "run" / "adapter")):
        (run / "write-back" / f"{name}.json").mkdir(parents=True)
    (clean_room / "params.yaml").write_text(PARAMS.replace("keep: 2", "keep: 1"))

    told = datakit(*command(tokens_dir, base_dir, run, "--write-back", cold, "--json"))
    pruned = datakit("ckpt", "prune", run, "--keep", 1, "--json")

    result = told.json["result"]
    assert told.code == 1
    assert set(result["unpublished"]) == {*names, "adapter"}
    assert result["adapter_copy"] is None
    assert [saved["remote"] == "verified" for saved in result["checkpoints"]] == [False] * 3
    assert [path.name for path in sorted((run / "checkpoints").glob("step-*"))] == names
    assert pruned.json["result"]["dropped"] == []
    assert "is verified at" not in told.stderr
    assert "None" not in told.stderr


def test_states_that_vanish_while_it_trains_are_said(tokens_dir: Path, base_dir: Path, tmp_path: Path) -> None:
    """Somebody removes the directory of the states: what was sent before and after is named; training goes on."""
    run, first = tmp_path / "run", tmp_path / "cold" / "step-00000002" / "manifest.json"

    def remove(event: Event) -> None:
        if isinstance(event, Note) and event.message.startswith("committed step-00000002"):
            deadline = time.monotonic() + 60
            while not first.exists() and time.monotonic() < deadline:
                time.sleep(0.01)
            (run / "write-back").rename(tmp_path / "elsewhere")

    result = train(
        tokens_dir, model=base_dir, output=run, settings=RECIPE, write_back=str(tmp_path / "cold"), on_event=remove
    )

    assert result.steps == 6
    assert set(result.unpublished) == {"step-00000002", "step-00000004", "step-00000006", "adapter"}
    assert result.adapter_copy is None


def test_a_run_that_is_moved_while_a_copy_is_under_way_ends_whole(
    tokens_dir: Path, base_dir: Path, tmp_path: Path
) -> None:
    """Killed with a checkpoint staged, renamed, started again: the copy is made from where the run lies now."""
    old, new, cold = tmp_path / "me" / "run", tmp_path / "mf" / "run", tmp_path / "cold"
    here(tokens_dir, base_dir, old)
    queue = WriteBack(str(cold), queue_dir=old / "write-back")
    queue.queue_dir.mkdir()
    queue.offer(old / "checkpoints" / "step-00000004")
    old.parent.rename(new.parent)

    result = here(tokens_dir, base_dir, new, write_back=str(cold))

    assert result.unpublished == {}
    assert verify_commit(cold / "step-00000004") == verify_commit(new / "checkpoints" / "step-00000004")


def test_nothing_is_dropped_before_the_destination_has_answered(
    tokens_dir: Path, base_dir: Path, tmp_path: Path, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was verified by an earlier attempt need not be there today: with the store away, all of it stays."""
    run = tmp_path / "run"
    short = dataclasses.replace(RECIPE, keep=3)
    train(tokens_dir, model=base_dir, output=run, settings=short, write_back=f"{bucket}/run")
    monkeypatch.setenv("AWS_ENDPOINT_URL", NOBODY)
    longer = dataclasses.replace(RECIPE, steps=8, keep=1)

    train(tokens_dir, model=base_dir, output=run, settings=longer, accept=["settings"], write_back=f"{bucket}/run")

    kept = [path.name for path in sorted((run / "checkpoints").glob("step-*"))]
    assert kept == [f"step-{step:08d}" for step in (2, 4, 6, 8)]


@pytest.mark.parametrize("begun", [True, False], ids=["a run", "a fresh directory"])
def test_a_start_that_is_refused_for_what_lies_at_the_destination_changes_nothing(
    tokens_dir: Path, base_dir: Path, tmp_path: Path, begun: bool
) -> None:
    """The URL of another run by mistake: its newer checkpoint is not brought among the run's own."""
    run, cold = tmp_path / "run", str(tmp_path / "cold")
    other = dataclasses.replace(RECIPE, steps=8, seed=9)
    train(tokens_dir, model=base_dir, output=tmp_path / "other", settings=other, write_back=cold)
    if begun:
        here(tokens_dir, base_dir, run)
    before = bytes_below(run)

    with pytest.raises(Refused, match=r"(seed 9|its run is other).*not brought into") as refusal:
        here(tokens_dir, base_dir, run, write_back=cold)
    after = bytes_below(run)
    result = here(tokens_dir, base_dir, run)

    assert refusal.value.hint is not None
    assert "name another --write-back" in refusal.value.hint
    assert {name: data for name, data in after.items() if not name.startswith("write-back/")} == before
    assert run.exists() == begun or result.steps == 6
    assert (result.steps, result.attempt) == (6, 2 if begun else 1)


def test_a_checkpoint_under_another_steps_name_is_refused(tokens_dir: Path, base_dir: Path, tmp_path: Path) -> None:
    """It would be the newest for ever: it is set aside here, passed over there, and the one before is used."""
    run, cold = tmp_path / "run", tmp_path / "cold"
    here(tokens_dir, base_dir, run, write_back=str(cold))
    (run / "checkpoints" / "step-00000006").rename(run / "checkpoints" / "step-00000099")
    events: list[Event] = []

    result = here(tokens_dir, base_dir, run, events)
    (cold / "step-00000006").rename(cold / "step-00000099")
    fetched = here(tokens_dir, base_dir, tmp_path / "fresh" / "run", events, write_back=str(cold))

    assert result.resumed_from == "step-00000004 (local)"
    assert fetched.resumed_from == f"step-00000004 ({cold})"
    assert "step-00000099 is step-00000006 under another name" in cautions(events)[0]
    assert "step-00000099 is not valid and is passed over" in cautions(events)[1]


def with_workers(clean_room: Path, words: tuple[Any, ...], run: Path) -> subprocess.Popen[str]:
    """A long training with two workers, which has saved once."""
    (clean_room / "params.yaml").write_text(PARAMS.replace("keep: 2", "keep: 2, num_workers: 2"))
    process = start(*(10_000 if word == 6 else word for word in words))
    while process.poll() is None and not any((run / "checkpoints").glob("step-*")):
        time.sleep(0.02)
    return process


def workers_of(process: subprocess.Popen[str]) -> list[psutil.Process]:
    """The loader's workers: children that were forked, so that they bear the trainer's own command line."""
    trainer = psutil.Process(process.pid)
    return [child for child in trainer.children() if child.cmdline() == trainer.cmdline()]


def test_a_loader_worker_that_is_killed_ends_the_training_with_1_and_a_sentence(
    tokens_dir: Path, base_dir: Path, tmp_path: Path, clean_room: Path
) -> None:
    """As the kernel does when memory is out: no hang, no stack trace, and the same command continues."""
    run = tmp_path / "run"
    process = with_workers(clean_room, command(tokens_dir, base_dir, run), run)

    workers_of(process)[0].kill()
    _, said = process.communicate(timeout=120)

    assert process.returncode == 1, said
    assert "error: a loader worker was killed (signal 9)" in said
    assert "in a way it should not" not in said
    assert "Traceback" not in said


def test_sigterm_is_heard_while_a_worker_hangs(
    tokens_dir: Path, base_dir: Path, tmp_path: Path, clean_room: Path
) -> None:
    """A stalled file system stops the workers; the trainer saves what it has and leaves with 75."""
    run = tmp_path / "run"
    process = with_workers(clean_room, command(tokens_dir, base_dir, run), run)

    for worker in workers_of(process):
        worker.suspend()
    time.sleep(1)
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=120)

    assert process.returncode == 75, said
    saved = max((run / "checkpoints").glob("step-*"))
    rows = (run / "metrics.jsonl").read_text().splitlines()
    assert json.loads(rows[-1])["step"] == int(saved.name.removeprefix("step-"))
