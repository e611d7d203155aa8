"""Answers on local processes, which this process starts. With `elastic`, a lost device only costs time.

launch on 3 devices    rank 1 dies; its peers notice, and the agent stops them
  the journal has the answers to the first 40 requests
plan for 2 devices     the costs are known already
launch on 2 devices    every rank skips 40 requests; the journal grows from there
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from graphpipe.errors import InvalidInput
from graphpipe.inference.answer_rank import CAPTURE, JOB, PLAN, title
from graphpipe.inference.job import InferenceJob
from graphpipe.inference.journal import count_answers
from graphpipe.inference.prepare import PreparedJob, replan
from graphpipe.launch.first_failure import RankFailed
from graphpipe.launch.launcher import launch
from graphpipe.model.capture_file.capture_file import save_capture
from graphpipe.plans import Plan
from graphpipe.run.faults.fault import parse_faults
from graphpipe.training.elastic.supervisor import UNRECOVERABLE
from graphpipe.training.elastic.visible_gpus import visible_gpus

RANK_ENTRY = "graphpipe.inference.answer_rank:answer_from_folder"
"""What every rank runs."""


def answer_locally(job: InferenceJob, prepared: PreparedJob, *, elastic: bool, tell: Callable[[str], None]) -> Plan:
    """Answer with one process per device of the plan, and return the plan that ended it.

    Args:
        job: what to answer.
        prepared: its plan.
        elastic: plan again for the devices that are left when a rank fails.
        tell: called with a line for each start and each loss.

    Raises:
        RankFailed: a rank failed, and this is not elastic; or the same failure came twice, or no device is left.
        Infeasible: no plan fits on the devices that are left.
        InvalidInput: a fault names a rank that does not exist.
    """
    plan, lost = prepared.plan, list[str]()
    for fault in parse_faults(job.faults):
        if fault.rank >= len(plan.used_devices):
            remedy = "Choose another rank."
            raise InvalidInput(f"the plan has {len(plan.used_devices)} ranks", where=f"fault '{fault}'", remedy=remedy)
    last: tuple[str, int] | None = None
    with TemporaryDirectory(prefix="graphpipe-infer") as name:
        folder = Path(name)
        job.save(folder / JOB)
        save_capture(prepared.captured, folder / CAPTURE)
        while True:
            plan.save(folder / PLAN)
            try:
                _start(folder, prepared.plan, plan, lost, job.timeout_seconds, tell)
                return plan
            except RankFailed as failure:
                done = count_answers(job.journal_path, title(job, plan))
                names = [_device(plan, rank) for rank in failure.failed]
                alike = (failure.what, done) == last
                left = len(prepared.plan.cluster.devices) - len({*lost, *names})
                if not elastic or failure.kind in UNRECOVERABLE or alike or not left:
                    raise
                last, lost = (failure.what, done), [*lost, *names]
                tell(f"{failure} Lost: {', '.join(names)}; {done} requests are answered: planning for {left} devices")
                plan = replan(prepared.plan, prepared.plan.cluster.without(lost), job)


def _device(plan: Plan, rank: int) -> str:
    return plan.cluster.devices[plan.used_devices[rank]].name


def _start(
    folder: Path, first: Plan, plan: Plan, lost: Sequence[str], seconds: float, tell: Callable[[str], None]
) -> None:
    names = [plan.cluster.devices[device].name for device in plan.used_devices]
    tell(f"answering on {len(names)} local {'process' if len(names) == 1 else 'processes'}")
    environment = visible_gpus(first.cluster, names) if lost else {}
    launch(RANK_ENTRY, len(names), arguments=[str(folder)], environment=environment, timeout_seconds=seconds)
