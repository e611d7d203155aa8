"""Trials on processes of this machine: rounds of plans, each trained for a few steps."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from graphpipe.files.json_document import read_json
from graphpipe.launch.first_failure import RankFailed
from graphpipe.launch.launcher import launch
from graphpipe.model.capture.capture import Captured
from graphpipe.model.capture.op_splits.split_nodes import split_like
from graphpipe.model.capture_file.capture_file import save_capture
from graphpipe.profiler.learning.learned import MeasuredRun
from graphpipe.trace import Trace
from graphpipe.training.tune.candidates import Candidate
from graphpipe.training.tune.racing import FEW_TURNS
from graphpipe.training.tune.trial_rank import PlanFiles, TrialRound, save_round
from graphpipe.training.tune.tuned_model import TunedModelName

ROUND_ENTRY = "graphpipe.training.tune.trial_rank:run_round"
"""What every rank runs."""


@dataclass(slots=True)
class Trials:
    """Runs candidates, and remembers what was measured."""

    subject: TunedModelName
    captured: Captured
    folder: Path
    """Of the files between this process and the ranks."""
    ends_at: float
    """By `time.monotonic`. No plan is begun after it."""
    tell: Callable[[str], None]
    port: int = 0
    timeout_seconds: float = 300.0
    candidates: list[Candidate] = field(default_factory=list[Candidate])
    measured: dict[int, Trace] = field(default_factory=dict[int, Trace])
    """The typical step of each candidate in the last round that it ran."""
    failures: dict[int, str] = field(default_factory=dict[int, str])
    _files: list[PlanFiles] = field(default_factory=list[PlanFiles])
    _rounds: int = 0

    @property
    def over(self) -> bool:
        """Whether the time is over."""
        return time.monotonic() > self.ends_at

    def add(self, candidate: Candidate) -> int:
        """Write the plan of a candidate for the ranks, and return the candidate's number."""
        number, plan = len(self.candidates), candidate.plan
        capture = self.folder / f"capture-{plan.graph.fingerprint[:12]}.json"
        if not capture.exists():
            save_capture(split_like(self.captured, plan.graph), capture)
        files = PlanFiles(
            plan=str(self.folder / f"plan-{number}.json"),
            capture=str(capture),
            steps=str(self.folder / f"steps-{number}.json"),
            trace=str(self.folder / f"trace-{number}.json"),
        )
        plan.save(files.plan)
        self.candidates.append(candidate)
        self._files.append(files)
        return number

    def race(self, chosen: Sequence[int], turns: int) -> Mapping[int, Sequence[float]]:
        """Run candidates in turns until the fastest is known, and return the seconds of their steps (see `measure`)."""
        return self.measure(chosen, turns, race=True)

    def measure(self, chosen: Sequence[int], steps: int, *, race: bool = False) -> Mapping[int, Sequence[float]]:
        """Run candidates for so many steps each, and return the seconds of these steps.

        They take turns if all of them fit into the devices' memory together. If one of them fails, which ends all
        ranks, each runs alone, and those after a failed one are started again without it. What the time does not reach,
        and what failed, is missing.

        Args:
            chosen: numbers of candidates.
            steps: of each.
            race: the slower ones leave before (`next_turn`). Those that run alone do a few steps.
        """
        found: dict[int, Sequence[float]] = {}
        left, together = list(chosen), len(chosen) > 1 and self._fit(chosen)
        self.tell(f"running {len(left)} plans for {f'up to {steps}' if race else steps} steps each")
        while left and not self.over:
            failure = self._launch(left, FEW_TURNS if race and not together else steps, together=together, race=race)
            for number in list(left):
                files = self._files[number]
                if not (path := Path(files.steps)).exists():
                    break
                found[number] = [float(each) for each in read_json(path)]
                self.measured[number] = Trace.load(files.trace)
                path.unlink()
                left.remove(number)
            if failure is None:
                break
            if left and not together:
                self.failures[left.pop(0)] = failure
            together = False
        return found

    def _fit(self, chosen: Sequence[int]) -> bool:
        """Return whether each device has the memory for its parts of all of these plans at once."""
        plans = [self.candidates[number].plan for number in chosen]
        peaks = [plan.prediction.peak_bytes for plan in plans if plan.prediction is not None]
        cluster = plans[0].cluster
        return all(
            sum(peak[device] for peak in peaks) <= cluster.type_of(device).memory_bytes
            for device in range(len(cluster.devices))
        )

    def runs(self) -> list[MeasuredRun]:
        """Return the plans that ran, each with its typical step, as costs learn from them."""
        pairs = ((self.candidates[number].plan, trace) for number, trace in sorted(self.measured.items()))
        runs = [MeasuredRun(plan=plan, step=step, seconds=step.step_seconds) for plan, step in pairs]
        return [run for run in runs if run.plan.weights == "flush"]

    def _launch(self, chosen: Sequence[int], steps: int, *, together: bool, race: bool) -> str | None:
        # Returns why a rank failed.
        self._rounds += 1
        path = self.folder / f"round-{self._rounds}.json"
        plans = tuple(self._files[number] for number in chosen)
        seconds = self.ends_at - time.monotonic()
        trials = TrialRound(
            subject=self.subject, plans=plans, steps=steps, seconds=seconds, together=together, race=race
        )
        save_round(trials, path)
        ranks = max(len(self.candidates[number].plan.used_devices) for number in chosen)
        try:
            launch(ROUND_ENTRY, ranks, arguments=[str(path)], port=self.port, timeout_seconds=self.timeout_seconds)
        except RankFailed as failure:
            return str(failure)
        return None
