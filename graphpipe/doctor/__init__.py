"""Checks of the installation: `graphpipe doctor`.

Every module `check_*` checks one part of it, and returns a `Finding` (a fact, its status and a remedy) for each fact:
`check_machine` Python, cores, memory, disk and clock; `check_network` the local network; `check_extras` the optional
packages; `check_torch` torch and the GPUs; `check_links` their driver, links and networks; `check_ranks` whether ranks
can communicate and run the same versions. `first_minutes` lets a machine with GPUs measure, train and fail.
"""

from graphpipe.doctor.finding import Finding, Status

__all__ = ["Finding", "Status"]
