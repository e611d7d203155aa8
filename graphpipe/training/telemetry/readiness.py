"""What every rank is about to hold, against what there is: known on all ranks before the first step."""

import socket
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from graphpipe.files.json_document import from_body, to_body
from graphpipe.plans import Plan
from graphpipe.run.comm.rank_placement import Placement, RankLayout, layout
from graphpipe.run.comm.world import World
from graphpipe.run.device.memory_usage import available_bytes
from graphpipe.units import format_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Readiness:
    """One rank before its first step."""

    layout: RankLayout
    place: str
    """What memory it shares with which other ranks: a host, or a GPU of one."""
    predicted_bytes: float | None
    """Of its devices at their peak; None where the plan was not predicted."""
    available_bytes: float
    """Of its place."""


def readiness(world: World, plan: Plan, placement: Placement) -> tuple[Readiness, ...]:
    """Return this for every rank; all ranks must call this."""
    own = {"place": _place(world.device), "available_bytes": available_bytes(world.device)}
    told = world.exchange(own)
    ready: list[Readiness] = []
    for hosted, rank in zip(layout(placement), told, strict=True):
        peaks = plan.prediction.peak_bytes if plan.prediction else None
        predicted = sum(peaks[device] for device in placement.devices(hosted.rank)) if peaks else None
        ready.append(from_body(Readiness, rank | {"layout": to_body(hosted), "predicted_bytes": predicted}, "rank"))
    return tuple(ready)


def shortages(ready: Sequence[Readiness]) -> list[str]:
    """Return a sentence for every place whose ranks are predicted to need more than is available."""
    found: list[str] = []
    for place in dict.fromkeys(rank.place for rank in ready):
        here = [rank for rank in ready if rank.place == place]
        wanted = sum(rank.predicted_bytes or 0.0 for rank in here)
        available = min(rank.available_bytes for rank in here)
        if wanted > available:
            numbers = ", ".join(str(rank.layout.rank) for rank in here)
            found.append(
                f"{place}: rank{'s' * (len(here) > 1)} {numbers} will need {format_bytes(wanted)}, "
                f"{format_bytes(available)} is available. "
                "Free memory, lower train.batch_size, or plan for more devices."
            )
    return found


def _place(device: torch.device) -> str:
    host = socket.gethostname()
    return f"{host} {device}" if device.type == "cuda" else host
