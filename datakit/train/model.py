"""model: the base model, the adapter on it, and the loss of a forward pass.

Promises: weights are read from local safetensors only, never unpickled, never downloaded, and those of a commit are
compared with its manifest, every byte, before they are loaded; what trains is the adapter, in fp32, under the parameter
names that stock `peft` writes; the same seed gives the same initial adapter on any machine under the same precision
(peft draws it in the base model's); inside `exact_arithmetic` the same inputs give the same bits.

Does not train and does not save. Sources: LoRA, arXiv 2106.09685, in the implementation of `peft`; the logits of chosen
positions only are the `logits_to_keep` of transformers' causal models.
"""

from __future__ import annotations

import contextlib
import hashlib
import inspect
import json
import os
import platform
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from datakit.data.digest import mend_hint
from datakit.data.manifest import Manifest
from datakit.errors import InputError, IntegrityError, MissingExtra, NotFound, Refused, UsageError
from datakit.storage.access import local_path
from datakit.storage.commit import verify_commit
from datakit.storage.disk import at_door, hash_file
from datakit.storage.stamp import Stamp
from datakit.train.batch import IGNORED, Pass
from datakit.train.recipe import Recipe

try:
    import torch
except ImportError:
    raise MissingExtra("torch", extra="train") from None


_IDENTITY_FILES = ("config.json", "*.safetensors", "*.safetensors.index.json")
"""What a model is loaded from."""


@dataclass(frozen=True, slots=True)
class BaseModel:
    """Which base model this is.

    Attributes:
        path: Directory with `config.json` and `*.safetensors`.
        name: Its name: of its manifest, else of the directory.
        digest: 64 hex: of its manifest, else of its configuration and weight files.
        seen: Stamp of each of these files, by its name, before it was read for the digest; None where they were not
            all read.
    """

    path: Path
    name: str
    digest: str
    seen: Mapping[str, Stamp] | None


def identify(directory: Path | str, *, quick: bool = False) -> BaseModel:
    """Say which base model a directory holds, by bytes that were all read: whoever loads it then knows what he loads.

    Args:
        directory: A commit, or a plain Hugging Face directory, which is told by the digest of its files.
        quick: Of a commit only see that each file is there with its size; it says nothing of the weights.

    Raises:
        UsageError: It is a URL.
        NotFound: The directory is not there.
        InputError: It holds no model, or is a file.
        NotAllowed: It may not be read.
        IntegrityError: A file is not what the manifest says; names the file and the part of it.
    """
    path = local_path(directory)
    with at_door(path):
        if not path.is_dir():
            hint = "Name a local directory with config.json"
            kind = InputError if path.exists() else NotFound
            raise kind(f"no base model at {path}", hint=hint, subject=str(path))
        if not (path / "config.json").is_file():
            hint = "Name the directory of a model as transformers saves it"
            raise InputError(f"{path} holds no model: it has no config.json", hint=hint, subject=str(path))
    seen = _look(path)
    with contextlib.suppress(NotFound):
        manifest = _verified(path, quick=quick)
        return BaseModel(path, manifest.name, manifest.digest, seen=None if quick else seen)
    lines = "".join(f"{name} {hash_file(path / name).sha256}\n" for name in seen)
    return BaseModel(path, path.resolve().name, hashlib.sha256(lines.encode()).hexdigest(), seen=seen)


def _look(path: Path) -> dict[str, Stamp]:
    """What tells, without a byte read, that a file was replaced or written to."""
    with at_door(path):
        files = sorted({file for pattern in _IDENTITY_FILES for file in path.glob(pattern)})
        return {file.name: Stamp.of(file.stat()) for file in files}


def _verified(path: Path, *, quick: bool) -> Manifest:
    try:
        return verify_commit(path, quick=quick)
    except IntegrityError as error:
        hint = f"{mend_hint(path)}; or make it again"
        raise IntegrityError(f"base model: {error.message}", hint=hint, subject=error.subject) from error


def pick_device() -> torch.device:
    """The GPU when there is one, else the CPU."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def load_base(base: BaseModel, *, precision: str, device: torch.device) -> Any:
    """The base model on a device, in `fp32`, `bf16` or, when `auto`, what suits the device.

    One whose bytes were not all read is read first, and after loading its files are still those that were read.

    Raises:
        Refused: It is another model by now.
        IntegrityError: A file is not what the manifest says.
        InputError: The directory holds no model that transformers can load.
        MissingExtra: transformers or torch is not installed.
    """
    try:
        from safetensors import SafetensorError
        from transformers import AutoModelForCausalLM
        from transformers.utils import logging
    except ImportError:
        raise MissingExtra("transformers", extra="train") from None
    read = base if base.seen is not None else identify(base.path)
    if read.digest != base.digest:
        raise _replaced(base, f"digest {read.digest[:12]}, it was {base.digest[:12]}")
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]  # transformers ships it without types
    try:
        model: Any = AutoModelForCausalLM.from_pretrained(
            str(base.path),
            local_files_only=True,
            use_safetensors=True,
            dtype={"fp32": torch.float32, "bf16": torch.bfloat16}[chosen_precision(precision, device)],
            attn_implementation="sdpa",
        )
    except (OSError, ValueError, KeyError, SafetensorError) as error:
        _check_unchanged(read)
        message = f"{base.path} cannot be loaded as a causal model: {error}"
        hint = "Name a causal language model whose weights are in safetensors files, or fetch it again"
        raise InputError(message, hint=hint, subject=str(base.path)) from error
    _check_unchanged(read)
    return model.to(device)


def _check_unchanged(base: BaseModel) -> None:
    if changed := sorted({name for name, _ in _look(base.path).items() ^ (base.seen or {}).items()}):
        raise _replaced(base, f"{', '.join(changed)} changed since it was read")


def _replaced(base: BaseModel, how: str) -> Refused:
    hint = "Run the same command again when it is at rest"
    return Refused(f"{base.path} is another base model now ({how})", hint=hint, subject=str(base.path))


def attach_adapter(model: Any, recipe: Recipe) -> Any:
    """Put a fresh adapter on a model; its initial values follow from the recipe's seed and the model's precision alone.

    Raises:
        UsageError: No layer of the model has one of the recipe's target names.
        MissingExtra: peft is not installed.
    """
    try:
        from peft import LoraConfig, TaskType, get_peft_model
    except ImportError:
        raise MissingExtra("peft", extra="train") from None
    config = LoraConfig(
        r=recipe.rank,
        lora_alpha=recipe.alpha,
        lora_dropout=recipe.dropout,
        target_modules=sorted(recipe.targets),
        bias="none",
        task_type=TaskType.CAUSAL_LM,
    )
    device = next(model.parameters()).device
    torch.manual_seed(derived_seed(recipe.seed, "adapter"))
    model.to("cpu")  # a GPU draws other numbers: the initial adapter must not depend on the machine
    try:
        with _quiet_peft():
            model = get_peft_model(model, config)
    except ValueError as error:
        message = f"train.targets {', '.join(recipe.targets)}: {error}"
        found = {name.rpartition(".")[2] for name, each in model.named_modules() if isinstance(each, torch.nn.Linear)}
        layers = ", ".join(sorted(found))
        raise UsageError(message, hint=f"Its linear layers are {layers}", subject=recipe.targets) from None
    return model.to(device)


@contextlib.contextmanager
def _quiet_peft() -> Iterator[None]:
    with warnings.catch_warnings():
        # peft 0.21 asks transformers 5.24 by an attribute's old name; nothing that a user could change
        warnings.filterwarnings("ignore", message=".*is_gradient_checkpointing.*", category=FutureWarning)
        yield


def trainable(model: Any) -> dict[str, torch.nn.Parameter]:
    """What trains, under the names of stock peft's `adapter_model.safetensors`, sorted."""
    found = {name.replace(".default.", "."): p for name, p in model.named_parameters() if p.requires_grad}
    return dict(sorted(found.items()))


def adapter_config(model: Any, *, base_name: str) -> bytes:
    """`adapter_config.json` as stock peft reads it; deterministic bytes, no path of this machine in it."""
    config = model.peft_config["default"].to_dict()
    config["inference_mode"] = True
    config["base_model_name_or_path"] = base_name
    plain = {
        key: sorted(value) if isinstance(value, set) else getattr(value, "value", value)
        for key, value in config.items()
    }
    return json.dumps(plain, indent=2, sort_keys=True).encode() + b"\n"


def load_adapter(model: Any, directory: Path) -> Any:
    """A base model with a finished adapter on it, for reading only.

    Raises:
        NotFound: There is no adapter.
        IntegrityError: Its bytes are not what its manifest says.
    """
    from peft import PeftModel

    verify_commit(directory)
    with _quiet_peft():
        return PeftModel.from_pretrained(model, str(directory))


def loss_sum(model: Any, part: Pass) -> torch.Tensor:
    """The summed cross entropy (nats, fp32) of the pass's targets; divide by the targets of the whole step.

    Logits are made only at positions where some sample of the pass has a target.
    """
    targets = part.targets[:, part.kept]
    if _keeps_logits(model):
        logits = model(input_ids=part.ids, use_cache=False, logits_to_keep=part.kept).logits
    else:
        logits = model(input_ids=part.ids, use_cache=False).logits[:, part.kept]
    chosen = targets != IGNORED
    return torch.nn.functional.cross_entropy(logits[chosen].float(), targets[chosen], reduction="sum")


def _keeps_logits(model: Any) -> bool:
    plain = model.get_base_model() if hasattr(model, "peft_config") else model
    return "logits_to_keep" in inspect.signature(plain.forward).parameters


def derived_seed(seed: int, *words: object) -> int:
    """A 63-bit seed for one purpose: BLAKE2b of the user's seed and the words."""
    text = "\0".join(str(word) for word in ("datakit.seed.1", seed, *words))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1


@contextlib.contextmanager
def exact_arithmetic(*, threads: int) -> Iterator[None]:
    """Fixed threads, no TF32, deterministic algorithms for the length of the block; torch's settings are put back.

    On a GPU cuBLAS gets a fixed workspace through the environment, which it reads once and which therefore stays; and
    attention kernels whose backward pass is not deterministic are left out: flash attention (bf16) and the plain one
    (fp32) remain.
    """
    if torch.cuda.is_available():
        # cuBLAS reads it when it starts; without it torch refuses deterministic matrix products
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    cuda: Any = torch.backends.cuda  # its functions declare no types
    threads_before, random_before = torch.get_num_threads(), torch.random.get_rng_state()
    exact_before = torch.are_deterministic_algorithms_enabled()
    kernels_before = cuda.mem_efficient_sdp_enabled(), cuda.cudnn_sdp_enabled()
    matmul_before = torch.get_float32_matmul_precision()
    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(True)
    torch.set_float32_matmul_precision("highest")
    cuda.enable_mem_efficient_sdp(False)
    cuda.enable_cudnn_sdp(False)
    try:
        yield
    finally:
        torch.set_num_threads(threads_before)
        torch.use_deterministic_algorithms(exact_before)
        torch.set_float32_matmul_precision(matmul_before)
        cuda.enable_mem_efficient_sdp(kernels_before[0])
        cuda.enable_cudnn_sdp(kernels_before[1])
        torch.random.set_rng_state(random_before)


def library_versions() -> dict[str, str]:
    """Versions of what does the arithmetic."""
    from importlib.metadata import version

    import datakit

    names = ("torch", "transformers", "peft", "safetensors")
    return {"datakit": datakit.__version__, "python": platform.python_version(), **{n: version(n) for n in names}}


def geometry(*, device: torch.device, threads: int, precision: str) -> dict[str, Any]:
    """What may change the last bits of a result and not its meaning."""
    cpu = torch.backends.cpu.get_cpu_capability()
    return {
        "world_size": 1,
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else f"cpu {platform.machine()} {cpu}",
        "precision": chosen_precision(precision, device),
        "threads": threads,
        "torch": torch.__version__,
        "transformers": library_versions()["transformers"],
    }


def chosen_precision(precision: str, device: torch.device) -> str:
    """What `auto` means on a device."""
    return ("bf16" if device.type == "cuda" else "fp32") if precision == "auto" else precision
