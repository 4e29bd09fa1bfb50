"""A checkout of the pipeline for tests: the real stages on a tiny random model and a few records.

Only two things differ from a user's: `pipelines/base_model.py` makes a model with random weights, and data/raw holds
records of the test. Both stand where a user may put their own.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from support.cli import environment

ROOT = Path(__file__).resolve().parents[2]

PARAMS = """\
pack:
  shard_size: 6KiB
  splits: {train: 80, held-out: 20}
tokenize:
  seq_len: 64
train:
  steps: 6
  batch_size: 2
  learning_rate: 1e-2
  warmup_steps: 1
  save_every_steps: 2
  threads: 1
"""

BASE_MODEL = '''\
"""A 2-layer Llama with random weights and a byte tokenizer, as the commit that the real script would make."""

from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from datakit.storage.commit import commit
from datakit.storage.disk import hash_file

TEMPLATE = (
    "{% for m in messages %}<|start|>{{ m['role'] }}\\n{{ m['content'] }}<|end|>\\n{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant\\n{% endif %}"
)
SPECIAL = ["<|start|>", "<|end|>"]

Path("models").mkdir(exist_ok=True)
vocabulary = {token: i for i, token in enumerate(SPECIAL + sorted(pre_tokenizers.ByteLevel.alphabet()))}
tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
tokenizer.decoder = decoders.ByteLevel()
marks = {"bos_token": "<|start|>", "eos_token": "<|end|>", "pad_token": "<|end|>"}
fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, **marks)
fast.chat_template = TEMPLATE
config = LlamaConfig(
    hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
    vocab_size=len(vocabulary), max_position_embeddings=256, initializer_range=0.2, bos_token_id=0, eos_token_id=1,
)
torch.manual_seed(0)
with commit(Path("models/base"), kind="model", name="tiny") as staging:
    LlamaForCausalLM(config).save_pretrained(staging.path)
    fast.save_pretrained(staging.path)
    for path in sorted(staging.path.iterdir()):
        staging.adopt(hash_file(path))
'''


def make_checkout(path: Path, *, records: int = 150) -> Path:
    """Lay out a checkout without git, ready for its first demo."""
    shutil.copytree(ROOT / "pipelines", path / "pipelines", ignore=shutil.ignore_patterns("__pycache__"))
    (path / ".dvc").mkdir()
    for name in ("dvc.yaml", ".dvcignore", ".dvc/config"):
        shutil.copy(ROOT / name, path / name)
    (path / "params.yaml").write_text(PARAMS)
    (path / "pipelines" / "base_model.py").write_text(BASE_MODEL)
    raw = path / "data" / "raw"
    raw.mkdir(parents=True)
    for topic in range(3):
        lines = [json.dumps(record(topic, number)) for number in range(records // 3)]
        (raw / f"topic-{topic}.jsonl").write_text("".join(f"{line}\n" for line in lines))
    return path


def record(topic: int, number: int) -> dict[str, object]:
    """A conversation whose answer follows from its question."""
    messages = [
        {"role": "user", "content": f"{number}+{topic}?"},
        {"role": "assistant", "content": f"{number + topic}."},
    ]
    return {"id": f"topic-{topic}-{number:04d}", "messages": messages}


def demo_environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """What a demo needs to find: the installed commands, and nothing of this machine's settings."""
    return {**environment(), "PATH": f"{Path(sys.executable).parent}{os.pathsep}/usr/bin:/bin", **(extra or {})}


def start_demo(checkout: Path, extra: Mapping[str, str] | None = None) -> subprocess.Popen[str]:
    """Start the demo of a checkout; stdout and stderr come together."""
    return subprocess.Popen(
        [sys.executable, "pipelines/demo.py"],
        cwd=checkout,
        env=demo_environment(extra),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def run_demo(checkout: Path, extra: Mapping[str, str] | None = None) -> str:
    """Run the demo of a checkout to its good end; what it said."""
    with start_demo(checkout, extra) as process:
        said, _ = process.communicate()
    assert process.returncode == 0, said
    return said


def stages_run(said: str) -> list[str]:
    """The stages that DVC ran, in order; `scan`, which always runs, left out."""
    names = [line.split("'")[1] for line in said.splitlines() if line.startswith("Running stage")]
    return [name for name in names if name != "scan"]


def adapter_bytes(checkout: Path) -> dict[str, bytes]:
    """Every file of the adapter."""
    return {path.name: path.read_bytes() for path in sorted((checkout / "models" / "adapter").iterdir())}
