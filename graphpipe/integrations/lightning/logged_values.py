"""What a step logs, micro-batch by micro-batch on one rank: averaged over the mini-batch, and logged on every rank."""

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from graphpipe.errors import InvalidInput
from graphpipe.run.comm.world import World
from graphpipe.run.stage.losses.undisturbed import is_undisturbed

_SHARED = (bool, int, float, str, type(None))
"""Types of the options of `log` that other ranks are told."""


@dataclass(slots=True, kw_only=True)
class LoggedValues:
    """The values of one mini-batch by name: their sums over samples, and how they are logged."""

    sums: dict[str, float] = field(default_factory=dict[str, float])
    samples: dict[str, int] = field(default_factory=dict[str, int])
    options: dict[str, dict[str, Any]] = field(default_factory=dict[str, dict[str, Any]])

    @contextmanager
    def collecting(self, module: nn.Module, samples: int) -> Generator[None]:
        """While inside, what the module logs is kept as a mean over so many samples.

        Raises:
            InvalidInput: inside, if it logs something else than a number.
        """

        def log(name: str, value: Any, *given: Any, **options: Any) -> None:
            # The pipeline also compares what some samples give with what others do.
            if not torch.is_grad_enabled() or is_undisturbed():
                return
            if not isinstance(value, int | float) and not (isinstance(value, Tensor) and value.numel() == 1):
                raise InvalidInput(
                    f"logs '{name}', a {type(value).__name__}, and the ranks of a pipeline share numbers",
                    where="training_step",
                    remedy="Log the number, a mean over samples; metrics with a state belong into validation_step.",
                )
            options |= dict(zip(("prog_bar", "logger", "on_step", "on_epoch"), given, strict=False))
            self.sums[name] = self.sums.get(name, 0.0) + float(value) * samples
            self.samples[name] = self.samples.get(name, 0) + samples
            self.options[name] = {key: each for key, each in options.items() if isinstance(each, _SHARED)}

        module.__dict__["log"] = log
        try:
            yield
        finally:
            module.__dict__.pop("log")

    def tell(self, module: Any, world: World, samples: int) -> None:
        """Log the means of the mini-batch on every rank, and forget them; all ranks call this.

        Args:
            module: the LightningModule.
            world: this rank.
            samples: of the mini-batch.
        """
        own = {name: [self.sums[name] / self.samples[name], self.options[name]] for name in self.sums}
        told: dict[str, Any] = {}
        for listed in world.exchange(own):
            told = {**listed, **told}
        for name, (value, options) in told.items():
            module.log(name, value, **{**options, "batch_size": samples, "sync_dist": False})
        self.sums, self.samples, self.options = {}, {}, {}
