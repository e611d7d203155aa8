"""The optimizer, its parameter groups and the learning-rate schedule of a configuration."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic import ConfigDict

from graphpipe.errors import InvalidInput
from graphpipe.training.config.numbers import not_negative, positive
from graphpipe.training.config.torch_names import (
    as_argument,
    check_arguments,
    check_builds,
    check_of_groups,
    optimizer_class,
    scheduler_class,
    takes,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSettings:
    """Options of some parameters that differ from those of the optimizer: one `[[optimizer.groups]]`.

    If several of them match a parameter, it gets the options of all, and the last one that sets an option decides.
    """

    __pydantic_config__ = ConfigDict(extra="forbid")

    match: tuple[str, ...] = ()
    """Patterns of parameters' names in the model, such as `*.bias` or `encoder.layers.[01].*`."""
    modules: tuple[str, ...] = ()
    """Patterns of the classes of the submodules that hold the parameters, such as `*Norm*` or `Embedding`."""
    name: str | None = None
    """Another class of `torch.optim` for them, such as Muon for matrices. None: that of the optimizer, or of a group
    before it."""
    lr: float | None = None
    """Learning rate. None: that of the optimizer, times `lr_factor`."""
    lr_factor: float | None = None
    """Multiplies the learning rate of the optimizer."""
    weight_decay: float | None = None
    momentum: float | None = None
    arguments: dict[str, Any] = field(default_factory=dict[str, Any])
    """Further options, which the optimizer keeps for each group, such as `betas = [0.9, 0.99]`."""

    def __post_init__(self) -> None:
        where = "optimizer.groups"
        if not (self.match or self.modules):
            remedy = "Set match, with patterns of names, or modules, with patterns of classes."
            raise InvalidInput("a group matches nothing", where=where, remedy=remedy)
        if self.lr is not None and self.lr_factor is not None:
            raise InvalidInput(f"{self.patterns} has lr and lr_factor", where=where, remedy="Leave one of them out.")
        for name, number in (("lr", self.lr), ("weight_decay", self.weight_decay), ("momentum", self.momentum)):
            not_negative(f"{where}, {name} of {self.patterns}", number or 0.0)
        not_negative(f"{where}, lr_factor of {self.patterns}", self.lr_factor or 0.0)
        for name in ("lr", "weight_decay", "momentum"):
            if name in self.arguments:
                raise InvalidInput(f"{self.patterns} has {name} in arguments", where=where, remedy=f"Set its {name}.")

    @property
    def patterns(self) -> str:
        """The patterns, for messages."""
        return ", ".join(f"'{each}'" for each in (*self.match, *self.modules))

    def options(self, lr: float) -> dict[str, Any]:
        """Return the options that it sets.

        Args:
            lr: the learning rate of the optimizer.
        """
        rate = lr * self.lr_factor if self.lr_factor is not None else self.lr
        own = {"lr": rate, "weight_decay": self.weight_decay, "momentum": self.momentum}
        further = {name: as_argument(value) for name, value in self.arguments.items()}
        return {name: value for name, value in own.items() if value is not None} | further


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerSettings:
    """The optimizer, unless the task gives one."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    name: str = "adamw"
    """A class of `torch.optim`, in any case: adamw, sgd, Adafactor, Muon, and so on."""
    lr: float = 1e-3
    """Learning rate."""
    weight_decay: float = 0.0
    momentum: float = 0.0
    """For optimizers with an argument of this name, such as sgd."""
    arguments: dict[str, Any] = field(default_factory=dict[str, Any])
    """Further arguments of the class, such as `betas = [0.9, 0.95]` or `nesterov = true`."""
    groups: tuple[GroupSettings, ...] = ()
    """Options of parameters by their names: no weight decay for norms and biases, other rates for some layers."""

    def __post_init__(self) -> None:
        positive("optimizer.lr", self.lr)
        not_negative("optimizer.weight_decay", self.weight_decay)
        not_negative("optimizer.momentum", self.momentum)
        kind = optimizer_class(self.name)
        check_arguments(kind, self.arguments, "optimizer")
        for name, value in (("weight_decay", self.weight_decay), ("momentum", self.momentum)):
            if value and not takes(kind, name):
                what = f"is {value}, and {kind.__name__} has none"
                raise InvalidInput(what, where=f"optimizer.{name}", remedy="Leave it out.")
        for name in ("lr", "weight_decay", "momentum"):
            if name in self.arguments:
                raise InvalidInput(f"has {name}", where="optimizer.arguments", remedy=f"Set optimizer.{name}.")
        check_builds(kind, self.given_to(self.name))
        for group in self.groups:
            # What another class may set in the parameters that both match is known only with a model.
            if group.name is not None or not self._names:
                named = group.name or self.name
                check_of_groups(optimizer_class(named), self.given_to(named), group.options(self.lr), group.patterns)

    @property
    def names(self) -> tuple[str, ...]:
        """The classes of `torch.optim` that parameters can have, in lower case, each once."""
        return tuple(dict.fromkeys((self.name.lower(), *self._names)))

    def given_to(self, name: str) -> dict[str, Any]:
        """Return the arguments of a class beside the parameters; `arguments` are those of the optimizer's own."""
        kind = optimizer_class(name)
        own = {"lr": self.lr, "weight_decay": self.weight_decay, "momentum": self.momentum}
        further = {key: as_argument(value) for key, value in self.arguments.items()}
        same = name.lower() == self.name.lower()
        return {key: value for key, value in own.items() if takes(kind, key)} | (further if same else {})

    def name_of(self, groups: Sequence[int]) -> str:
        """Return the class of a parameter that these of `groups` match, in lower case."""
        named = (self.groups[number].name for number in reversed(groups))
        return next((name for name in named if name is not None), self.name).lower()

    def of_groups(self, groups: Sequence[int]) -> dict[str, Any]:
        """Return the options of a parameter that these of `groups` match, by their numbers in order."""
        options = self.given_to(self.name_of(groups))
        for number in groups:
            options |= self.groups[number].options(self.lr)
        return options

    @property
    def _names(self) -> tuple[str, ...]:
        return tuple(group.name.lower() for group in self.groups if group.name is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleSettings:
    """The learning-rate schedule."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    name: str = "constant"
    """`constant`, `cosine`, which decreases to zero at the last step, or a class of `torch.optim.lr_scheduler`."""
    warmup_steps: int = 0
    """Steps in which the learning rate rises from zero."""
    arguments: dict[str, Any] = field(default_factory=dict[str, Any])
    """Arguments of the class, such as `step_size = 30`. By default `T_max`, `total_steps` and `max_lr` are those of the
    training, and `mode` of ReduceLROnPlateau is that of `evaluation.watch`."""

    def __post_init__(self) -> None:
        not_negative("lr_schedule.warmup_steps", self.warmup_steps)
        if self.of_torch:
            check_arguments(scheduler_class(self.name), self.arguments, "lr_schedule")
            if self.follows_evaluations and self.warmup_steps:
                what = f"is {self.warmup_steps}, and the rates of {self.name} change only after evaluations"
                raise InvalidInput(what, where="lr_schedule.warmup_steps", remedy="Leave it out.")
        elif self.arguments:
            what = f"'{self.name}' takes no '{next(iter(self.arguments))}'"
            raise InvalidInput(what, where="lr_schedule.arguments")

    @property
    def of_torch(self) -> bool:
        """Whether it is a class of torch, whose present rate follows from its state."""
        return self.name not in ("constant", "cosine")

    @property
    def follows_evaluations(self) -> bool:
        """Whether it goes on at each evaluation, by what was found, and not at each step."""
        return self.name.lower() == "reducelronplateau"
