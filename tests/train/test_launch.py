"""train/launch: one of several processes is refused, whoever started them; a process alone in a large grant is not."""

from __future__ import annotations

import pytest

from datakit.errors import UsageError
from datakit.train.launch import check_alone

SEVERAL = [
    {"WORLD_SIZE": "2"},
    {"WORLD_SIZE": "16", "RANK": "0"},
    {"LOCAL_WORLD_SIZE": "8"},
    {"WORLD_SIZE": "2 ", "RANK": "1"},
    {"WORLD_SIZE": "+2"},
    {"SLURM_STEP_NUM_TASKS": "2", "SLURM_NTASKS": "2", "SLURM_PROCID": "0", "SLURM_STEP_ID": "0"},
    {"OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_RANK": "0"},
    {"PMI_SIZE": "4", "PMI_RANK": "0"},
    {"MV2_COMM_WORLD_SIZE": "2", "MV2_COMM_WORLD_RANK": "1"},
]

ALONE: list[dict[str, str]] = [
    {},
    {"WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1", "RANK": "0"},
    {"WORLD_SIZE": ""},
    {"WORLD_SIZE": "9" * 5000},
    # also what people call the rank of their LoRA
    {"RANK": "16"},
    {"WORLD_SIZE": "many", "RANK": "\u00b2"},
    {"PMI_SIZE": "1", "OMPI_COMM_WORLD_SIZE": "1"},
    # what Slurm sets in a shell of salloc, in a script of sbatch, in a step of one task, and in salloc's own shell step
    {"SLURM_NTASKS": "4"},
    {"SLURM_NTASKS": "4", "SLURM_PROCID": "0", "SLURM_LOCALID": "0"},
    {"SLURM_NTASKS": "1", "SLURM_STEP_NUM_TASKS": "1", "SLURM_PROCID": "0", "SLURM_STEP_ID": "0"},
    {"SLURM_NTASKS": "4", "SLURM_STEP_NUM_TASKS": "4", "SLURM_PROCID": "0", "SLURM_STEP_ID": "4294967290"},
]


@pytest.mark.parametrize("environ", SEVERAL, ids=lambda environ: next(iter(environ)))
def test_one_of_several_processes_is_refused(environ: dict[str, str]) -> None:
    """Each would train an adapter of its own; the sentence names the variable, and the way out."""
    name, number = next(iter(environ.items()))

    with pytest.raises(UsageError, match=f"{name} is {int(number)}, but a training is one process") as caught:
        check_alone(environ)

    assert str(caught.value.hint).endswith(f"unset {name}")
    assert caught.value.subject == name


@pytest.mark.parametrize("environ", ALONE, ids=lambda environ: " ".join(environ) or "nothing")
def test_a_process_alone_is_not_refused(environ: dict[str, str]) -> None:
    """Also where a scheduler grants more tasks than it started."""
    check_alone(environ)
