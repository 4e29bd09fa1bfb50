"""What the tests of the trainer share: one tiny dataset, one tiny model, one nursery."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.nursery import Nursery
from support.tiny import tiny_model, token_samples, write_dataset


@pytest.fixture(scope="session")
def tokens_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset of 13 tokenized samples: three steps of four to an epoch, one sample left out."""
    path = tmp_path_factory.mktemp("data") / "tokens"
    write_dataset(path, token_samples(13), per_shard=5)
    return path


@pytest.fixture(scope="session")
def base_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A 2-layer Llama with random weights."""
    return tiny_model(tmp_path_factory.mktemp("models") / "base")


@pytest.fixture(scope="session")
def nursery() -> Iterator[Nursery]:
    """The server that forks trainings."""
    with Nursery() as server:
        yield server
