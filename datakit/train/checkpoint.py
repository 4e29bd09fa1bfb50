"""checkpoint: the state of a run as a commit, `checkpoints/step-<8 digits>`.

Members: `adapter_model.safetensors` and `adapter_config.json` (stock `peft` loads them), `optimizer.safetensors` (by
parameter name), `state.json`, `lineage.json`, and the manifest that makes it valid. No state of a random generator is
kept: dropout is seeded anew in every pass from (seed, step, pass).

Promises: the same state gives the same bytes; loading is strict in names and shapes and unpickles nothing; values
that are not finite, of the adapter or of the optimizer, are never committed. Does not decide when to save, what to keep
or where to resume: that is for `loop`, `shelf` and `attempt`.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from datakit.data.order import Cursor
from datakit.errors import DatakitError, InputError, IntegrityError, MissingExtra, UsageError
from datakit.storage import disk
from datakit.storage.commit import commit
from datakit.train.shelf import ADAPTER_NAME, CONFIG_NAME, OPTIMIZER_NAME, STATE_NAME, step_name
from datakit.version.lineage import LINEAGE_NAME

try:
    import torch
    from safetensors.torch import load_file
    from safetensors.torch import save as safetensors_bytes
except ImportError as missing:
    raise MissingExtra(missing.name or "torch", extra="train") from None

STATE_FORMAT = 1

_OLDER = "Remove that checkpoint, and the one before it is taken"

_SLOTS = ("exp_avg", "exp_avg_sq", "step")
"""What torch's AdamW keeps of a parameter."""


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """Where a run stands.

    Attributes:
        step: Optimizer steps done.
        cursor: Where the next step's samples begin.
        samples: Samples consumed since the run began, by all ranks.
        tokens: Their tokens, without padding.
        supervised_tokens: Their tokens that the loss counted.
        order_digest: 64 hex: digest of the sequence of consumed sample numbers.
        identity: What the state was written for: `data`, `base_model`, `settings`.
        geometry: What may change bits but not the meaning: threads, device, library versions.
        overrides: What the user allowed to differ at earlier resumes.
        changes: What changed between attempts that took steps and moves bits only: `what`, `from`, `to`, `step`.
        stateless: Parameters that the optimizer has no state of yet, because they never had a gradient.
        loss_first: Loss of the first step, or None where an older datakit began the run.
        loss_last: Loss of the last step, or None.
    """

    step: int
    cursor: Cursor
    samples: int
    tokens: int
    supervised_tokens: int
    order_digest: str
    identity: Mapping[str, Any]
    geometry: Mapping[str, Any]
    overrides: tuple[Mapping[str, Any], ...] = ()
    changes: tuple[Mapping[str, Any], ...] = ()
    stateless: tuple[str, ...] = ()
    loss_first: float | None = None
    loss_last: float | None = None

    def to_bytes(self) -> bytes:
        """`state.json`; deterministic. What later versions added stands there only where it says something."""
        added = {
            "changes": list(self.changes),
            "stateless": list(self.stateless),
            "loss_first": self.loss_first,
            "loss_last": self.loss_last,
        }
        value = {
            "format": STATE_FORMAT,
            "step": self.step,
            "cursor": self.cursor.to_json(),
            "samples": self.samples,
            "tokens": self.tokens,
            "supervised_tokens": self.supervised_tokens,
            "order_digest": self.order_digest,
            "identity": self.identity,
            "geometry": self.geometry,
            "overrides": list(self.overrides),
            **{name: said for name, said in added.items() if said not in ([], None)},
        }
        return json.dumps(value, indent=2, sort_keys=True).encode() + b"\n"

    @classmethod
    def from_bytes(cls, data: bytes, *, where: str = STATE_NAME) -> State:
        """From what `to_bytes` gave; `where` it stands is for messages.

        Raises:
            InputError: The bytes are no such state.
            UsageError: Its format number is one that this version does not read.
        """
        try:
            value = json.loads(data)
            if value["format"] != STATE_FORMAT:
                message = f"{where} has format {value['format']!r}; this datakit reads {STATE_FORMAT}"
                raise UsageError(message, hint="Use a newer datakit")
            return cls(
                step=int(value["step"]),
                cursor=Cursor.from_json(value["cursor"]),
                samples=int(value["samples"]),
                tokens=int(value["tokens"]),
                supervised_tokens=int(value["supervised_tokens"]),
                order_digest=str(value["order_digest"]),
                identity=dict(value["identity"]),
                geometry=dict(value["geometry"]),
                overrides=tuple(value["overrides"]),
                changes=tuple(value.get("changes", ())),
                stateless=tuple(value.get("stateless", ())),
                loss_first=value.get("loss_first"),
                loss_last=value.get("loss_last"),
            )
        except (ValueError, KeyError, TypeError) as error:
            if isinstance(error, DatakitError):
                raise
            raise InputError(f"{where} is not the state of a run: {error!r}", hint=_OLDER, subject=where) from None


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A loaded checkpoint: its state, and its tensors on the CPU."""

    path: Path
    state: State
    adapter: Mapping[str, torch.Tensor]
    optimizer: Mapping[str, torch.Tensor]


def save_checkpoint(
    directory: Path,
    *,
    parameters: Mapping[str, torch.nn.Parameter],
    optimizer: torch.optim.Optimizer,
    state: State,
    config: bytes,
    lineage: bytes,
) -> Path:
    """Commit the state of a run below a directory.

    Args:
        directory: Where checkpoints lie.
        parameters: What trains, by name.
        optimizer: Whose state over these parameters is saved.
        state: The counters.
        config: `adapter_config.json`.
        lineage: `lineage.json`.

    Returns:
        The checkpoint's directory.

    Raises:
        DatakitError: A value is not finite; nothing is committed.
        NoSpace: The disk is full; nothing is committed.
    """
    adapter, moments = adapter_tensors(parameters), _optimizer_tensors(parameters, optimizer)
    stateless = tuple(sorted(name for name, parameter in parameters.items() if not optimizer.state.get(parameter)))
    state = dataclasses.replace(state, stateless=stateless)
    final = directory / step_name(state.step)
    disk.make_dirs(directory)
    with commit(final, kind="checkpoint", name=final.name) as staging:
        staging.write(ADAPTER_NAME, tensor_bytes(adapter))
        staging.write(CONFIG_NAME, config)
        staging.write(OPTIMIZER_NAME, tensor_bytes(moments))
        staging.write(STATE_NAME, state.to_bytes())
        staging.write(LINEAGE_NAME, lineage)
        staging.about["step"] = state.step
    return final


def adapter_tensors(parameters: Mapping[str, torch.nn.Parameter]) -> dict[str, torch.Tensor]:
    """The adapter on the CPU, by name.

    Raises:
        DatakitError: A value is not finite.
    """
    tensors = {name: parameter.detach().cpu().contiguous() for name, parameter in parameters.items()}
    return _finite(tensors)


def _finite(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    for name, tensor in tensors.items():
        if not bool(torch.isfinite(tensor).all()):
            raise DatakitError(
                f"{name} holds values that are not finite; it is not saved",
                hint="Train from an earlier checkpoint with a lower train.learning_rate",
                subject=name,
            )
    return tensors


def tensor_bytes(tensors: Mapping[str, torch.Tensor]) -> bytes:
    """A safetensors file; `format: pt` is what transformers and peft look for."""
    return safetensors_bytes(dict(tensors), metadata={"format": "pt"})


def _optimizer_tensors(
    parameters: Mapping[str, torch.nn.Parameter], optimizer: torch.optim.Optimizer
) -> dict[str, torch.Tensor]:
    return _finite(
        {
            f"{slot}.{name}": value.detach().cpu().contiguous()
            for name, parameter in parameters.items()
            for slot, value in optimizer.state.get(parameter, {}).items()
        }
    )


def load_state(path: Path) -> State:
    """Read the counters of a checkpoint.

    Raises:
        InputError: `state.json` is none.
    """
    with disk.at_door(path):
        return State.from_bytes((path / STATE_NAME).read_bytes(), where=str(path / STATE_NAME))


def load_checkpoint(path: Path) -> Checkpoint:
    """Read a checkpoint that `newest` verified.

    Raises:
        IntegrityError: A file is no safetensors file.
        InputError: `state.json` is none.
    """
    return Checkpoint(path, load_state(path), _tensors(path / ADAPTER_NAME), _tensors(path / OPTIMIZER_NAME))


def _tensors(path: Path) -> dict[str, torch.Tensor]:
    from safetensors import SafetensorError

    try:
        with disk.at_door(path):
            return load_file(path)
    except SafetensorError as error:
        raise IntegrityError(f"{path} is not a safetensors file: {error}", hint=_OLDER, subject=str(path)) from None


def restore(
    checkpoint: Checkpoint, *, parameters: Mapping[str, torch.nn.Parameter], optimizer: torch.optim.Optimizer
) -> None:
    """Put a checkpoint's tensors into the adapter and the optimizer, in place.

    Raises:
        IntegrityError: Names or shapes are not those of the adapter; nothing was changed.
    """
    moving = {name: p for name, p in parameters.items() if name not in checkpoint.state.stateless}
    wanted = {f"{slot}.{name}" for slot in _SLOTS for name in moving}
    for kind, have, want in (
        ("adapter", set(checkpoint.adapter), set(parameters)),
        ("optimizer", set(checkpoint.optimizer), wanted),
    ):
        if have != want:
            odd = min(have ^ want)
            raise IntegrityError(
                f"{checkpoint.path}: its {kind} and this one's differ in {odd}", hint=_OLDER, subject=odd
            )
    _check_shapes(checkpoint, parameters, moving)
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(checkpoint.adapter[name])
        for name, parameter in moving.items():
            # AdamW keeps its step count on the CPU and its moments where the parameter is
            optimizer.state[parameter] = {
                slot: value.clone() if slot == "step" else value.to(parameter.device, copy=True)
                for slot in _SLOTS
                for value in [checkpoint.optimizer[f"{slot}.{name}"]]
            }


def _check_shapes(
    checkpoint: Checkpoint,
    parameters: Mapping[str, torch.nn.Parameter],
    moving: Mapping[str, torch.nn.Parameter],
) -> None:
    pairs = [(name, checkpoint.adapter[name], tuple(parameter.shape)) for name, parameter in parameters.items()]
    for name, parameter in moving.items():
        for slot in _SLOTS:
            key = f"{slot}.{name}"
            pairs.append((key, checkpoint.optimizer[key], () if slot == "step" else tuple(parameter.shape)))
    for name, tensor, shape in pairs:
        if tuple(tensor.shape) != shape:
            message = f"{checkpoint.path}: {name} has shape {tuple(tensor.shape)}, this adapter's has {shape}"
            raise IntegrityError(message, hint=_OLDER, subject=name)
