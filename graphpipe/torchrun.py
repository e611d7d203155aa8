"""What the environment says of this process as one of several ranks."""

import os

_LOCAL_RANKS = (
    "LOCAL_RANK",
    "SLURM_LOCALID",
    "OMPI_COMM_WORLD_LOCAL_RANK",
    "MV2_COMM_WORLD_LOCAL_RANK",
    "MPI_LOCALRANKID",
    "PALS_LOCAL_RANKID",
)
"""The number of a rank on its machine, as torchrun, Slurm's srun, Open MPI, MVAPICH, Intel MPI and PALS give it."""


def under_torchrun() -> bool:
    """Return whether this process is a rank that torchrun has started."""
    return "RANK" in os.environ and "WORLD_SIZE" in os.environ


def local_rank() -> int | None:
    """Return the number of this rank on its machine; None if nothing in the environment says it."""
    given = (os.environ.get(name, "") for name in _LOCAL_RANKS)
    return next((int(number) for number in given if number.isdecimal()), None)
