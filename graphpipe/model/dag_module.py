"""A container whose submodules form a directed acyclic graph, as those of nn.Sequential form a chain."""

from collections.abc import Mapping, Sequence
from graphlib import CycleError, TopologicalSorter

from torch import nn

from graphpipe.errors import InvalidInput, nearest
from graphpipe.model.inputs import name_arguments


class DagModule(nn.Module):
    """An ordinary module whose forward is a directed acyclic graph of its submodules.

    A name in the values of `inputs` that is not a submodule is a model input; model inputs are positional, in the order
    in which they first appear. A submodule gets one argument per name: the value that the named submodule returned,
    even if that is a tuple. Without `output`, the submodules that feed no other submodule are the output: the value of
    a single one, or a dict of several by name. Parameters are named by submodule: `image.0.weight`.

    Args:
        modules: the submodules by name.
        inputs: for every submodule, the submodules and model inputs it takes, in order of its arguments.
        whole_batch: submodules that need the whole mini-batch at once (contrastive losses).
        output: the submodule to return, or several to return as a dict by name.
        name: of the model, in plans and reports.

    Raises:
        InvalidInput: no submodules, a name that cannot be used, a submodule without inputs, or a cycle (listed).
    """

    def __init__(
        self,
        modules: Mapping[str, nn.Module],
        inputs: Mapping[str, Sequence[str]],
        *,
        whole_batch: Sequence[str] = (),
        output: str | Sequence[str] | None = None,
        name: str = "DagModule",
    ) -> None:
        super().__init__()
        self.name = name
        _check(modules, inputs, whole_batch, output)
        self.feeds: dict[str, tuple[str, ...]] = {name: tuple(inputs[name]) for name in _order(inputs)}
        self.input_names = tuple(dict.fromkeys(n for name in inputs for n in inputs[name] if n not in modules))
        if not self.input_names:
            raise InvalidInput("no submodule takes a model input", where="inputs")
        self.whole_batch = tuple(whole_batch)
        self.output = output if output is None or isinstance(output, str) else tuple(output)
        if self.output is None:
            used = {name for names in inputs.values() for name in names}
            sinks = tuple(name for name in modules if name not in used)
            self.output = sinks[0] if len(sinks) == 1 else sinks
        for name, module in modules.items():
            self.add_module(name, module)

    def forward(self, *args: object, **kwargs: object) -> object:
        """Compute the output from the model inputs, by position or by name."""
        if args and kwargs:
            kwargs = {**dict(zip(self.input_names, args, strict=False)), **kwargs}
        values: dict[str, object] = name_arguments(self.input_names, kwargs or args)
        for name, names in self.feeds.items():
            values[name] = self.get_submodule(name)(*(values[other] for other in names))
        if isinstance(self.output, str):
            return values[self.output]
        assert self.output is not None
        return {name: values[name] for name in self.output}


def model_name(module: nn.Module) -> str:
    """Return the name of a model: a DagModule's own, otherwise its class."""
    return module.name if isinstance(module, DagModule) else type(module).__name__


def _check(
    modules: Mapping[str, nn.Module],
    inputs: Mapping[str, Sequence[str]],
    whole_batch: Sequence[str],
    output: str | Sequence[str] | None,
) -> None:
    if not modules:
        raise InvalidInput("there are no submodules", where="modules")
    for name in modules:
        if (
            not name.isidentifier()
            or hasattr(nn.Module, name)
            or name in ("feeds", "input_names", "name", "output", "whole_batch")
        ):
            remedy = "Use letters, digits and underscores, but not a name that nn.Module itself uses."
            raise InvalidInput(f"'{name}' cannot name a submodule", where="modules", remedy=remedy)
        if not inputs.get(name):
            remedy = "List the submodules or model inputs it takes."
            raise InvalidInput(f"submodule '{name}' has no inputs", where="inputs", remedy=remedy)
    chosen = [output] if isinstance(output, str) else output or ()
    for where, names in (("inputs", inputs), ("whole_batch", whole_batch), ("output", chosen)):
        for name in names:
            if name not in modules:
                raise InvalidInput(f"'{name}' is not a submodule", where=where, remedy=nearest(name, list(modules)))
    for name, names in inputs.items():
        if isinstance(names, str):
            raise InvalidInput(f"is the text '{names}', not a list", where=f"inputs['{name}']")
        for other in names:
            if not other.isidentifier():
                raise InvalidInput(f"'{other}' cannot name a model input", where=f"inputs['{name}']")


def _order(inputs: Mapping[str, Sequence[str]]) -> list[str]:
    try:
        return [name for name in TopologicalSorter(inputs).static_order() if name in inputs]
    except CycleError as error:
        raise InvalidInput(f"the submodules form a cycle: {' -> '.join(error.args[1])}", where="inputs") from None
