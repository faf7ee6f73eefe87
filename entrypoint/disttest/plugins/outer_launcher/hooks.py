"""Hides the variables by which launchers number their processes.

A test that reads them would act as a rank of that launcher's world and wait for the others
(https://github.com/pytorch/pytorch/issues/133119). Ranks get variables of their world.
"""

from __future__ import annotations

from collections.abc import Mapping

from disttest.hookspecs import hookimpl
from disttest.model import Frozen


class _Launcher(Frozen):
    name: str
    size: str
    """Variable with the number of its processes. With one process, the others are correct for a test process."""
    variables: tuple[str, ...]


_LAUNCHERS = (
    _Launcher(
        name="torchrun",
        size="WORLD_SIZE",
        variables=(
            *("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"),
            *("GROUP_RANK", "NODE_RANK", "GROUP_WORLD_SIZE", "ROLE_NAME", "ROLE_RANK", "ROLE_WORLD_SIZE"),
            *("TORCHELASTIC_RUN_ID", "TORCHELASTIC_USE_AGENT_STORE", "TORCHELASTIC_ERROR_FILE"),
            *("TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_MAX_RESTARTS"),
        ),
    ),
    _Launcher(
        name="srun",
        size="SLURM_NTASKS",
        variables=("SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID", "SLURM_NTASKS", "SLURM_NPROCS"),
    ),
    _Launcher(
        name="mpirun",
        size="OMPI_COMM_WORLD_SIZE",
        variables=tuple(
            f"OMPI_COMM_WORLD_{name}" for name in ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE", "NODE_RANK")
        ),
    ),
    _Launcher(
        name="mpiexec",
        size="PMI_SIZE",
        variables=("PMI_RANK", "PMI_SIZE", "PMI_LOCAL_RANK", "PMI_LOCAL_SIZE", "MPI_LOCALRANKID"),
    ),
)
_RANK = frozenset({"RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK"})


def find_outer_launchers(environ: Mapping[str, str]) -> dict[str, tuple[str, ...]]:
    """Find the launchers that started this process as one of several.

    Args:
        environ: environment of the command.

    Returns:
        Name of the launcher, mapped to its variables that are set.
    """
    found = {}
    for launcher in _LAUNCHERS:
        size = environ.get(launcher.size, "")
        names = tuple(name for name in launcher.variables if name in environ)
        # A size alone may be a parameter: torch's own tests read WORLD_SIZE.
        if size.isdecimal() and int(size) > 1 and _RANK.intersection(names):
            found[launcher.name] = names
    return found


@hookimpl
def disttest_hidden_variables(environ: Mapping[str, str]) -> Mapping[str, tuple[str, ...]]:
    """Return the variables by which torchrun, srun or mpirun number a rank."""
    return find_outer_launchers(environ)
