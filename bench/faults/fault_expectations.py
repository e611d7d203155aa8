"""What must happen after each kind of fault, with the reason, and which ranks or stages the message must name."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from bench.faults.fault_draws import Draw

Ending = Literal["goes on", "ends", "recovers", "stops"]
"""`goes on`: exit code 0, and nothing is lost. `ends`: exit code 4, and the culprit is named. `recovers`: exit code 0,
and the elastic run names the culprit that it has lost. `stops`: the launcher was stopped from outside and names nobody.
After `ends` and `stops`, `--resume` must bring the same weights as a run without the fault."""


@dataclass(frozen=True, slots=True)
class Expectation:
    """What a kind of fault does to a run."""

    plain: Ending
    elastic: Ending
    reason: str


EXPECTED: Mapping[str, Expectation] = {
    "kill": Expectation("ends", "recovers", "The device may be broken. Others can do its work."),
    "raise": Expectation(
        "ends", "recovers", "It may be the device's fault. A second time at the same step ends the run."
    ),
    "stop": Expectation("ends", "recovers", "A silent rank is waited for until the time limit, and then it is lost."),
    "slow": Expectation("goes on", "goes on", "A rank may be slow for less than the time limit."),
    "sigterm": Expectation("ends", "recovers", "Someone stopped one rank. It is lost like a killed one."),
    "two ranks": Expectation("ends", "recovers", "One of both is named at least. Without a device left, the run ends."),
    "out of memory": Expectation("ends", "ends", "Fewer devices would have less memory."),
    "nan": Expectation("ends", "ends", "The same mini-batch gives NaN on other devices too. No weight has changed."),
    "wrong message": Expectation("ends", "ends", "A stage's output has another shape or type: an error of the model."),
    "disk full": Expectation("ends", "ends", "Other devices write to the same disk. The earlier checkpoint is kept."),
    "launcher killed": Expectation("stops", "stops", "The ranks end with their launcher."),
    "launcher terminated": Expectation("stops", "stops", "The launcher stops its ranks."),
}


def expected_ending(draw: Draw) -> Ending:
    """Return what must happen after a draw."""
    expectation = EXPECTED[draw.kind]
    ending = expectation.elastic if draw.case.elastic else expectation.plain
    if draw.phase == "start" and (draw.kind == "raise" or draw.way == "raise"):
        return "ends"  # The user's task cannot be made, on any devices.
    lost = len(draw.culprits) + (draw.phase == "resuming")
    return "ends" if ending == "recovers" and lost >= draw.case.ranks else ending
