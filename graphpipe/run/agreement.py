"""One mini-batch, one meaning: all ranks were given inputs of the same shapes, or no message of the step is sent.

The comparison starts with the step and is settled at the rank's first message, so that it costs no time of its own.
"""

from dataclasses import dataclass
from hashlib import blake2b

import torch
import torch.distributed as dist
from torch import Tensor

from graphpipe.errors import InvalidInput
from graphpipe.run.world import World, translate_loss


@dataclass(slots=True, kw_only=True)
class Agreement:
    """A comparison under way."""

    world: World
    text: str
    """What must be the same on all ranks."""
    digests: Tensor
    """By rank."""
    work: dist.Work | None

    @staticmethod
    def begin(world: World, text: str) -> "Agreement":
        """Start to compare; every rank must call this."""
        digests = torch.zeros(world.size, dtype=torch.int64)
        digests[world.rank] = int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "little") >> 1
        digests = digests.to(world.device)
        work = None
        if world.everyone is not None:
            with translate_loss("another rank"):
                work = dist.all_reduce(digests, group=world.everyone, async_op=True)
        return Agreement(world=world, text=text, digests=digests, work=work)

    def settle(self) -> None:
        """Wait for the result.

        Raises:
            InvalidInput: on every rank, if they differ; names the first that does.
            PeerLost, PeerStalled: another rank is gone.
        """
        work, self.work = self.work, None
        if work is None:
            return
        with translate_loss("another rank"):
            work.wait()
        if len(set(self.digests.tolist())) == 1:
            return
        texts = self.world.exchange(self.text)
        rank = next(rank for rank, text in enumerate(texts) if text != texts[0])
        raise InvalidInput(
            f"rank {rank} was given {texts[rank]}; rank 0 was given {texts[0]}",
            where="mini-batch",
            remedy="Give every rank the whole mini-batch, the same everywhere; each takes the samples it needs.",
        )
