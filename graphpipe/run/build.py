"""From a plan to a worker: every replica of this rank made, placed and given the parameters of replica 0."""

from collections.abc import Sequence

from graphpipe.model.program import StageProgram
from graphpipe.plan import Plan
from graphpipe.run import share
from graphpipe.run.channels import Channels
from graphpipe.run.inbox import Inbox
from graphpipe.run.placement import Placement
from graphpipe.run.recorder import Recorder
from graphpipe.run.replica import StageReplica
from graphpipe.run.values import EdgeSpecs
from graphpipe.run.worker import Worker
from graphpipe.run.world import World


def build_worker(
    plan: Plan, programs: Sequence[StageProgram], specs: EdgeSpecs, placement: Placement, world: World, record: bool
) -> Worker:
    """Return this rank's worker; every rank must call this. A rank's first replica of a stage is the user's module."""
    replicas: dict[tuple[int, int], StageReplica] = {}
    leading: set[int] = set()
    for seat in placement.seats(world.rank):
        program = programs[seat.stage] if seat.stage not in leading else programs[seat.stage].replicate()
        leading.add(seat.stage)
        program.module.to(world.device)
        replicas[seat.stage, seat.device] = StageReplica(
            seat=seat,
            stage_name=plan.stages[seat.stage].name,
            program=program,
            device=world.device,
            inbox=Inbox(world.device),
        )
    worker = Worker(
        placement=placement,
        world=world,
        replicas=replicas,
        specs=specs,
        channels=Channels(world),
        recorder=Recorder(world=world, on=record),
    )
    _open_groups(plan, placement, world)
    for stage in range(len(plan.stages)):
        align(worker, stage, parameters=True)
    return worker


def align(worker: Worker, stage: int, *, parameters: bool) -> None:
    """Give all replicas of a stage the buffers (and parameters) of its replica 0."""
    ranks = worker.placement.ranks(stage)
    held = worker.of_stage(stage)
    if not held or len(ranks) == 1:
        return
    module = held[0].program.module
    if len(set(ranks)) > 1:
        share.broadcast(worker.world, share.state(module) if parameters else module.buffers(), ranks[0], ranks)
    for follower in held[1:]:
        share.copy(module, follower.program.module)


def _open_groups(plan: Plan, placement: Placement, world: World) -> None:
    for stage in range(len(plan.stages)):
        world.open_group(placement.ranks(stage))
