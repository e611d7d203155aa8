"""Answers as one of the ranks that torchrun has started: rank 0 prepares the job, then all ranks answer."""

import os
import socket
from collections.abc import Callable
from typing import Any

from graphpipe.errors import GraphPipeError
from graphpipe.files.json_body import from_body, to_body
from graphpipe.inference.answer_rank import answer_on_rank
from graphpipe.inference.job import InferenceJob
from graphpipe.inference.prepare import PreparedJob, replan
from graphpipe.model.capture.capture import Captured
from graphpipe.plans import Plan
from graphpipe.run.comm.collective_calls import wait_for_ranks
from graphpipe.run.comm.world import join
from graphpipe.training.elastic.membership import devices_of
from graphpipe.training.train_under_torchrun import NotPrepared


def answer_under_torchrun(
    job: InferenceJob, prepare_here: Callable[[], PreparedJob], *, elastic: bool
) -> tuple[Plan, bool]:
    """Answer on this rank, and return the plan and whether the answers are written here.

    The journal and the answers lie on a file system that all hosts share. If torchrun restarts the ranks after a loss,
    they continue with the journal. With `elastic` rank 0 then plans for the hosts that have joined.

    Args:
        job: what to answer.
        prepare_here: makes the plan; called on rank 0.
        elastic: the plan is for the hosts that have joined.

    Raises:
        NotPrepared: rank 0 could not prepare the job, and raises the error itself.
        PeerLost, PeerStalled: another rank is gone.
    """
    problems: list[GraphPipeError] = []
    kept: list[Captured] = []
    world = join(None, job.timeout_seconds)
    with world.closing_on_error():
        hosts: list[str] = world.exchange(f"{socket.gethostname()}/{os.environ.get('GROUP_RANK', '0')}")

        def work() -> dict[str, Any] | None:
            if world.rank:
                return None
            try:
                prepared = prepare_here()
                kept.append(prepared.captured)
                return to_body(_for_hosts(prepared.plan, hosts, job) if elastic else prepared.plan)
            except GraphPipeError as error:
                problems.append(error)
                return None

        body = wait_for_ranks(world, work)[0]
        for problem in problems:
            raise problem
        if body is None:
            raise NotPrepared("rank 0 could not prepare the job", remedy="Look at rank 0's own message.")
        plan = from_body(Plan, body, "the plan of rank 0")
        answers = answer_on_rank(job, plan, kept[0] if kept else None)
        world.leave()
    return plan, answers


def _for_hosts(plan: Plan, hosts: list[str], job: InferenceJob) -> Plan:
    cluster = devices_of(hosts, plan.cluster)
    return plan if cluster == plan.cluster else replan(plan, cluster, job)
