"""Which submodules are opaque, and which are followed, after each attempt to trace a model by torch.export."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from torch import Tensor, nn

from graphpipe.graph import Origin
from graphpipe.model.capture.module_graph.calls.static_runs import StaticRuns
from graphpipe.model.capture.module_graph.calls.unreturned_values import may_keep_values, unreturned_values
from graphpipe.model.capture.module_graph.failures import (
    CannotExpress,
    ExportFailed,
    cannot_express,
    cannot_trace,
    failing_submodule,
    fixes_samples,
    returned_type,
    why_untraced,
)
from graphpipe.model.capture.module_graph.opaque_modules import EVERY, is_inside, opaque_modules
from graphpipe.model.hidden.result_types import register_dataclasses
from graphpipe.model.torch_private import flatten, is_data_dependent
from graphpipe.user_frames import warn_user

_TOGETHER = (
    "Other forwards use what it keeps in its attributes. Move it and these forwards into one submodule: submodules are "
    "kept whole."
)


class Attempts:
    """A submodule whose forward glue cannot express becomes opaque, and one that hides something is followed.

    Args:
        fake: the model on fake tensors.
        call: calls it on its inputs.
        inputs: of the model.
        origin: how to capture it.
        runs: of its opaque submodules.
        recorded: submodules in which something is recorded, which are followed.
    """

    def __init__(
        self,
        fake: nn.Module,
        call: Callable[[], object],
        inputs: Sequence[Tensor],
        origin: Origin,
        runs: StaticRuns,
        recorded: Mapping[str, str],
    ) -> None:
        self.fake = fake
        self.call = call
        self.inputs = inputs
        self.origin = origin
        self.runs = runs
        self.recorded = recorded
        self.opaque = [*origin.opaque]
        self.split = [*origin.split]
        self.lengths = False
        """Whether `len` of a tensor may be the variable number of samples."""
        self.exchanging = set[str]()
        """The submodules that are followed because they exchange tensors through attributes."""
        self._may_keep = may_keep_values(fake)

    def opaque_modules(self) -> tuple[str, ...]:
        """Return the paths of the submodules that are opaque in the next attempt."""
        while True:
            recorded = (path for path in self.recorded if path not in self.opaque)
            paths = opaque_modules(self.fake, [*self.split, *recorded], self.opaque)
            if not (self._may_keep and self._follow_exchanging(paths)):
                return paths

    def follow_reaching(self) -> bool:
        """Follow the submodules that read weights of others, which are then known by name, if there are any."""
        found = [path for path in self.runs.reaching if path not in self.opaque]
        self.runs.reaching.clear()
        return self._follow(each for path in found for each in self._alike(path))

    def cannot_express(self, fault: CannotExpress, paths: Collection[str]) -> None:
        """Change what is opaque after an attempt with these opaque submodules.

        Raises:
            InvalidInput: nothing can be changed.
        """
        inside = {path for path in paths if is_inside(fault.path, path)} - self.runs.hidden - {fault.path}
        if inside:
            self.runs.hidden |= inside
            return
        if fault.follow and fault.path not in self.opaque:
            self.split.append(fault.path)
            return
        path = fault.path
        while path in self.opaque and path not in self.origin.opaque:
            path = path.rpartition(".")[0]  # One that stays whole may return what glue cannot express.
        if not path or path in (*self.split, *self.origin.opaque):
            if path in self.exchanging and not fault.remedy:
                fault.remedy = _TOGETHER
            raise cannot_express(self.fake, fault) from fault
        self.opaque += self._alike(path) if EVERY in self.split else [path]

    def cannot_trace(self, error: Exception, paths: Sequence[str]) -> None:
        """Change what is opaque, or how samples are counted, after torch.export has failed.

        Raises:
            InvalidInput: nothing can be changed.
        """
        if returned_type(error) and register_dataclasses(flatten(self.call())[0]):
            return
        if fixes_samples(error) and not self.lengths:
            self.lengths = True
            return
        if self._follow_exchanging(paths):
            return
        found = failing_submodule(error, self.fake, paths)
        if not found or found in self.split:
            raise cannot_trace(self.fake, error) from ExportFailed(str(error))
        if not is_data_dependent(error):
            warn_user(f"'{found}' stays whole, since its forward cannot be traced: {why_untraced(error)}")
        self.opaque += [found, *(each for each in self._alike(found) if each not in self.split)]

    def _follow_exchanging(self, paths: Sequence[str]) -> bool:
        # Opaque submodules that exchange tensors through attributes.
        found = unreturned_values(self.fake, paths, self.inputs, self.call)
        self.exchanging |= {*found}
        return self._follow(found)

    def _follow(self, paths: Iterable[str]) -> bool:
        new = [path for path in dict.fromkeys(paths) if path not in (*self.opaque, *self.split)]
        self.split += new
        return bool(new)

    def _alike(self, path: str) -> list[str]:
        # The submodules of one kind, outermost first: what cannot be followed once cannot be followed in every layer.
        # The model itself, which may be of this kind, is never opaque.
        kind = type(self.fake.get_submodule(path))
        found = [path for path, module in self.fake.named_modules() if path and type(module) is kind]
        return [each for each in found if not any(is_inside(each, other) for other in found if other != each)]
