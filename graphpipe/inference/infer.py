"""Answers all requests of a file or function, and writes the answers to one file."""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from graphpipe.inference.answer_files import write_answers
from graphpipe.inference.answer_locally import answer_locally
from graphpipe.inference.answer_rank import title
from graphpipe.inference.answer_under_torchrun import answer_under_torchrun
from graphpipe.inference.job import InferenceJob
from graphpipe.inference.journal import read_answers
from graphpipe.inference.prepare import PlanSource, prepare
from graphpipe.plans import Plan
from graphpipe.plans.estimates import period_seconds
from graphpipe.torchrun import under_torchrun


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedRequest:
    """A sample that has no answer."""

    request: int
    """Number of the request, from 0."""
    sample: int
    """Position of the sample in the request; 0 if the request could not be read."""
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class InferenceResult:
    """The figures of a job that has ended, under the names that `--json` prints."""

    output: str
    """The file of answers."""
    requests: int
    samples: int
    """Number of samples, with an answer or without."""
    failed: tuple[FailedRequest, ...]
    start_seconds: float | None
    """Seconds before the first request: to plan, and to start the ranks. None if the answers of an interrupted command
    were continued."""
    seconds: float
    """Seconds from the first request to the last answer, without the start of the ranks."""
    samples_per_second: float
    samples_per_second_predicted: float
    """Samples per second of a full pipeline, by the plan that ended the job."""
    devices: tuple[str, ...]
    """Number of devices that this plan uses."""


def infer(
    job: InferenceJob,
    source: PlanSource,
    *,
    elastic: bool = False,
    resume: bool = False,
    tell: Callable[[str], None] = lambda line: None,
    on_plan: Callable[[Plan], None] = lambda plan: None,
) -> InferenceResult | None:
    """Answer every request in order, and write the file of answers.

    Args:
        job: the model, the requests and the file.
        source: of the plan.
        elastic: when a rank is lost, plan again for the devices that are left.
        resume: answer what an interrupted command has not answered.
        tell: called with lines about the progress.
        on_plan: called with the first plan.

    Returns:
        The result. Under torchrun, None on the ranks that do not write the answers.

    Raises:
        Infeasible: no plan fits in memory.
        InvalidInput: the model, the plan, the requests or the file of answers cannot be used.
        RankFailed: a rank failed. The answers so far are in the journal.
    """
    began = time.perf_counter()
    prepare_here = partial(prepare, job, source, resume=resume)
    if under_torchrun():
        again = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0
        prepare_here = partial(prepare, job, source, resume=resume or again)
        plan, answers = answer_under_torchrun(job, prepare_here, elastic=elastic)
        return _finish(job, plan, None if resume or again else began) if answers else None
    prepared = prepare_here()
    on_plan(prepared.plan)
    plan = answer_locally(job, prepared, elastic=elastic, tell=tell)
    return _finish(job, plan, None if resume else began)


def _finish(job: InferenceJob, plan: Plan, began: float | None) -> InferenceResult:
    # `began`: the moment of the call, if all answers are of it.
    ended, name = time.perf_counter(), title(job, plan)
    write_answers(job.output_path, lambda: read_answers(job.journal_path, name))
    requests = samples = 0
    seconds, failed = 0.0, list[FailedRequest]()
    for number, answer in enumerate(read_answers(job.journal_path, name)):
        requests, samples, seconds = number + 1, samples + answer.samples, seconds + answer.seconds
        failed += [FailedRequest(request=number, sample=it.sample, reason=it.reason) for it in answer.failed]
    job.journal_path.unlink()
    return InferenceResult(
        output=job.output,
        requests=requests,
        samples=samples,
        failed=tuple(failed),
        start_seconds=None if began is None else max(0.0, ended - began - seconds),
        seconds=seconds,
        samples_per_second=samples / seconds if seconds else 0.0,
        samples_per_second_predicted=plan.batch_size / period_seconds(plan),
        devices=tuple(plan.cluster.devices[device].name for device in plan.used_devices),
    )
