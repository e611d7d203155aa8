"""Which rank hosts which devices, and therefore which replicas of which stages."""

from dataclasses import dataclass

from graphpipe.errors import InvalidInput
from graphpipe.plans import Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaSlot:
    """One replica of a stage on one device, or the part of it that the device computes."""

    stage: int
    replica: int
    device: int
    position: int = 0
    """Of the device among those that share the replica."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankPlacement:
    """The rank of every device in use: one device per rank, or all of them on the only rank.

    With more ranks, those whose device hosts no stage only wait for the others.
    """

    plan: Plan
    size: int
    rank_of: dict[int, int]
    """The rank of each device."""

    @staticmethod
    def of(plan: Plan, size: int, used: tuple[int, ...] | None = None) -> "RankPlacement":
        """Place the plan's devices, or all those in `used`, on `size` ranks.

        If there are as many ranks as the cluster has devices, rank i is device i. Otherwise it is the i-th device in
        use, and the last ranks have no device.

        Raises:
            InvalidInput: the world has several ranks, but fewer than the plan has devices in use.
        """
        used = plan.used_devices if used is None else used
        if 1 < size < len(used):
            raise InvalidInput(
                f"the plan uses {len(used)} devices, the world has {size} ranks",
                where="world size",
                remedy=f"Start {len(used)} processes (torchrun --nproc-per-node {len(used)}), or one that runs all.",
            )
        if size == 1:
            rank_of = dict.fromkeys(used, 0)
        elif size == len(plan.cluster.devices):
            rank_of = {device: device for device in used}
        else:
            rank_of = {device: rank for rank, device in enumerate(used)}
        return RankPlacement(plan=plan, size=size, rank_of=rank_of)

    @property
    def idle(self) -> tuple[int, ...]:
        """The ranks that do not host a stage, ascending."""
        return tuple(sorted({*range(self.size)} - {*self.rank_of.values()}))

    def devices(self, rank: int) -> tuple[int, ...]:
        """Return the devices a rank hosts, ascending."""
        return tuple(device for device, host in self.rank_of.items() if host == rank)

    def slots(self, rank: int) -> tuple[ReplicaSlot, ...]:
        """Return the replicas that a rank hosts, by stage, then replica. A single rank computes whole replicas."""
        return tuple(
            ReplicaSlot(stage=number, replica=replica, device=device, position=position)
            for number, stage in enumerate(self.plan.stages)
            for replica, devices in enumerate(stage.replicas)
            for position, device in enumerate(devices)
            if self.rank_of[device] == rank and (self.size > 1 or not position)
        )

    def ranks(self, stage: int, position: int = 0) -> tuple[int, ...]:
        """Return the rank of each replica of a stage, in replica order.

        Args:
            stage: its number.
            position: which of the ranks that share a replica.
        """
        return tuple(self.rank_of[device] for device in self.plan.stages[stage].peers[position])

    def team(self, stage: int, replica: int) -> tuple[int, ...]:
        """Return the ranks that share a replica, by position: one, if they do not."""
        return tuple(self.rank_of[device] for device in self.plan.stages[stage].replicas[replica])

    def all_ranks(self, stage: int) -> tuple[int, ...]:
        """Return the rank of each device of a stage."""
        return tuple(self.rank_of[device] for device in self.plan.stages[stage].devices)

    def slot(self, stage: int, rank: int) -> ReplicaSlot | None:
        """Return the first replica of a stage that a rank hosts; None if there is none."""
        return next((slot for slot in self.slots(rank) if slot.stage == stage), None)

    def position(self, stage: int, rank: int) -> int:
        """Return the position of a rank among those that share a replica of a stage; 0 if it does not host any."""
        slot = self.slot(stage, rank)
        return slot.position if slot else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaLayout:
    """A stage replica, as the start-up banner shows it."""

    stage: str
    device: str
    replica: int
    degree: int
    micro_batch: int
    """Samples of one micro-batch over all replicas."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankLayout:
    """What one rank hosts, as the start-up banner shows it."""

    rank: int
    replicas: tuple[ReplicaLayout, ...]


def layout(placement: RankPlacement) -> tuple[RankLayout, ...]:
    """Return what every rank hosts."""
    plan = placement.plan

    def show(slot: ReplicaSlot) -> ReplicaLayout:
        stage = plan.stages[slot.stage]
        return ReplicaLayout(
            stage=stage.name,
            device=plan.cluster.devices[slot.device].name,
            replica=slot.replica,
            degree=stage.degree,
            micro_batch=stage.micro_batch,
        )

    return tuple(
        RankLayout(rank=rank, replicas=tuple(show(slot) for slot in placement.slots(rank)))
        for rank in range(placement.size)
    )
