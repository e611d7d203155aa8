"""Where everything is: which rank hosts which devices, and so which replicas of which stages."""

from dataclasses import dataclass

from graphpipe.errors import InvalidInput
from graphpipe.plans import Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class Seat:
    """One replica of a stage on one device."""

    stage: int
    replica: int
    device: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """The rank of every device in use: one device per rank, or all of them on the only rank."""

    plan: Plan
    size: int
    rank_of: dict[int, int]
    """Rank by device."""

    @staticmethod
    def of(plan: Plan, size: int) -> "Placement":
        """Place the plan's devices on `size` ranks.

        Raises:
            InvalidInput: neither one rank nor one per device in use.
        """
        used = plan.used_devices
        if size not in (1, len(used)):
            raise InvalidInput(
                f"the plan uses {len(used)} devices, the world has {size} ranks",
                where="world size",
                remedy=f"Start {len(used)} processes (torchrun --nproc-per-node {len(used)}), or one that runs all.",
            )
        return Placement(
            plan=plan, size=size, rank_of={device: 0 if size == 1 else rank for rank, device in enumerate(used)}
        )

    def devices(self, rank: int) -> tuple[int, ...]:
        """Return the devices a rank hosts, ascending."""
        return tuple(device for device, host in self.rank_of.items() if host == rank)

    def seats(self, rank: int) -> tuple[Seat, ...]:
        """Return what a rank hosts, by stage, then replica."""
        return tuple(
            Seat(stage=number, replica=replica, device=device)
            for number, stage in enumerate(self.plan.stages)
            for replica, device in enumerate(stage.devices)
            if self.rank_of[device] == rank
        )

    def ranks(self, stage: int) -> tuple[int, ...]:
        """Return the rank of each replica of a stage, in replica order."""
        return tuple(self.rank_of[device] for device in self.plan.stages[stage].devices)


@dataclass(frozen=True, slots=True, kw_only=True)
class SeatLayout:
    """A stage replica as a banner shows it."""

    stage: str
    device: str
    replica: int
    degree: int
    micro_batch: int
    """Samples over all replicas."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankLayout:
    """What one rank hosts, as a banner shows it."""

    rank: int
    seats: tuple[SeatLayout, ...]


def layout(placement: Placement) -> tuple[RankLayout, ...]:
    """Return what every rank hosts."""
    plan = placement.plan

    def show(seat: Seat) -> SeatLayout:
        stage = plan.stages[seat.stage]
        return SeatLayout(
            stage=stage.name,
            device=plan.cluster.devices[seat.device].name,
            replica=seat.replica,
            degree=stage.degree,
            micro_batch=stage.micro_batch,
        )

    return tuple(
        RankLayout(rank=rank, seats=tuple(show(seat) for seat in placement.seats(rank)))
        for rank in range(placement.size)
    )
