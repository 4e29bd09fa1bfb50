"""launch: whether this process was started alone, by what launchers of several processes leave in the environment.

A training is one process on one GPU: each of several would train an adapter of its own, into the same run. What a
launcher says of the processes it starts counts, and not what a scheduler grants: `salloc --ntasks 4` and a script of
`sbatch --ntasks 4` have SLURM_NTASKS and one process, and the script has SLURM_PROCID too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from datakit.errors import UsageError


@dataclass(frozen=True, slots=True)
class _Sign:
    """A variable that tells one of several processes.

    Attributes:
        variable: Its name.
        most: The largest number that a process alone has.
        launcher: Who sets it, for people.
    """

    variable: str
    most: int
    launcher: str


_SIGNS = (
    # PyTorch, "torchrun (Elastic Launch)", Environment Variables; accelerate and deepspeed set the same
    _Sign("WORLD_SIZE", 1, "torchrun"),
    _Sign("LOCAL_WORLD_SIZE", 1, "torchrun"),
    _Sign("RANK", 0, "torchrun"),
    # srun(1), Output Environment Variables: the number of processes in the job step
    _Sign("SLURM_STEP_NUM_TASKS", 1, "srun with several tasks"),
    # Open MPI 5.0, section 11.1, Environment variables set for MPI applications
    _Sign("OMPI_COMM_WORLD_SIZE", 1, "mpirun"),
    # MPICH's hydra and Intel MPI, which set it for their process manager's interface (PMI-1)
    _Sign("PMI_SIZE", 1, "mpiexec"),
)

_LAST_STEP = 0xFFFFFFF0
"""Above it are steps that srun did not start for a person, such as the shell of `salloc` (slurm/slurm.h)."""


def check_alone(environ: Mapping[str, str]) -> None:
    """See that this process is not one of several.

    Args:
        environ: The environment.

    Raises:
        UsageError: It is; names the variable that says so.
    """
    for sign in _SIGNS:
        number = _number(environ, sign.variable)
        if number <= sign.most or (
            sign.variable.startswith("SLURM_") and _number(environ, "SLURM_STEP_ID") > _LAST_STEP
        ):
            continue
        hint = f"Start datakit train by itself, without {sign.launcher}; or in one process alone: unset {sign.variable}"
        message = f"{sign.variable} is {number}, but a training is one process on one GPU"
        raise UsageError(message, hint=hint, subject=sign.variable)


def _number(environ: Mapping[str, str], variable: str) -> int:
    text = environ.get(variable, "")
    return int(text) if text.isascii() and text.isdigit() else 0
