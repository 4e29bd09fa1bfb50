"""train/checkpoint: what is saved comes back bit for bit, and only into what it was saved from."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from datakit import DatakitError, InputError, IntegrityError, UsageError
from datakit.data.order import Cursor
from datakit.storage.commit import verify_commit
from datakit.train.checkpoint import State, load_checkpoint, restore, save_checkpoint
from datakit.train.recipe import Recipe
from datakit.train.step import make_optimizer
from datakit.version.lineage import read_lineage, to_bytes

STATE = State(
    step=20,
    cursor=Cursor(1, 8),
    samples=80,
    tokens=900,
    supervised_tokens=300,
    order_digest="ab" * 32,
    identity={"data": {"name": "tokens"}, "settings": {"rank": 4}},
    geometry={"threads": 1},
    overrides=({"what": "data", "from": "a", "to": "b", "step": 10},),
)


def adapter(seed: int = 0, *, size: int = 5) -> tuple[dict[str, torch.nn.Parameter], torch.optim.AdamW]:
    torch.manual_seed(seed)
    parameters = {f"base.q.lora_{part}.weight": torch.nn.Parameter(torch.randn(3, size)) for part in "AB"}
    optimizer = make_optimizer(parameters, Recipe())
    for _ in range(3):
        sum(parameter.sin().sum() for parameter in parameters.values()).backward()  # type: ignore[union-attr]
        optimizer.step()
    return parameters, optimizer


def save(path: Path, state: State = STATE, **options: Any) -> Path:
    parameters, optimizer = options.get("saved") or adapter()
    return save_checkpoint(
        path, parameters=parameters, optimizer=optimizer, state=state, config=b"{}\n", lineage=b"{}\n"
    )


def test_a_checkpoint_comes_back_bit_for_bit(tmp_path: Path) -> None:
    """Adapter, both moments, the step count and every counter."""
    saved = adapter(0)
    path = save(tmp_path, saved=saved)
    parameters, optimizer = adapter(1)

    checkpoint = load_checkpoint(path)
    restore(checkpoint, parameters=parameters, optimizer=optimizer)

    assert checkpoint.state == STATE
    for name, parameter in parameters.items():
        assert torch.equal(parameter, saved[0][name])
        ours, theirs = optimizer.state[parameter], saved[1].state[saved[0][name]]
        assert set(ours) == set(theirs) == {"step", "exp_avg", "exp_avg_sq"}
        assert all(torch.equal(ours[slot], theirs[slot]) for slot in ours)


def test_the_next_step_after_restoring_is_the_same(tmp_path: Path) -> None:
    """What the optimizer does next depends on nothing that was not saved."""
    saved, optimizer = adapter(0)
    path = save(tmp_path, saved=(saved, optimizer))
    loaded, other = adapter(1)
    other.zero_grad()
    restore(load_checkpoint(path), parameters=loaded, optimizer=other)

    for parameters, stepped in ((saved, optimizer), (loaded, other)):
        stepped.zero_grad()
        sum((parameter**2).sum() for parameter in parameters.values()).backward()  # type: ignore[union-attr]
        stepped.step()

    assert all(torch.equal(saved[name], loaded[name]) for name in saved)


def test_the_same_state_gives_the_same_bytes(tmp_path: Path) -> None:
    """Manifests of two saves are equal, so every member is."""
    one, other = save(tmp_path / "a"), save(tmp_path / "b")

    assert verify_commit(one).to_bytes() == verify_commit(other).to_bytes()
    assert [member.name for member in verify_commit(one).members] == [
        "adapter_config.json",
        "adapter_model.safetensors",
        "lineage.json",
        "optimizer.safetensors",
        "state.json",
    ]
    assert one.name == "step-00000020"


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_values_that_are_not_finite_are_not_saved(tmp_path: Path, value: float) -> None:
    """The newest checkpoint stays the last good one."""
    parameters, optimizer = adapter()
    with torch.no_grad():
        next(iter(parameters.values()))[0, 0] = value

    with pytest.raises(DatakitError, match="not finite"):
        save(tmp_path, saved=(parameters, optimizer))

    assert list(tmp_path.iterdir()) == []


GOLDEN = Path(__file__).parents[1] / "golden" / "checkpoint-1" / "step-00000004"


def test_a_checkpoint_of_format_1_is_read_for_ever() -> None:
    """Written on 2026-11-30 and never again: it verifies, loads into an adapter of its shape, and tells its lineage."""
    manifest = verify_commit(GOLDEN)
    checkpoint = load_checkpoint(GOLDEN)
    parameters = {name: torch.nn.Parameter(torch.zeros_like(tensor)) for name, tensor in checkpoint.adapter.items()}
    optimizer = make_optimizer(parameters, Recipe())

    restore(checkpoint, parameters=parameters, optimizer=optimizer)
    lineage = read_lineage(GOLDEN)

    assert manifest.about == {"step": 4}
    assert checkpoint.state.to_bytes() == (GOLDEN / "state.json").read_bytes()
    assert (checkpoint.state.step, checkpoint.state.cursor) == (4, Cursor(1, 4))
    assert checkpoint.state.order_digest == lineage["consumed"]["order_digest"]
    assert to_bytes(lineage) == (GOLDEN / "lineage.json").read_bytes()
    assert len(parameters) == 8
    assert all(float(optimizer.state[parameter]["step"]) == 4 for parameter in parameters.values())


def test_another_shape_or_another_layer_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    """Strict in names and shapes: no tensor is skipped, none is cut."""
    checkpoint = load_checkpoint(save(tmp_path))
    wider = adapter(1, size=6)
    fewer = {name: p for name, p in adapter(1)[0].items() if "lora_A" in name}
    before = {name: p.detach().clone() for name, p in wider[0].items()}

    with pytest.raises(IntegrityError, match=r"has shape \(3, 5\), this adapter's has \(3, 6\)"):
        restore(checkpoint, parameters=wider[0], optimizer=wider[1])
    with pytest.raises(IntegrityError, match=r"adapter and this one's differ in base\.q\.lora_B"):
        restore(checkpoint, parameters=fewer, optimizer=make_optimizer(fewer, Recipe()))

    assert all(torch.equal(before[name], p) for name, p in wider[0].items())


def test_a_state_of_another_format_is_refused_by_number() -> None:
    """A newer datakit's state is not guessed at."""
    value = json.loads(STATE.to_bytes())

    with pytest.raises(UsageError, match="format 2; this datakit reads 1"):
        State.from_bytes(json.dumps({**value, "format": 2}).encode())


@pytest.mark.parametrize("field", sorted(json.loads(STATE.to_bytes())))
def test_a_state_without_a_field_is_none(field: str) -> None:
    """Each field is needed."""
    value = json.loads(STATE.to_bytes())
    del value[field]

    with pytest.raises(InputError, match=r"state\.json is not the state of a run"):
        State.from_bytes(json.dumps(value).encode())


@pytest.mark.parametrize("data", [b"", b"[]", b"{", b'"x"'])
def test_what_is_no_state_is_refused(data: bytes) -> None:
    """Garbage is an input error, never a KeyError."""
    with pytest.raises(InputError, match="not the state of a run"):
        State.from_bytes(data)


def test_garbage_in_place_of_tensors_is_an_integrity_error(tmp_path: Path) -> None:
    """A file that its manifest vouches for and that is no safetensors file is named."""
    path = save(tmp_path)
    (path / "optimizer.safetensors").write_bytes(b"garbage")

    with pytest.raises(IntegrityError, match=r"optimizer\.safetensors is not a safetensors file"):
        load_checkpoint(path)


def test_a_parameter_that_never_had_a_gradient_has_no_state_and_can_be_resumed(tmp_path: Path) -> None:
    """Its name is written; what is missing without being named is refused."""
    saved, _ = adapter(0)
    optimizer = make_optimizer(saved, Recipe())
    optimizer.zero_grad(set_to_none=True)
    idle, moved = sorted(saved)
    saved[moved].sin().sum().backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    path = save(tmp_path, saved=(saved, optimizer))
    loaded = {name: torch.nn.Parameter(torch.zeros_like(p)) for name, p in saved.items()}
    other = make_optimizer(loaded, Recipe())

    checkpoint = load_checkpoint(path)
    restore(checkpoint, parameters=loaded, optimizer=other)
    unnamed = dataclasses.replace(checkpoint, state=dataclasses.replace(checkpoint.state, stateless=()))

    assert checkpoint.state.stateless == (idle,)
    assert State.from_bytes(checkpoint.state.to_bytes()) == checkpoint.state
    assert not other.state.get(loaded[idle])
    assert set(other.state[loaded[moved]]) == {"step", "exp_avg", "exp_avg_sq"}
    with pytest.raises(IntegrityError, match="optimizer and this one's differ"):
        restore(unnamed, parameters=loaded, optimizer=other)


@pytest.mark.parametrize("how", ["none", "one", "shape", "step"])
def test_an_optimizer_that_does_not_fit_is_refused(tmp_path: Path, how: str) -> None:
    """No moments, one missing, one of another shape, a step count that is none: all strict."""
    checkpoint = load_checkpoint(save(tmp_path))
    tensors = dict(checkpoint.optimizer)
    name = min(tensors)
    if how == "none":
        tensors = {}
    elif how == "one":
        del tensors[name]
    else:
        tensors[name if how == "shape" else max(tensors)] = torch.zeros(7)
    parameters, optimizer = adapter(1)

    with pytest.raises(IntegrityError, match=r"optimizer and this one's differ|has shape"):
        restore(dataclasses.replace(checkpoint, optimizer=tensors), parameters=parameters, optimizer=optimizer)


def test_moments_that_are_not_finite_are_not_saved(tmp_path: Path) -> None:
    """The adapter may be finite a step longer than what moves it."""
    parameters, optimizer = adapter()
    optimizer.state[next(iter(parameters.values()))]["exp_avg_sq"][0, 0] = float("inf")

    with pytest.raises(DatakitError, match=r"exp_avg_sq\..* not finite"):
        save(tmp_path, saved=(parameters, optimizer))

    assert list(tmp_path.iterdir()) == []
