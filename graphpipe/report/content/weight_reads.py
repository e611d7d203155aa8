"""Which weights the tasks of a segment without flushes read."""

from graphpipe.plans import Plan
from graphpipe.schedule.segments.build_segment import build_unverified_segment
from graphpipe.schedule.segments.weight_versions import WeightRead, WeightReads, weight_reads
from graphpipe.trace import Trace


def weight_reads_of(plan: Plan | None, trace: Trace) -> WeightReads:
    """Return which weights the tasks of a trace read; nothing if the pipeline drains after every mini-batch."""
    if plan is None or plan.weights == "flush":
        return {}
    count = max(1, trace.batch_size // plan.batch_size)
    return weight_reads(plan, build_unverified_segment(plan, count))


def version_rows(plan: Plan, trace: Trace) -> list[tuple[str, int, str, str, int]]:
    """Return a row for each stage: its name, the mini-batch, what its forwards and backwards read, and the update.

    The mini-batch is the first in which every stage is as late as it gets, or the last one of a short segment.
    """
    reads, rows = weight_reads_of(plan, trace), list[tuple[str, int, str, str, int]]()
    mini_batch = max(0, trace.batch_size // plan.batch_size - 2)
    for number, stage in enumerate(plan.stages):
        micro_batches = plan.micro_batches(number)
        mine = range(mini_batch * micro_batches, (mini_batch + 1) * micro_batches)
        here = [(task, read) for task, read in reads.items() if task.stage == number and task.micro_batch in mine]
        forwards = _said([read for task, read in here if task.kind == "F"])
        backwards = _said([read for task, read in here if task.kind in ("B", "W")])
        rows.append((stage.name, mini_batch, forwards, backwards, mini_batch + 1))
    return rows


def _said(reads: list[WeightRead]) -> str:
    return ", ".join(dict.fromkeys(map(_words, sorted(reads))))


def _words(read: WeightRead) -> str:
    if not read.ahead:
        return f"{read.version}"
    return f"{read.version + read.ahead} from {read.version}"
