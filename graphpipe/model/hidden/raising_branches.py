"""Branches of a forward on the values in a tensor of which one raises an error, such as a check of labels.

Without data nobody knows the values. But only one answer goes on, so a trace follows it. An operator in the graph asks
the question again in every step, and raises the forward's error if the answer is the other one.
"""

import ast
import linecache
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from traceback import walk_tb
from types import CodeType, FrameType
from typing import Any

import torch
from torch import Tensor
from torch.export import ExportedProgram
from torch.overrides import TorchFunctionMode

from graphpipe.errors import InvalidInput
from graphpipe.model.torch_private import is_data_dependent

ASSERTION = torch.ops.aten._assert_async.msg
"""Takes a truth value and a message. It has no result, and torch.export keeps it nevertheless."""


@torch.library.custom_op("graphpipe::holds", mutates_args=())
def holds(condition: Tensor, message: str) -> Tensor:
    """Return a truth value that holds.

    Raises:
        InvalidInput: it does not.
    """
    if not condition:
        raise InvalidInput(message, where="mini-batch", remedy="The model's own forward refuses such values.")
    return condition.clone()


@holds.register_fake
def _(condition: Tensor, message: str) -> Tensor:
    del message
    return torch.empty_like(condition)


@dataclass(frozen=True, slots=True)
class _Branch:
    """A branch that raises an error by itself: an `if` around a `raise`, or an `assert`."""

    code: CodeType
    first: int
    """Line of what raises the error."""
    last: int
    condition: str

    def raised(self, error: Exception) -> bool:
        """Whether an error comes from this branch."""
        return any(
            frame.f_code is self.code and self.first <= line <= self.last
            for frame, line in walk_tb(error.__traceback__)
        )

    def message(self, error: Exception) -> str:
        """Return what the error says; if its text cannot be made without data, what the branch asks."""
        *_, (frame, _) = walk_tb(error.__traceback__)
        text = str(error).strip() if frame.f_code is self.code and "FakeTensor" not in str(error) else ""
        return (
            text.splitlines()[0].rstrip(".") if text else f"the forward raises an error because of `{self.condition}`"
        )


@dataclass(frozen=True, slots=True)
class _Known:
    """A question with the answer that raises no error."""

    answer: bool
    message: str


class _Questions(TorchFunctionMode):
    # Answers questions for truth values that depend on values. The first ones have known answers. The next one is tried
    # with an answer, and none is answered after it.

    def __init__(self, known: Sequence[_Known], tried: bool) -> None:
        super().__init__()
        self.known = known
        self.tried = tried
        self.count = 0
        self.branch: _Branch | None = None
        """That of the question that is tried."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is not Tensor.__bool__:
            return func(*args, **(kwargs or {}))
        try:
            return func(*args)
        except Exception as error:
            branch = _branch_at(_asking()) if is_data_dependent(error) else None
            if branch is None or self.branch is not None:
                raise
        self.count += 1
        if self.count > len(self.known):
            self.branch = branch
            return self.tried
        known = self.known[self.count - 1]
        truth = args[0].bool().reshape(())
        ASSERTION(truth if known.answer else truth.logical_not(), known.message)
        return known.answer


def following_checks(trace: Callable[[], ExportedProgram]) -> ExportedProgram:
    """Return the result of a trace in which no branch of a forward raises its error.

    Args:
        trace: traces a forward from the beginning. It runs once or twice more for each such branch.

    Raises:
        Exception: of the trace.
    """
    known: list[_Known] = []
    tried = True
    while True:
        questions = _Questions(known, tried)
        try:
            with questions:
                found = trace()
        except Exception as error:
            if questions.branch is None:
                raise
            if questions.branch.raised(error):
                known.append(_Known(not tried, questions.branch.message(error)))
                tried = True
                continue
        else:
            if questions.branch is None:
                return found
        if not tried:
            return trace()  # which raises torch's error for a branch that is no check
        tried = False


def _asking() -> FrameType:
    # The frame that asks for a truth value, around the modes of torch.
    frame = sys._getframe(2)  # pyright: ignore[reportPrivateUsage]
    while frame.f_code.co_name == "__torch_function__" and frame.f_back is not None:
        frame = frame.f_back
    return frame


def _branch_at(frame: FrameType) -> _Branch | None:
    # The branch whose condition asks for a truth value, if it raises an error.
    line = next(islice(frame.f_code.co_positions(), frame.f_lasti // 2, None))[0]
    try:
        tree = ast.parse("".join(linecache.getlines(frame.f_code.co_filename)))
    except (SyntaxError, ValueError):
        return None
    for node in ast.walk(tree):
        if isinstance(node, ast.If | ast.Assert) and line is not None:
            start, end = (node if isinstance(node, ast.Assert) else node.test).lineno, node.test.end_lineno
            if end is not None and start <= line <= end:
                return _raising(node, frame.f_code)
    return None


def _raising(node: ast.If | ast.Assert, code: CodeType) -> _Branch | None:
    condition = ast.unparse(node.test)
    if isinstance(node, ast.Assert):
        return _Branch(code, node.lineno, node.end_lineno or node.lineno, condition)
    for body in (node.body, node.orelse):
        if body and isinstance(body[-1], ast.Raise):
            return _Branch(code, body[0].lineno, body[-1].end_lineno or body[-1].lineno, condition)
    return None
