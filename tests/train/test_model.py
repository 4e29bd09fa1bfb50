"""train/model: which base model, which adapter, and a loss that stock transformers confirms."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from datakit import InputError, IntegrityError, MissingExtra, NotFound, Refused, open_dataset
from datakit.storage.commit import read_manifest
from datakit.train.batch import IGNORED, Collate
from datakit.train.model import (
    adapter_config,
    attach_adapter,
    chosen_precision,
    derived_seed,
    exact_arithmetic,
    identify,
    load_base,
    loss_sum,
    trainable,
)
from datakit.train.recipe import Recipe
from support.cli import environment
from support.commits import flip_bit
from support.tiny import commit_model, tiny_model

CPU = torch.device("cpu")
RECIPE = Recipe(rank=4, dropout=0.3)


def base_model(base_dir: Path) -> Any:
    return load_base(identify(base_dir), precision="auto", device=CPU)


def test_a_model_is_identified_by_what_it_computes_with(base_dir: Path, tmp_path: Path) -> None:
    """The same files elsewhere are the same model; another weight or configuration is another one; a README is not."""
    copy = shutil.copytree(base_dir, tmp_path / "copy")
    (copy / "README.md").write_text("hello")
    changed = shutil.copytree(base_dir, tmp_path / "changed")
    config = json.loads((changed / "config.json").read_text())
    (changed / "config.json").write_text(json.dumps({**config, "rms_norm_eps": 1e-3}))

    digests = [identify(path).digest for path in (base_dir, copy, changed, tiny_model(tmp_path / "other", seed=1))]

    assert digests[0] == digests[1]
    assert len(set(digests)) == 3
    assert identify(copy).name == "copy"


def test_a_committed_model_is_identified_by_its_manifest(base_dir: Path, tmp_path: Path) -> None:
    """Wherever it lies; one that lacks a member is refused, by the quick look too."""
    base = commit_model(base_dir, tmp_path / "base")

    found = identify(base)
    (base / "generation_config.json").unlink()

    assert (found.name, found.digest) == ("tiny-llama", read_manifest(base).digest)
    for quick in (False, True):
        with pytest.raises(IntegrityError, match="generation_config"):
            identify(base, quick=quick)


@pytest.mark.parametrize(
    ("quick", "how"), [(True, "digest"), (False, "config.json, model.safetensors changed since it was read")]
)
def test_a_base_model_that_was_replaced_before_it_is_loaded_is_told(tmp_path: Path, quick: bool, how: str) -> None:
    """It is whole, and not the one whose digest stands in the lineage."""
    base = commit_model(tiny_model(tmp_path / "plain"), tmp_path / "base")
    looked_at = identify(base, quick=quick)
    shutil.rmtree(base)
    commit_model(tiny_model(tmp_path / "other", seed=1), base)

    with pytest.raises(Refused, match=f"is another base model now .{how}"):
        load_base(looked_at, precision="auto", device=CPU)


def test_a_base_model_that_is_replaced_while_it_is_loaded_is_told(
    base_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A plain directory as well, and whichever of the two models the library has read."""
    base = shutil.copytree(base_dir, tmp_path / "base")
    looked_at, real = identify(base), transformers.AutoModelForCausalLM.from_pretrained

    def replaced_meanwhile(*words: Any, **more: Any) -> Any:
        loaded = real(*words, **more)
        shutil.copy(base / "model.safetensors", base / "new")
        (base / "new").replace(base / "model.safetensors")
        return loaded

    monkeypatch.setattr(transformers.AutoModelForCausalLM, "from_pretrained", replaced_meanwhile)

    with pytest.raises(Refused, match=r"is another base model now .model\.safetensors changed"):
        load_base(looked_at, precision="auto", device=CPU)


def test_a_base_model_that_is_cut_before_it_is_loaded_is_told(base_dir: Path, tmp_path: Path) -> None:
    """It cannot be loaded, and was one when it was read: a download that writes over it is under way."""
    base = shutil.copytree(base_dir, tmp_path / "base")
    looked_at = identify(base)
    os.truncate(base / "model.safetensors", 1000)

    with pytest.raises(Refused, match=r"is another base model now .model\.safetensors changed since it was read"):
        load_base(looked_at, precision="auto", device=CPU)


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "generation_config.json"])
def test_a_flipped_bit_in_a_committed_model_is_named(base_dir: Path, tmp_path: Path, name: str) -> None:
    """Any file of the commit, whose digest would lie else: file and part, and how to mend it; sizes tell nothing."""
    base = commit_model(base_dir, tmp_path / "base")
    flip_bit(base / name, (base / name).stat().st_size // 2)

    with pytest.raises(IntegrityError) as damage:
        identify(base)

    assert damage.value.exit_code == 4
    assert f"{base / name}: bytes 0 to " in damage.value.message
    assert f"datakit sync --repair COPY {base}" in str(damage.value.hint)
    assert identify(base, quick=True).digest == read_manifest(base).digest


def test_what_is_no_model_is_refused(base_dir: Path, tmp_path: Path) -> None:
    """Missing, empty, and pickled weights: only safetensors are read."""
    pickled = shutil.copytree(base_dir, tmp_path / "pickled")
    (pickled / "model.safetensors").unlink()
    torch.save({}, pickled / "pytorch_model.bin")

    with pytest.raises(NotFound, match="no base model"):
        identify(tmp_path / "nowhere")
    with pytest.raises(InputError, match="no base model"):
        identify(pickled / "pytorch_model.bin")
    with pytest.raises(InputError, match=r"no config\.json"):
        identify(tmp_path)
    with pytest.raises(InputError, match="cannot be loaded"):
        base_model(pickled)


def test_the_first_values_of_an_adapter_follow_from_the_seed_alone(base_dir: Path) -> None:
    """Whatever was drawn before; another seed gives others; B starts at zero, so nothing changes at first."""
    adapters = []
    for seed in (0, 0, 1):
        torch.rand(3)
        adapters.append(trainable(attach_adapter(base_model(base_dir), Recipe(rank=4, seed=seed))))

    a_names = [name for name in adapters[0] if ".lora_A." in name]
    assert all(torch.equal(adapters[0][name], adapters[1][name]) for name in adapters[0])
    assert not any(torch.equal(adapters[0][name], adapters[2][name]) for name in a_names)
    assert not any(adapters[0][name].any() for name in adapters[0] if ".lora_B." in name)
    assert all(parameter.dtype == torch.float32 for parameter in adapters[0].values())


def test_what_trains_has_the_names_of_stock_peft(base_dir: Path) -> None:
    """Oracle: the keys and values of `peft.get_peft_model_state_dict`."""
    from peft import get_peft_model_state_dict

    model = attach_adapter(base_model(base_dir), RECIPE)

    stock = get_peft_model_state_dict(model)
    own = trainable(model)
    assert set(own) == set(stock)
    assert all(own[name] is stock[name] or torch.equal(own[name], stock[name]) for name in own)


def test_the_configuration_is_deterministic_and_names_no_path(base_dir: Path) -> None:
    """Two processes on two machines write the same bytes."""
    configs = {
        adapter_config(attach_adapter(base_model(base_dir), RECIPE), base_name="SmolLM2").decode() for _ in range(2)
    }

    (text,) = configs
    config = json.loads(text)
    assert config["base_model_name_or_path"] == "SmolLM2"
    assert config["target_modules"] == ["q_proj", "v_proj"]
    assert (config["r"], config["lora_alpha"], config["inference_mode"]) == (4, 16, True)
    assert str(base_dir) not in text


def test_the_loss_is_that_of_transformers(base_dir: Path, tokens_dir: Path) -> None:
    """Oracle: the model's own loss with labels and an attention mask, padding and all."""
    model = base_model(base_dir).eval()
    items = list(open_dataset(tokens_dir))[:6]
    batch = Collate(6)(items)
    (part,) = batch.passes
    # labels stand at their own position: the model shifts them itself
    labels = torch.full((6, part.ids.shape[1] + 1), IGNORED)
    labels[:, 1:] = part.targets
    ids = torch.nn.functional.pad(part.ids, (0, 1))
    ids[:, 1:] = torch.where(part.targets != IGNORED, part.targets, ids[:, 1:])

    with torch.no_grad():
        ours = loss_sum(model, part) / batch.supervised_tokens
        stock = model(input_ids=ids, labels=labels).loss

    assert float(ours) == pytest.approx(float(stock), abs=1e-6)


def test_a_model_that_cannot_choose_its_logits_has_the_same_loss(base_dir: Path, tokens_dir: Path) -> None:
    """Without `logits_to_keep` all logits are made and the same ones are used."""
    model = base_model(base_dir).eval()
    (part,) = Collate(6)(list(open_dataset(tokens_dir))[:6]).passes

    class Plain(torch.nn.Module):
        def forward(self, input_ids: torch.Tensor, use_cache: bool) -> Any:
            return model(input_ids=input_ids, use_cache=use_cache)

    with torch.no_grad():
        torch.testing.assert_close(loss_sum(Plain(), part), loss_sum(model, part))


def test_a_pass_without_a_target_has_no_loss(base_dir: Path) -> None:
    """One pass of a step may hold no supervised token; it adds nothing and breaks nothing."""
    from datakit.feed.dataset import Item
    from support.tiny import npy

    parts = {"ids.npy": memoryview(npy([1, 2], "<i4")), "mask.npy": memoryview(npy([0, 0], "|u1"))}
    (part,) = Collate(1)([Item(0, "k", parts)]).passes
    model = attach_adapter(base_model(base_dir), RECIPE)

    loss = loss_sum(model, part)
    loss.backward()

    assert float(loss.detach()) == 0


def test_exact_arithmetic_puts_everything_back() -> None:
    """Threads, determinism and torch's random state belong to the caller."""
    torch.manual_seed(7)
    before = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled(), torch.get_rng_state()

    with exact_arithmetic(threads=1):
        inside = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
        torch.manual_seed(8)

    assert inside == (1, True)
    assert (torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()) == before[:2]
    assert torch.equal(torch.get_rng_state(), before[2])


def test_seeds_for_different_purposes_differ() -> None:
    """And each fits what torch takes."""
    seeds = {derived_seed(0, "dropout", step, part) for step in range(50) for part in range(4)} | {
        derived_seed(0, "adapter")
    }

    assert len(seeds) == 201
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert derived_seed(0, "a", 11) != derived_seed(0, "a1", 1)


def test_auto_precision_is_what_suits_the_device() -> None:
    """fp32 on a CPU, bf16 on a GPU; what is named is used."""
    assert chosen_precision("auto", CPU) == "fp32"
    assert chosen_precision("auto", torch.device("cuda")) == "bf16"
    assert chosen_precision("bf16", CPU) == "bf16"


@pytest.mark.parametrize("library", ["transformers", "peft"])
def test_a_missing_library_says_which_extra_brings_it(
    base_dir: Path, library: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the door where it is needed, with the pip command."""
    model = base_model(base_dir)
    needs = {"transformers": lambda: base_model(base_dir), "peft": lambda: attach_adapter(model, RECIPE)}
    monkeypatch.setitem(sys.modules, library, None)

    with pytest.raises(MissingExtra, match=rf"{library} is not installed. pip install 'datakit\[train\]'"):
        needs[library]()


@pytest.mark.parametrize("library", ["torch", "safetensors.torch"])
def test_a_missing_torch_is_one_sentence_of_the_command(library: str) -> None:
    """`datakit train` on a machine without the extra ends with exit code 1 and the pip command, without a traceback."""
    code = (
        "import sys; sys.modules[sys.argv[1]] = None; from datakit.cli.main import main;"
        "sys.exit(main(['train', 'data', '--model', 'base', '--output', 'run']))"
    )

    out = subprocess.run(
        [sys.executable, "-c", code, library], capture_output=True, text=True, env=environment(), check=False
    )

    assert out.returncode == 1
    assert "pip install 'datakit[train]'" in out.stderr
    assert "Traceback" not in out.stderr
