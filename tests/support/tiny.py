"""Tiny datasets, a tiny model and a tiny recipe: real formats, milliseconds."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from datakit.data.builder import ShardBuilder
from datakit.data.index import Index, index_name
from datakit.data.manifest import Contents, Manifest, ShardEntry, content_digest, content_term, layout_digest
from datakit.data.shard import Sample
from datakit.storage.commit import commit, read_manifest

VOCABULARY = 96


def write_dataset(
    path: Path, samples: Sequence[Sample], *, per_shard: int = 7, pack: Mapping[str, Any] | None = None
) -> Manifest:
    """Commit samples as a dataset, so many to a shard, in the order given."""
    entries, digests, terms = [], [], []
    parts: dict[str, int] = {}
    with commit(path, kind="dataset", name=path.name) as staging:
        for number, start in enumerate(range(0, len(samples), per_shard)):
            data = bytearray()
            builder = ShardBuilder(data.extend)
            for sample in samples[start : start + per_shard]:
                builder.add(sample)
            rows = builder.finish()
            shard = f"{path.name}-{number:08x}.tar"
            entry = staging.write(shard, bytes(data))
            staging.write(index_name(shard), Index.from_rows(rows).to_bytes())
            entries.append(ShardEntry(shard, len(rows), index_name(shard)))
            digests.append((shard, entry.sha256, len(rows)))
            terms += [content_term(row.key, row.digest) for row in rows]
            for row in rows:
                for part in row.parts:
                    parts[part] = parts.get(part, 0) + 1
        staging.about = Contents(
            content_digest=content_digest(terms),
            layout_digest=layout_digest(digests),
            samples=len(samples),
            payload_bytes=sum(len(data) for sample in samples for data in sample.parts.values()),
            parts=parts,
            shards=tuple(entries),
            pack=dict(pack or {"algorithm": 1}),
            tokens=sum(sample.tokens or 0 for sample in samples) or None,
        ).to_about()
    return read_manifest(path)


def text_samples(count: int, *, prefix: str = "s") -> list[Sample]:
    """Samples with a part `json` and, for every third one, a part `txt`."""
    return [
        Sample(
            f"{prefix}{number:05d}",
            {"json": b'{"n": %d}' % number, **({"txt": b"t" * (number % 11)} if number % 3 == 0 else {})},
        )
        for number in range(count)
    ]


def npy(values: Sequence[int], dtype: str) -> bytes:
    """An npy file."""
    file = io.BytesIO()
    np.save(file, np.array(values, dtype))
    return file.getvalue()


def commit_model(source: Path, path: Path) -> Path:
    """The files of a model as the commit `tiny-llama` at `path`."""
    with commit(path, kind="model", name="tiny-llama") as staging:
        for file in sorted(source.iterdir()):
            staging.write(file.name, file.read_bytes())
    return path


def token_sample(key: str, ids: Sequence[int], mask: Sequence[int]) -> Sample:
    """A tokenized sample."""
    return Sample(key, {"ids.npy": npy(ids, "<i4"), "mask.npy": npy(mask, "|u1")}, tokens=len(ids))


def token_samples(count: int, *, seed: int = 0) -> list[Sample]:
    """Tokenized samples of 6 to 20 tokens that can be learned: each token follows from the one before."""
    random = np.random.default_rng(seed)
    samples = []
    for number in range(count):
        length = int(random.integers(6, 21))
        ids = (int(random.integers(2, VOCABULARY)) + 5 * np.arange(length)) % VOCABULARY
        asked = int(random.integers(2, length - 2))
        samples.append(token_sample(f"t{number:05d}", ids.tolist(), [0] * asked + [1] * (length - asked)))
    return samples


def tiny_model(path: Path, *, seed: int = 0) -> Path:
    """Save a 2-layer Llama with random weights."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=VOCABULARY,
        max_position_embeddings=128,
        initializer_range=0.2,  # large enough that attention alone can move the loss
        bos_token_id=0,
        eos_token_id=1,
    )
    torch.manual_seed(seed)
    LlamaForCausalLM(config).save_pretrained(path)
    return path
