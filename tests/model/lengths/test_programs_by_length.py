"""Programs for lengths between captured ones are made without a capture, and compute what the model computes."""

import re
import warnings
from collections.abc import Callable, Sequence
from functools import cache

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from graphpipe.errors import InvalidInput
from graphpipe.graph import Input, Origin
from graphpipe.model.capture.capture import capture_nodes
from graphpipe.model.lengths.program_numbers import numbers_of
from graphpipe.model.lengths.programs_by_length import ProgramsByLength
from graphpipe.model.split.module_stage import ModuleStage
from graphpipe.model.split.recompute_region import recompute_regions
from graphpipe.model.split.split import submodules_for
from graphpipe.model.split.split_for_shapes import operator_nodes, split_for_shapes
from tests.support.programs.plain_training import cut_plan

pytestmark = pytest.mark.timeout(120)
Glue = Callable[[Tensor], Tensor]


def straight(x: Tensor) -> Tensor:
    """Numbers that grow with the length, and others that do not."""
    length = x.shape[1]
    mask = torch.ones(length, 2 * length + 3).tril(diagonal=2)[:, :length]
    return (mask @ x).view(x.shape[0], length, 2, 2).transpose(2, 3).reshape(x.shape[0], length, 4)


def padded(x: Tensor) -> Tensor:
    """Pads to a larger multiple of four, as attention over blocks does."""
    length = x.shape[1]
    rest = 4 - length % 4
    blocks = functional.pad(x, (0, 0, 0, rest)).view(x.shape[0], (length + rest) // 4, 4, 4).cumsum(2)
    return blocks.view(x.shape[0], length + rest, 4)[:, :length]


def halved(x: Tensor) -> Tensor:
    """Takes half of the rows, as a convolution with a stride does."""
    half = x.shape[1] // 2
    return x[:, :half] - x[:, 1 : half + 1]


def beyond(x: Tensor) -> Tensor:
    """Looks back over a window, which short samples do not fill."""
    window = max(1, x.shape[1] - 9)
    return x - functional.pad(x, (0, 0, window, 0))[:, : x.shape[1]]


class Model(nn.Module):
    def __init__(self, glue: Glue) -> None:
        super().__init__()
        self.first, self.last, self.glue = nn.Linear(4, 4), nn.Linear(4, 4), glue

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.glue(self.first(x)))


GLUES: dict[str, Glue] = {"straight": straight, "padded": padded, "halved": halved, "beyond": beyond}


class Cut:
    """A model in two stages, whose captures are kept: they are what takes time here."""

    def __init__(self, glue: Glue, *, length: int = 12, recompute: bool = False) -> None:
        torch.manual_seed(0)
        self.model = Model(glue)
        origin = capture_nodes(self.model, torch.zeros(2, length, 4), Origin(method="export", split=("*",)))
        first, cut = origin.graph.ops[0].name, 0 if recompute else 1
        self.plan = cut_plan(
            origin.graph, batch_size=8, micro_batch=4, cut=cut, recompute=(first,) if recompute else "none"
        )
        self.groups = operator_nodes(origin)
        self.submodules = submodules_for(self.model, self.plan.graph)
        self.made: dict[int, tuple[ModuleStage, ...]] = {}

    def at(self, length: int) -> tuple[ModuleStage, ...]:
        if length not in self.made:
            inputs = inputs_of(length)
            self.made[length] = split_for_shapes(self.model, self.plan, self.groups, inputs, self.submodules)
        return self.made[length]

    def by_length(self, captured: list[int]) -> ProgramsByLength:
        """Return what makes its programs. The lengths that are captured are added to a list."""

        def capture(inputs: tuple[Input, ...]) -> tuple[ModuleStage, ...]:
            captured.append(inputs[0].sample_shape[0])
            return self.at(captured[-1])

        return ProgramsByLength(capture)


@cache
def cut(name: str) -> Cut:
    return Cut(GLUES[name])


def inputs_of(length: int) -> tuple[Input, ...]:
    return (Input(name="x", sample_shape=(length, 4), dtype="float32"),)


def output_of(programs: Sequence[ModuleStage], x: Tensor) -> Tensor:
    values: dict[str, Tensor] = {"x": x}
    output: object = None
    for program in programs:
        sent, output = program(values)
        values = {**values, **sent}
    assert isinstance(output, Tensor)
    return output


@pytest.mark.parametrize(
    "name", ["straight", "padded", *(pytest.param(each, marks=pytest.mark.slow) for each in ("halved", "beyond"))]
)
@pytest.mark.filterwarnings("ignore:8 shapes of inputs")
def test_programs_for_lengths_in_any_order_compute_what_the_model_computes(name: str) -> None:
    made, mine = cut(name).by_length([]), {id(each) for each in cut(name).model.parameters()}
    for length in (8, 9, 12, 10, 11, 5, 14):
        programs, x = made.make(inputs_of(length)), torch.randn(3, length, 4)
        torch.testing.assert_close(output_of(programs, x), cut(name).model(x), rtol=0, atol=0)
        assert {id(each) for program in programs for each in program.module.parameters()} <= mine


def test_few_lengths_are_captured_if_numbers_grow_evenly() -> None:
    captured: list[int] = []
    made = cut("straight").by_length(captured)
    for length in (8, 9, 12, 10, 18, 20, 11, 15, 5, 4):
        programs = made.make(inputs_of(length))
        if length in (10, 11, 5):  # captured by other tests
            fresh, found = numbers_of(cut("straight").at(length)), numbers_of(programs)
            assert (found.numbers, found.rest) == (fresh.numbers, fresh.rest)
    assert captured == [8, 9, 24, 2]


@pytest.mark.filterwarnings("ignore:8 shapes of inputs")
def test_only_lengths_with_the_same_remainder_are_made_of_each_other() -> None:
    captured: list[int] = []
    made = cut("padded").by_length(captured)
    for length in (8, 12, 16, 20):
        made.make(inputs_of(length))
    assert captured == [8, 12, 32]
    made.make(inputs_of(10))
    assert captured == [8, 12, 32, 10]


def test_what_keeps_lengths_apart_is_said_once() -> None:
    made = cut("padded").by_length([])
    with warnings.catch_warnings(record=True) as said:
        for length in (8, 9, 5, 10, 14, 11, 12, 16, 7, 6):
            made.make(inputs_of(length))
    (only,) = [str(each.message) for each in said]
    assert re.match("8 shapes of inputs were captured, each by itself: '.*' is computed otherwise for other", only)


def test_inputs_that_cannot_be_captured_far_ahead_are_captured_as_they_are() -> None:
    captured: list[int] = []
    most = 14

    def capture(inputs: tuple[Input, ...]) -> tuple[ModuleStage, ...]:
        if inputs[0].sample_shape[0] > most:
            raise InvalidInput("has no more positions", where="inputs")
        captured.append(inputs[0].sample_shape[0])
        return cut("straight").at(captured[-1])

    made = ProgramsByLength(capture)
    for length in (8, 9, 12, 10, 14, 11):
        made.make(inputs_of(length))
    assert captured == [8, 9, 12, 14]
    with pytest.raises(InvalidInput, match="no more positions"):
        made.make(inputs_of(17))


def test_regions_that_recompute_are_made_too() -> None:
    parts = Cut(straight, recompute=True)
    made = parts.by_length(captured := [])
    for length in (8, 9, 12, 10):
        programs, x = made.make(inputs_of(length)), torch.randn(3, length, 4)
        assert any(recompute_regions(each.module) for each in programs)
        torch.testing.assert_close(output_of(programs, x), parts.model(x), rtol=0, atol=0)
    assert len(captured) == 3
