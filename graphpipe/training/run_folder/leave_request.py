"""The request to leave: at their next checkpoint the ranks end without an error, so that another plan can start."""

from dataclasses import dataclass

from graphpipe.run.comm.world import World
from graphpipe.training.run_folder.run_folder import RunFolder


@dataclass(frozen=True, slots=True)
class LeaveRequest:
    """The ranks' side of the request. The supervisor writes the file `RunFolder.leave_request`."""

    world: World
    folder: RunFolder

    def asked(self) -> bool:
        """Return True on every rank if the ranks should leave now. Every rank calls this after it began a checkpoint.

        Rank 0 removes the file.
        """
        request = self.folder.leave_request
        asked = bool(self.world.exchange(self.world.rank == 0 and request.exists())[0])
        if asked and self.world.rank == 0:
            request.unlink()
        return asked
