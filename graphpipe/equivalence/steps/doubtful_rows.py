"""Which samples a check trains: those that come out otherwise alone than among all.

A forward may branch on all samples of a call, as in `if x.max() > 3`. A few samples at random often answer alike, and
show no difference. So the forward is computed of more samples, together and one by one. If some differ, and others do
not, the check trains one of either kind, each of them in micro-batches of its own:

    more samples      0 1 2 3 4 5 6 7     alone, 2 and 5 are others than together
    what is trained   2 2 | 0 0           together, one of the two is not what it is alone
"""

import time
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from graphpipe.equivalence.steps.check_subject import CheckSubject, seed_all
from graphpipe.equivalence.steps.own_values import own_values
from graphpipe.equivalence.steps.plain_step import outputs_of, without_compiled
from graphpipe.equivalence.steps.step_record import StepRecord
from graphpipe.run.device.fixed_draws import FixedDraws

MOST = 16
"""Samples that are looked at."""
ROWS = "rows"
"""The name under which the record has the numbers of the samples."""
_SECONDS = 0.5
"""For the forwards. Fewer samples are looked at where they take longer."""
_APART = 1e-9
"""Relative differences below this are rounding in double precision."""


def doubtful_rows(subject: CheckSubject) -> StepRecord:
    """Return a record whose only value is which samples to train.

    Args:
        subject: with as many samples as its plan takes, or more. Its forward is computed in double precision.
    """
    given, wanted = subject.in_precision(), subject.plan.batch_size
    differs: list[bool] = []
    with own_values(given.modules, given.tensors, double=True), without_compiled(), torch.no_grad():
        _outputs(given, [0])  # which makes what later calls keep
        start = time.perf_counter()
        first = _outputs(given, [0])
        seconds = time.perf_counter() - start
        samples = min(len(next(iter(given.inputs.values()))), int(_SECONDS / (2 * seconds)))
        if samples >= wanted:
            together = _outputs(given, range(samples))
            alone = [first, *(_outputs(given, [row]) for row in range(1, samples))]
            differs = [_differ(each, together, row) for row, each in enumerate(alone)]
    rows = torch.tensor(_chosen(differs, wanted))
    return StepRecord(loss=0.0, outputs={ROWS: rows}, gradients={}, others={}, buffers={}, parameters={})


def _outputs(subject: CheckSubject, rows: Sequence[int]) -> dict[str, Tensor]:
    part = replace(subject, targets=None).of_rows(rows)
    seed_all(subject.seed)
    with FixedDraws(double=True):
        return outputs_of(part.forward(), len(rows))


def _differ(alone: dict[str, Tensor], together: dict[str, Tensor], row: int) -> bool:
    for name in alone.keys() & together.keys():
        one, other = alone[name][0], together[name][row]
        if one.shape != other.shape:
            return False  # of a length that the forward finds in its samples
        if one.is_floating_point() and not torch.allclose(one, other, rtol=_APART, atol=_APART, equal_nan=True):
            return True
    return False


def _chosen(differs: Sequence[bool], wanted: int) -> list[int]:
    # The micro-batches of every stage divide one half of the samples. One half is a sample that differs, again and
    # again, and so the micro-batches there answer as it does alone. The other half is one that does not.
    if all(differs) or not any(differs):
        return [*range(wanted)]
    half = wanted // 2
    return [differs.index(True)] * half + [differs.index(False)] * (wanted - half)
