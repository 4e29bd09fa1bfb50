"""launch: whether this process was started alone, by what launchers of several processes leave in the environment.

A training is one process on one GPU: each of several would train an adapter of its own, into the same run. What a
launcher says of the processes it starts counts, and not what a scheduler grants: `salloc --ntasks 4` and a script of
`sbatch --ntasks 4` have SLURM_NTASKS and one process, and the script has SLURM_PROCID too. A rank is no sign: it says
nothing without the number of processes, and RANK is also what people call that of their LoRA.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from datakit.errors import UsageError


@dataclass(frozen=True, slots=True)
class _Sign:
    """A variable that tells how many processes were started together.

    Attributes:
        variable: Its name.
        launcher: Who sets it, for people.
        step: The variable with the number of the job step that it speaks of, or None where there are no steps.
    """

    variable: str
    launcher: str
    step: str | None = None


_SIGNS = (
    # PyTorch, "torchrun (Elastic Launch)", Environment Variables; accelerate and deepspeed set the same
    _Sign("WORLD_SIZE", "torchrun"),
    _Sign("LOCAL_WORLD_SIZE", "torchrun"),
    # srun(1), Output Environment Variables: the number of processes in the job step
    _Sign("SLURM_STEP_NUM_TASKS", "srun with several tasks", step="SLURM_STEP_ID"),
    # Open MPI 5.0, section 11.1, Environment variables set for MPI applications
    _Sign("OMPI_COMM_WORLD_SIZE", "mpirun"),
    # MPICH's hydra and Intel MPI, which set it for their process manager's interface (PMI-1)
    _Sign("PMI_SIZE", "mpiexec"),
    # MVAPICH2's mpirun_rsh, in the name that accelerate reads too (`accelerate/state.py`)
    _Sign("MV2_COMM_WORLD_SIZE", "mpirun_rsh"),
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
        if number <= 1 or (sign.step is not None and _number(environ, sign.step) > _LAST_STEP):
            continue
        hint = f"Start datakit train by itself, without {sign.launcher}; or in one process alone: unset {sign.variable}"
        message = f"{sign.variable} is {number}, but a training is one process on one GPU"
        raise UsageError(message, hint=hint, subject=sign.variable)


def _number(environ: Mapping[str, str], variable: str) -> int:
    """A variable's number, as a program would read it; 0 where it has none."""
    try:
        return int(environ.get(variable, ""))
    except ValueError:  # also of more digits than Python reads
        return 0
