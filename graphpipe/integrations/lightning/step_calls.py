"""Where a `LightningModule`'s step calls the model, so that a pipeline can compute that call.

    def training_step(self, batch, batch_idx):
        x, y = batch
        z = self(x)                        the call: what comes before it gives the pipeline's inputs
        return cross_entropy(z, y)         what comes after it is the loss of the pipeline's outputs

The call is `self(...)`, or that of the one submodule with parameters that the step calls. The pipeline trains this
module.
"""

from collections.abc import Callable, Generator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from inspect import Parameter, Signature, signature
from typing import Any, NoReturn

from torch import Tensor, nn

from graphpipe.errors import InvalidInput
from graphpipe.model.torch_private import intercepted

Scalar = bool | int | float | str
_REMEDY = "Let training_step call self(...) once, and put what has parameters into `forward`."


class _CallReached(BaseException):
    # Ends a step where it calls the model. Not an Exception, so that the step's own code does not catch it.
    def __init__(self, path: str, inputs: tuple[tuple[Any, ...], dict[str, Any]]) -> None:
        super().__init__(path)
        self.path = path
        self.inputs = inputs


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCalls:
    """The one call of the model in the steps of a LightningModule."""

    owner: nn.Module
    """The LightningModule."""
    path: str
    """The path of the module that is called; empty for the LightningModule itself."""
    taken: Signature
    """Of its forward."""

    @property
    def called(self) -> nn.Module:
        """The module that is called."""
        return self.owner.get_submodule(self.path)

    @staticmethod
    def of(owner: nn.Module, step: Callable[..., Any], arguments: tuple[Any, ...]) -> "StepCalls":
        """Return what a step calls first.

        Args:
            owner: the LightningModule.
            step: its `training_step`.
            arguments: of the step.

        Raises:
            InvalidInput: it calls nothing that has parameters.
        """
        paths = [path for path, part in owner.named_modules() if next(part.parameters(), None) is not None]
        path = _first_call(owner, paths, step, arguments).path
        return StepCalls(owner=owner, path=path, taken=signature(owner.get_submodule(path).forward))

    def inputs(
        self, step: Callable[..., Any], arguments: tuple[Any, ...]
    ) -> tuple[dict[str, Tensor], dict[str, Scalar]]:
        """Return the tensors and the other arguments of the call, by the names of the forward's parameters.

        Raises:
            InvalidInput: the call takes something else.
        """
        return self.named(*_first_call(self.owner, [self.path], step, arguments).inputs)

    def named(self, given: tuple[Any, ...], keywords: Mapping[str, Any]) -> tuple[dict[str, Tensor], dict[str, Scalar]]:
        """Return the tensors and the other arguments of a call by name, as `inputs`."""
        bound, kinds = self.taken.bind(*given, **keywords).arguments, self.taken.parameters
        flat: dict[str, Any] = {}
        for name, value in bound.items():
            if kinds[name].kind is Parameter.VAR_KEYWORD:
                flat |= value
            elif kinds[name].kind is Parameter.VAR_POSITIONAL:
                flat |= {f"input_{position}": each for position, each in enumerate(value)}
            elif value is not None:
                flat[name] = value
        tensors = {name: each for name, each in flat.items() if isinstance(each, Tensor)}
        others = {name: each for name, each in flat.items() if not isinstance(each, Tensor)}
        for name, each in others.items():
            if not isinstance(each, bool | int | float | str):
                raise InvalidInput(
                    f"'{name}' is a {type(each).__name__}, and inputs of a pipeline are tensors",
                    where=f"the call of '{self.path or 'self'}' in training_step",
                    remedy="Pass its tensors as arguments of their own.",
                )
        return tensors, others

    @contextmanager
    def answering(self, answer: Callable[..., Any], *, once: bool) -> Generator[None]:
        """While inside, the call returns what `answer` returns for its arguments.

        Args:
            answer: in place of the module.
            once: whether nothing else with parameters may be called, and the call only once.

        Raises:
            InvalidInput: inside, at such a call.
        """
        called = self.called
        inner = {id(part) for part in called.modules()}
        calls = 0

        def call(*given: Any, **keywords: Any) -> Any:
            nonlocal calls
            calls += 1
            if once and calls > 1:
                self._refuse(self.path or "self")
            return answer(*given, **keywords)

        with ExitStack() as stack:
            for path, part in self.owner.named_modules() if once else ():
                if id(part) not in inner and part is not self.owner and next(part.parameters(), None) is not None:
                    stack.enter_context(intercepted(part, partial(self._refuse, path)))
            stack.enter_context(_replaced(called, call))
            yield

    def _refuse(self, path: str, *_: Any, **__: Any) -> NoReturn:
        raise InvalidInput(
            f"calls '{path}' beside '{self.path or 'self'}', and a pipeline computes one call",
            where="training_step",
            remedy=_REMEDY,
        )


def _first_call(
    owner: nn.Module, paths: list[str], step: Callable[..., Any], arguments: tuple[Any, ...]
) -> _CallReached:
    with ExitStack() as stack:
        for path in paths:
            stack.enter_context(_replaced(owner.get_submodule(path), partial(_reach, path)))
        try:
            step(*arguments)
        except _CallReached as reached:
            return reached
    raise InvalidInput("calls no module that has parameters", where="training_step", remedy=_REMEDY)


def _reach(path: str, *given: Any, **keywords: Any) -> NoReturn:
    raise _CallReached(path, (given, keywords))


@contextmanager
def _replaced(module: nn.Module, call: Callable[..., Any]) -> Generator[None]:
    # While inside, the module and its `forward` run `call`: steps also say self.forward(...).
    known = module.__dict__.get("forward")
    with intercepted(module, call):
        module.__dict__["forward"] = call
        try:
            yield
        finally:
            module.__dict__.pop("forward")
            if known is not None:
                module.__dict__["forward"] = known
