"""The table at the start of a training: what each rank does, and whether it fits in memory."""

import socket
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from rich import box
from rich.console import Console
from rich.table import Table

from graphpipe.devices.registry import kind_of
from graphpipe.files.json_body import from_body, to_body
from graphpipe.plans import Plan
from graphpipe.run.comm.rank_placement import RankLayout, RankPlacement, ReplicaLayout, layout
from graphpipe.run.comm.world import World
from graphpipe.units import format_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Readiness:
    """One rank before its first step."""

    layout: RankLayout
    place: str
    """The memory that it uses, which other ranks may share: a host, or a GPU of a host."""
    predicted_bytes: float | None
    """Predicted peak of its devices. None if the plan has no prediction."""
    available_bytes: float
    """Free memory of its place."""


def readiness(world: World, plan: Plan) -> tuple[Readiness, ...]:
    """Return the readiness of every rank. Every rank calls this."""
    own = {"place": _place(world.device), "available_bytes": world.kind.available_bytes(world.device)}
    of_ranks = world.exchange(own)
    placement = RankPlacement.of(plan, world.size)
    ready: list[Readiness] = []
    for hosted, rank in zip(layout(placement), of_ranks, strict=True):
        peaks = plan.prediction.peak_bytes if plan.prediction else None
        predicted = sum(peaks[device] for device in placement.devices(hosted.rank)) if peaks else None
        ready.append(from_body(Readiness, rank | {"layout": to_body(hosted), "predicted_bytes": predicted}, "rank"))
    return tuple(ready)


def compilation_line(compilations: Mapping[str, int]) -> str:
    """Return how often rank 0 compiled each region."""
    counts = ", ".join(f"{name} {count} time{'s' * (count > 1)}" for name, count in compilations.items())
    return f"compiled on rank 0: {counts}"


def shortages(ready: Sequence[Readiness]) -> list[str]:
    """Return a sentence for every place whose ranks need more memory, by the prediction, than is available."""
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
    return f"{host} {device}" if not kind_of(device).on_host else host


WIDTH = 160
"""Width of the table if there is no terminal."""


def show_banner(ready: Sequence[Readiness]) -> None:
    """Print a row per rank on standard error, and a warning for every place that has too little memory."""
    console = Console(stderr=True, width=None if sys.stderr.isatty() else WIDTH)
    console.print(_table(ready), highlight=False, markup=False)
    for sentence in shortages(ready):
        console.print(f"warning: {sentence}", style="yellow", highlight=False, markup=False, soft_wrap=True)


def _table(ready: Sequence[Readiness]) -> Table:
    table = Table(title="Ranks", title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False)
    for heading in ("rank", "place", "device", "stages", "micro-batch"):
        table.add_column(heading)
    table.add_column("memory predicted", justify="right")
    table.add_column("available", justify="right")
    for rank in ready:
        replicas = rank.layout.replicas
        predicted = rank.predicted_bytes
        table.add_row(
            str(rank.layout.rank),
            rank.place,
            ", ".join(dict.fromkeys(replica.device for replica in replicas)),
            ", ".join(map(_stage, replicas)),
            ", ".join(map(_micro_batch, replicas)),
            "-" if predicted is None else format_bytes(predicted),
            format_bytes(rank.available_bytes),
        )
    return table


def _stage(replica: ReplicaLayout) -> str:
    return (
        f"{replica.stage} (replica {replica.replica + 1} of {replica.degree})" if replica.degree > 1 else replica.stage
    )


def _micro_batch(replica: ReplicaLayout) -> str:
    return f"{replica.micro_batch} / {replica.degree}" if replica.degree > 1 else str(replica.micro_batch)
