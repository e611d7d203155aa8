"""The files by which ranks that have lost a peer and their launcher agree how to go on.

    ranks                                              launcher
    each writes `steps-P` before its first step
    process 1 dies; its peers close their connections
    each writes `left-P.json` with the steps it has done
    each waits                                         process 1 has ended, and all others have left at the same step
                                                       writes `word.json`: the new rank of every process, or to end
    each joins the others anew, with its new rank

P is the number of a process, which stays, while ranks are counted anew. Every generation of ranks has a folder, where
its ranks also write their statuses.
"""

import json
import os
import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from graphpipe.files.text_file import write_text
from graphpipe.run.faults.rank_status import STATUS_FOLDER

REGROUPS = "GRAPHPIPE_REGROUPS"
"""The environment variable that is 1 if the launcher regroups its ranks."""
POLL_SECONDS = 0.01
PATIENCE_SECONDS = 120.0
"""How long a rank waits for the word. The launcher decides within less."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Word:
    """What the launcher says to ranks that wait."""

    ranks: Mapping[int, int]
    """The rank of each process in the next generation. Empty: the ranks must end."""
    port: int = 0
    """The port where the ranks meet."""
    folder: str = ""
    """The folder of the next generation."""


@dataclass(frozen=True, slots=True)
class RegroupFiles:
    """The files of one generation. Each is complete as soon as it has its name."""

    folder: Path

    def training(self, process: int) -> Path:
        """Return the file that exists while a process is in its training steps, and would leave after a loss."""
        return self.folder / f"steps-{process}"

    def left(self, process: int) -> Path:
        """Return the file that a process writes when it has left."""
        return self.folder / f"left-{process}.json"

    def steps(self) -> dict[int, int]:
        """Return the steps that processes have done, by process, of those that have left."""
        files = [*self.folder.glob("left-*.json")]
        return {int(path.stem.removeprefix("left-")): int(json.loads(path.read_text())["steps"]) for path in files}

    @property
    def word(self) -> Path:
        """The file with the launcher's word."""
        return self.folder / "word.json"

    def give_word(self, word: Word) -> None:
        """Tell all ranks that wait."""
        ranks = {str(process): rank for process, rank in word.ranks.items()}
        write_text(self.word, json.dumps({"ranks": ranks, "port": word.port, "folder": word.folder}))

    def read_word(self) -> Word | None:
        """Return the launcher's word, if it has been given."""
        if not self.word.exists():
            return None
        body = json.loads(self.word.read_text())
        ranks = {int(process): int(rank) for process, rank in body["ranks"].items()}
        return Word(ranks=ranks, port=int(body["port"]), folder=str(body["folder"]))


@dataclass(frozen=True, slots=True, kw_only=True)
class Regrouping:
    """A rank's side: it leaves after a loss, and waits for the launcher's word."""

    process: int

    @staticmethod
    def here() -> "Regrouping | None":
        """Return the side of this process. None: its launcher does not regroup."""
        if os.environ.get(REGROUPS) != "1" or STATUS_FOLDER not in os.environ:
            return None
        return Regrouping(process=int(os.environ["LOCAL_RANK"]))

    @property
    def files(self) -> RegroupFiles:
        """The files of the present generation."""
        return RegroupFiles(Path(os.environ[STATUS_FOLDER]))

    @contextmanager
    def in_training(self) -> Generator[None]:
        """Tell the launcher that this rank would leave after a loss, until the block ends without an error."""
        self.files.training(self.process).touch()
        yield
        self.stay()

    def stay(self) -> None:
        """Tell the launcher that this rank would not leave."""
        self.files.training(self.process).unlink(missing_ok=True)

    def leave(self, steps: int) -> bool:
        """Say that this rank has left, and wait for the launcher's word.

        Args:
            steps: done by this rank.

        Returns:
            True if it goes on. The environment then describes its next world, as torchrun would. False if it must end,
            or if the launcher says nothing.
        """
        files = self.files
        write_text(files.left(self.process), json.dumps({"steps": steps}))
        end = time.monotonic() + PATIENCE_SECONDS
        while (word := files.read_word()) is None:
            if time.monotonic() > end:
                return False
            time.sleep(POLL_SECONDS)
        if self.process not in word.ranks:
            return False
        os.environ.update(
            {
                "RANK": str(word.ranks[self.process]),
                "WORLD_SIZE": str(len(word.ranks)),
                "LOCAL_WORLD_SIZE": str(len(word.ranks)),
                "MASTER_PORT": str(word.port),
                STATUS_FOLDER: word.folder,
            }
        )
        return True
