"""One thing that a plan computes differently from plain PyTorch."""

from dataclasses import dataclass
from typing import Literal

Kind = Literal[
    "output",
    "value",
    "loss",
    "gradient",
    "none",
    "zero",
    "untrained",
    "missing",
    "elsewhere",
    "parameter",
    "buffer",
    "error",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Deviation:
    """One thing that a plan computes differently from plain PyTorch."""

    kind: Kind
    """What differs."""
    name: str = ""
    """The parameter, buffer or output, or what went wrong."""
    operator: str = ""
    """The operator that has the parameter or buffer. Empty for anything else."""
    relative: float = 0.0
    """How large the difference is, relative to the largest element in plain PyTorch."""

    @property
    def sentence(self) -> str:
        """The difference as a sentence without a full stop."""
        where = f" (operator '{self.operator}')" if self.operator else ""
        size = f"{100 * self.relative:.3g} %"
        match self.kind:
            case "output":
                return f"the model's output {self.name} is off by {size}"
            case "value":
                return f"the value '{self.name}' that is sent on is off by {size}"
            case "loss":
                return f"the loss is off by {size}"
            case "gradient":
                return f"the gradient of '{self.name}'{where} is off by {size}"
            case "none":
                return f"'{self.name}'{where} gets a gradient of zeros where plain PyTorch leaves it without one (None)"
            case "zero":
                return f"'{self.name}'{where} gets no gradient (None), in plain PyTorch it gets one"
            case "untrained":
                return f"{self.name} gets a gradient from the loss, but the pipeline does not train it"
            case "missing":
                return f"'{self.name}' is trained in plain PyTorch, but no stage has it"
            case "elsewhere":
                return f"loss_fn reads '{self.name}'{where} itself, a parameter that other devices train"
            case "parameter":
                return f"the forward changes the parameter '{self.name}'{where}, and leaves it off by {size}"
            case "buffer":
                return f"the forward leaves the buffer '{self.name}'{where} off by {size}"
            case "error":
                return f"the step of the pipeline {self.name}"
