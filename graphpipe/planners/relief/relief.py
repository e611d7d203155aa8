"""Fit a stage into memory: what its operators keep, what they recompute, and what they offload.

Each operator is kept, recomputed or offloaded. With n samples in flight and micro-batches of m samples on each device,

    bytes     state + received n + sum of kept n + sum of offloaded min(n, 2 m) + largest recomputed m + temporary
    seconds   sum of recomputed forwards + max(0, 2 offloaded m / host bandwidth - window)

Among the choices whose bytes fit, one of the fewest seconds per micro-batch is wanted. DawnPiper takes the lowest cost
per byte freed until the stage fits. That can free too much, so here operators are decided one after the other, and only
those partial choices are kept that no other one beats in everything.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf

import numpy as np

from graphpipe.costs.cost_model import MOVING_MICRO_BATCHES
from graphpipe.planners.problem.limits import CHOICES, EXACT_OPS
from graphpipe.planners.relief.choices import KEEP, OFFLOAD, RECOMPUTE, Array, Choices, Indices, evenly
from graphpipe.planners.relief.least_relief import LeastRelief
from graphpipe.planners.relief.stage_ops import StageOps, copy_seconds
from graphpipe.planners.relief.submodules import fitted_submodules
from graphpipe.plans.device_memory import offloaded_bytes, stage_memory
from graphpipe.plans.plan import Plan
from graphpipe.plans.stage import Stage

_SHARE = 2
"""Partial choices that are kept of those that decide alike about the operators that later ones read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Relief:
    """Finds the decisions for one stage of a plan."""

    plan: Plan
    stage: Stage
    window_seconds: float
    """Seconds of a micro-batch's copies that cost no time."""
    offloads: bool = True
    """Whether operators may be offloaded."""
    most_offloaded: float = inf
    """The most bytes that may be offloaded."""
    most_seconds: float = inf
    """The most seconds per micro-batch: decisions that take longer are not looked for."""

    def fitted(self, capacity_bytes: float) -> Stage | None:
        """Return the stage with the decisions of fewest seconds that need at most so many bytes; None if none does."""
        kept = self.stage.keeping
        if self._bytes(kept) <= capacity_bytes:
            return kept
        full = replace(kept, recompute="full")
        stages = [full] if self._bytes(full) <= capacity_bytes else []
        least = min([self.most_seconds, *map(self.added_seconds, stages)])
        stages += self._by_submodule(capacity_bytes)
        least = min([least, *map(self.added_seconds, stages)])
        stages += self._searched(capacity_bytes, least)
        if len(self.stage.ops) <= EXACT_OPS and (
            least := min(map(self.added_seconds, stages), default=self.most_seconds)
        ):
            stages += self._searched(capacity_bytes, least, exact=True)
        return min(stages, key=self.added_seconds, default=None)

    def added_seconds(self, stage: Stage) -> float:
        """Return the seconds per micro-batch that the decisions of a stage take on its slowest device."""
        samples, model = stage.micro_batch / stage.degree, self.plan.cost_model
        tasks = model.tasks_seconds(stage.ops, stage.devices, samples, stage.recompute)
        plain = model.tasks_seconds(stage.ops, stage.devices, samples)
        again = max(task.backward - before.backward for task, before in zip(tasks, plain, strict=True))
        copied = 2 * stage_memory(model, stage).offloaded * samples
        return again + max(0.0, copied * copy_seconds(self.plan, stage) - self.window_seconds)

    def _by_submodule(self, capacity_bytes: float) -> list[Stage]:
        def recomputing(names: tuple[str, ...]) -> Stage:
            return replace(self.stage.keeping, recompute=names or "none")

        found = fitted_submodules(
            self.plan,
            self.stage.keeping,
            fits=lambda names: self._bytes(recomputing(names)) <= capacity_bytes,
            seconds_of=lambda names: self.added_seconds(recomputing(names)),
        )
        return [recomputing(names) for names in found]

    def _fits(self, stage: Stage, capacity_bytes: float) -> bool:
        return self._bytes(stage) <= capacity_bytes and offloaded_bytes(self.plan, stage) <= self.most_offloaded

    def _bytes(self, stage: Stage) -> float:
        return stage_memory(self.plan.cost_model, stage).total(stage.in_flight / stage.degree)

    def _decided(self, order: Sequence[str], decisions: Sequence[int]) -> Stage:
        named = list(zip(order, decisions, strict=True))
        again = tuple(name for name, decision in named if decision == RECOMPUTE)
        offload = tuple(name for name, decision in named if decision == OFFLOAD)
        to = self.stage.offload_to if offload else ()
        return replace(self.stage, recompute=again or "none", offload=offload, offload_to=to)

    def _searched(self, capacity_bytes: float, limit_seconds: float, *, exact: bool = False) -> list[Stage]:
        """Return the stage with the decisions of fewest seconds, if some that fit are found."""
        inside = frozenset(self.stage.ops)
        order = [name for name in self.plan.graph.order if name in inside]
        choices = self._choices(order, capacity_bytes, limit_seconds, exact=exact)
        for at in np.lexsort((choices.bytes, choices.copied, choices.seconds)):
            stage = self._decided(order, choices.decisions[at].tolist())
            if self._fits(stage, capacity_bytes):
                return [stage]
        return []

    def _choices(self, order: Sequence[str], capacity_bytes: float, limit_seconds: float, *, exact: bool) -> Choices:
        """Return the choices for all operators, of those that fit below the limit, that no other one beats.

        More of them are dropped if they need not be exact. So it pays to leave out those that cannot fit below the
        limit as early as a bound shows it: they would take the place of others.
        """
        limited = self.most_offloaded < inf
        ops = StageOps.of(self.plan, self.stage, order, self.window_seconds, offloads=self.offloads, limited=limited)
        memory = stage_memory(self.plan.cost_model, self.stage.keeping)
        limit = capacity_bytes - float(memory.total(ops.in_flight) - memory.saved * ops.in_flight)
        choices = Choices.before(len(order))
        for number, open_ops in enumerate(ops.open):
            choices = ops.grown(choices, number)
            spare = limit * (1 + 1e-9) - choices.bytes - choices.region
            fits = (spare >= 0) & (choices.seconds < limit_seconds) & (choices.offloaded <= self.most_offloaded)
            if limit_seconds < inf:
                fits &= self._least_seconds(ops, number, choices, spare) < limit_seconds
            choices = choices.only(fits)
            if not exact:
                choices = _fewer(ops, choices, open_ops, max(2 * _SHARE, CHOICES // len(order)))
        return choices

    def _least_seconds(self, ops: StageOps, number: int, choices: Choices, spare: Array) -> Array:
        """Return a lower bound of the seconds of all choices that continue each of these in so many spare bytes.

        Args:
            ops: of the stage.
            number: of the operator that was decided last.
            choices: for it and those before.
            spare: [choices]: bytes.
        """
        stays = min(ops.in_flight, MOVING_MICRO_BATCHES * ops.samples)
        frees = self.offloads and stays < ops.in_flight
        copies = 2 * ops.copy_seconds * ops.samples / (ops.in_flight - stays) if frees else inf
        after = slice(number + 1, None)
        rest = LeastRelief.of([count * ops.in_flight for count in ops.saved[after]], ops.forward[after], copies)
        undecided = choices.decisions[:, ops.open[number]]
        held = np.array([ops.saved[at] * ops.in_flight for at in ops.open[number]])
        offloaded = (undecided == OFFLOAD) @ held
        excess = rest.kept + (undecided == KEEP) @ held + offloaded - spare
        return choices.seconds + rest.seconds(excess, self.window_seconds - choices.copied, offloaded) * (1 - 1e-9)


def _fewer(ops: StageOps, choices: Choices, open_ops: Sequence[int], most: int) -> Choices:
    """Return at most about so many of the choices.

    If later operators read many earlier ones, the ways to decide about these multiply. Then only some of these ways are
    continued, which keep less and less.
    """
    if not len(choices):
        return choices
    groups: Indices = np.zeros(len(choices), np.intp)
    if open_ops:
        groups = np.unique(choices.decisions[:, open_ops], axis=0, return_inverse=True)[1].reshape(-1)
    count = int(groups.max()) + 1
    if count > most // _SHARE:
        quickest = np.lexsort((choices.bytes, choices.seconds, groups))
        firsts = quickest[np.searchsorted(groups[quickest], np.arange(count))]
        kept = (choices.decisions[firsts] == KEEP) @ np.array(ops.saved)
        chosen = np.argsort(kept, kind="stable")[evenly(count, most // _SHARE)]
        inside = np.isin(groups, chosen)
        choices, groups = choices.only(inside), np.unique(groups[inside], return_inverse=True)[1]
        count = len(chosen)
    return choices.unbeaten(groups, max(_SHARE, most // count))
