"""The folder of one run: the path of every file in it."""

from dataclasses import dataclass
from pathlib import Path

from graphpipe.costs.cost_table import LEARNED
from graphpipe.run.checkpoint.folder import CHECKPOINTS


@dataclass(frozen=True, slots=True)
class RunFolder:
    """Where the files of one run are. Nothing is read or written here."""

    path: Path

    def __str__(self) -> str:
        """Return the path, for messages."""
        return str(self.path)

    @property
    def config(self) -> Path:
        """The configuration, with every default spelled out."""
        return self.path / "config.json"

    @property
    def plan(self) -> Path:
        """The plan that the ranks run."""
        return self.path / "plan.json"

    @property
    def capture(self) -> Path:
        """The model as the launcher captured it, for the ranks; its constants are beside it (.safetensors)."""
        return self.path / "capture.json"

    def later_plans(self) -> list[Path]:
        """Return the plans that an elastic run made after its first, which stay: plan-2.json and so on."""
        return sorted(self.path.glob("plan-*.json"))

    def next_plan(self) -> Path:
        """Return the path of the next later plan."""
        return self.path / f"plan-{2 + len(self.later_plans())}.json"

    @property
    def costs(self) -> Path:
        """The costs that the plan was made with."""
        return self.path / "costs.json"

    @property
    def learned_costs(self) -> Path:
        """The same costs, corrected by the measured step."""
        return self.path / LEARNED

    @property
    def predicted_trace(self) -> Path:
        """A step as the simulator predicts it."""
        return self.path / "trace-predicted.json"

    @property
    def measured_trace(self) -> Path:
        """A step as it was measured."""
        return self.path / "trace-measured.json"

    @property
    def chrome_trace(self) -> Path:
        """Both steps, for ui.perfetto.dev."""
        return self.path / "trace-chrome.json"

    @property
    def metrics_log(self) -> Path:
        """One line per step."""
        return self.path / "metrics.jsonl"

    @property
    def evaluations(self) -> Path:
        """One line per evaluation of the held-out samples."""
        return self.path / "evaluations.jsonl"

    @property
    def metrics(self) -> Path:
        """The result. A run that has it is complete."""
        return self.path / "metrics.json"

    @property
    def weights(self) -> Path:
        """The state_dict of the whole trained model, if that has at most 5 GB."""
        return self.path / "model.safetensors"

    @property
    def weight_folder(self) -> Path:
        """The same of a larger model: several files with an index."""
        return self.path / "weights"

    @property
    def averaged_weights(self) -> Path:
        """The averages of the weights (`evaluation.average_decay`), in the form of `weights`."""
        return self.path / "averaged.safetensors"

    @property
    def averaged_weight_folder(self) -> Path:
        """The same of a larger model."""
        return self.path / "averaged"

    @property
    def checkpoints(self) -> Path:
        """The folder of checkpoints."""
        return self.path / CHECKPOINTS

    @property
    def best(self) -> Path:
        """The folder of the checkpoint of the best evaluation."""
        return self.path / "best"

    def events(self, rank: int) -> Path:
        """Return the path of one rank's events."""
        return self.path / "events" / f"rank-{rank}.jsonl"

    def torch_profile(self, rank: int) -> Path:
        """Return the path of what torch's profiler recorded on one rank."""
        return self.path / "torch-profile" / f"rank-{rank}.json"

    @property
    def tensorboard(self) -> Path:
        """The folder that the TensorBoard logger writes."""
        return self.path / "tensorboard"

    @property
    def faults(self) -> Path:
        """The injected faults that have struck already."""
        return self.path / "faults.jsonl"

    @property
    def recoveries(self) -> Path:
        """One line for each time the run continued on other devices."""
        return self.path / "recoveries.jsonl"

    @property
    def interruption(self) -> Path:
        """Why the run stands still. The file exists until the run continues."""
        return self.path / "recovering.json"

    @property
    def leave_request(self) -> Path:
        """Asks the ranks to leave at their next checkpoint. Rank 0 removes it as they do."""
        return self.path / "take-back"

    @property
    def slow_devices(self) -> Path:
        """How many times as long devices compute as planned, as an elastic run has measured it."""
        return self.path / "slow-devices.json"

    @property
    def lock(self) -> Path:
        """Locked while a training writes to the folder. It stays: a removed lock could let two own the folder."""
        return self.path / ".lock"
