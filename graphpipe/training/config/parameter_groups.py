"""The parameter groups of an optimizer: which options each parameter of the model gets, by its name."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import Any

from torch import nn
from torch.optim import Optimizer

from graphpipe.errors import InvalidInput
from graphpipe.graph import parameter_of
from graphpipe.run.device.without_compiler import without_compiler
from graphpipe.run.weights.weight_update import NamedParameter
from graphpipe.training.config.optimizer_settings import GroupSettings, OptimizerSettings
from graphpipe.training.config.torch_names import check_of_groups, optimizer_class
from graphpipe.user_frames import describe_error

Numbers = tuple[int, ...]
"""Positions in `optimizer.groups`, ascending."""


@dataclass(frozen=True, slots=True)
class ParameterGroups:
    """The groups of a model's parameters. Each parameter is in exactly one, with all that have the same options.

    It is made from the whole model, which may be without data, so that it is the same on every rank. A rank then builds
    its optimizer of the parameters that it holds.
    """

    settings: OptimizerSettings
    matches: Mapping[str, Numbers]
    """Which of `optimizer.groups` match each parameter, by name. For tied parameters, all of their names count."""
    trained: frozenset[str]
    """The names of the trainable parameters, tied ones once."""

    @staticmethod
    def of(settings: OptimizerSettings, model: nn.Module) -> "ParameterGroups":
        """Return the groups of a model's parameters.

        Raises:
            InvalidInput: a pattern matches no parameter that is trained.
        """
        held = [*_held(model)]
        of_parameter: dict[int, set[int]] = {}
        for name, kind, parameter in held:
            numbers = {at for at, group in enumerate(settings.groups) if _matches(group, name, kind)}
            of_parameter.setdefault(id(parameter), set()).update(numbers)
        for group in settings.groups:
            names = [(name, parameter) for name, _, parameter in held]
            kinds = [(kind, parameter) for _, kind, parameter in held]
            _check_patterns(group.match, names, "parameter", others=("modules", kinds))
            _check_patterns(group.modules, kinds, "class of a submodule", others=("match", names))
        return ParameterGroups(
            settings,
            {name: tuple(sorted(of_parameter[id(parameter)])) for name, _, parameter in held},
            frozenset(name for name, parameter in model.named_parameters() if parameter.requires_grad),
        )

    def build(self, named: Sequence[NamedParameter]) -> Optimizer:
        """Return the optimizer of parameters of one class, with a group for each set of options that they have."""
        (kind,) = {self.kind(name) for name, _ in named}
        groups: dict[Numbers, list[nn.Parameter]] = {}
        for name, parameter in named:
            groups.setdefault(self.matches[parameter_of(name)], []).append(parameter)
        options = [{"params": members, **self.settings.of_groups(at)} for at, members in sorted(groups.items())]
        return optimizer_class(kind)(options, **self.settings.given_to(kind))

    def kind(self, name: str) -> str:
        """Return the class of the parameter or slice of this name, in lower case."""
        return self.settings.name_of(self.matches[parameter_of(name)])

    def check(self, model: nn.Module) -> None:
        """Check that the optimizers take the trained parameters of a model, with the options of their groups.

        Raises:
            InvalidInput: one refuses a parameter, as Muon all but matrices, or has not an option that a group sets.
        """
        trained = {name: each for name, each in model.named_parameters() if name in self.trained}
        for numbers, names in self.members().items():
            kind = self.settings.name_of(numbers)
            for number in numbers:
                group, given = self.settings.groups[number], self.settings.given_to(kind)
                check_of_groups(optimizer_class(kind), given, group.options(self.settings.lr), group.patterns)
            try:
                with without_compiler():
                    self.build([(name, trained[name]) for name in names if name in trained])
            except ValueError as error:
                what = f"'{kind}' refuses a parameter, of '{names[0]}' and those like it: {describe_error(error)}"
                remedy = f"Name another class for it in `optimizer.groups`, or choose another one than {kind}."
                raise InvalidInput(what, where="optimizer", remedy=remedy) from None

    def options_of(self, name: str) -> dict[str, Any]:
        """Return the options of the parameter or slice of this name."""
        return self.settings.of_groups(self.matches[parameter_of(name)])

    def members(self) -> dict[Numbers, list[str]]:
        """Return the names of the trainable parameters by group, tied ones once."""
        found: dict[Numbers, list[str]] = {}
        for name in self.matches:
            if name in self.trained:
                found.setdefault(self.matches[name], []).append(name)
        return dict(sorted(found.items()))


def _held(model: nn.Module) -> Iterator[tuple[str, str, nn.Parameter]]:
    # Every name of every parameter, the class that holds it, and the parameter.
    for prefix, module in model.named_modules(remove_duplicate=False):
        for local, parameter in module.named_parameters(recurse=False, remove_duplicate=False):
            yield f"{prefix}.{local}" if prefix else local, type(module).__name__, parameter


def _matches(group: GroupSettings, name: str, kind: str) -> bool:
    return any(fnmatchcase(name, each) for each in group.match) or any(
        fnmatchcase(kind, each) for each in group.modules
    )


_Held = Sequence[tuple[str, nn.Parameter]]


def _check_patterns(patterns: Iterable[str], held: _Held, what: str, *, others: tuple[str, _Held]) -> None:
    known = [*dict.fromkeys(name for name, _ in held)]
    for pattern in patterns:
        found = [parameter for name, parameter in held if fnmatchcase(name, pattern)]
        if not found:
            near = get_close_matches(pattern, known, n=3, cutoff=0.3) or known[:3]
            named = ", ".join(f"'{name}'" for name in near) + " and more" * (len(known) > len(near))
            remedy = f"The model has {named}."
            if any(fnmatchcase(name, pattern) for name, _ in others[1]):
                remedy = f"Name it in `{others[0]}`."
            raise InvalidInput(f"'{pattern}' matches no {what}", where="optimizer.groups", remedy=remedy)
        if not any(parameter.requires_grad for parameter in found):
            raise InvalidInput(
                f"'{pattern}' matches only parameters that are not trained",
                where="optimizer.groups",
                remedy="Set requires_grad of them, or leave the pattern out.",
            )
