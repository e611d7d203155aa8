"""The container that declares a graph, and inputs by name."""

import pytest
import torch
from torch import Tensor, nn

from graphpipe.errors import InvalidInput
from graphpipe.model import DagModule, name_inputs
from graphpipe.model.capture.capture import capture


class Add(nn.Module):
    def forward(self, *values: Tensor) -> Tensor:
        return sum(values, torch.zeros(()))


def test_runs_in_plain_pytorch_by_position_and_by_name() -> None:
    one, two = nn.Linear(3, 2), nn.Linear(4, 2)
    module = DagModule({"sum": Add(), "one": one, "two": two}, {"one": ["x"], "two": ["y"], "sum": ["one", "two"]})
    x, y = torch.randn(5, 3), torch.randn(5, 4)
    expected = one(x) + two(y)
    assert torch.equal(module(x, y), expected)
    assert torch.equal(module(y=y, x=x), expected)
    assert torch.equal(module(x, y=y), expected)
    assert list(module.state_dict()) == ["one.weight", "one.bias", "two.weight", "two.bias"]
    expected.sum().backward()
    assert one.weight.grad is not None


def test_several_sinks_are_a_dict_unless_output_is_given() -> None:
    modules = {"a": Add(), "b": Add(), "c": Add()}
    feeds = {"a": ["x"], "b": ["a"], "c": ["a"]}
    x = torch.ones(2, 3)
    assert sorted(DagModule(modules, feeds)(x)) == ["b", "c"]
    assert isinstance(DagModule(modules, feeds, output="a")(x), Tensor)
    assert sorted(DagModule(modules, feeds, output=["a", "c"])(x)) == ["a", "c"]


def build(feeds: dict[str, list[str]], **options: object) -> DagModule:
    return DagModule({"a": Add(), "b": Add()}, feeds, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("feeds", "options", "message"),
    [
        ({"a": ["x", "b"], "b": ["a"]}, {}, "the submodules form a cycle: a -> b -> a|cycle: b -> a -> b"),
        ({"a": ["x"]}, {}, "submodule 'b' has no inputs"),
        ({"a": ["x"], "b": []}, {}, "submodule 'b' has no inputs"),
        ({"a": ["x"], "b": ["a"], "c": ["a"]}, {}, "inputs: 'c' is not a submodule"),
        ({"a": ["x"], "b": ["a"]}, {"output": "d"}, "output: 'd' is not a submodule"),
        ({"a": ["x"], "b": ["a"]}, {"whole_batch": ["d"]}, "whole_batch: 'd' is not a submodule"),
        ({"a": ["x"], "b": ["a b"]}, {}, "'a b' cannot name a model input"),
        ({"a": ["x"], "b": "a"}, {}, "is the text 'a', not a list"),
    ],
)
def test_bad_declarations_are_refused(feeds: dict[str, list[str]], options: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        build(feeds, **options)


def test_names_that_nn_module_uses_are_refused() -> None:
    for name in ("forward", "train", "a.b", "inputs names", "feeds"):
        with pytest.raises(InvalidInput, match="cannot name a submodule"):
            DagModule({name: Add()}, {name: ["x"]})
    with pytest.raises(InvalidInput, match="there are no submodules"):
        DagModule({}, {})
    with pytest.raises(InvalidInput, match="cycle: a -> a"):
        DagModule({"a": Add()}, {"a": ["a"]})


def test_inputs_by_name() -> None:
    x, y = torch.zeros(2, 3), torch.zeros(2)
    assert list(name_inputs(["x", "y"], {"y": y, "x": x})) == ["x", "y"]
    assert name_inputs(["x", "y"], (x, y))["y"] is y
    assert name_inputs(["x"], x)["x"] is x


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ((torch.zeros(2),), "1 inputs were given, the model takes 2: x, y"),
        ({"x": torch.zeros(2)}, "input 'y' is missing"),
        ({"x": torch.zeros(2), "z": torch.zeros(2)}, "the model takes no input 'z'"),
        ((torch.zeros(2), torch.zeros(3)), r"number of samples \(first dimension\): 'x' has 2, 'y' has 3"),
        ((torch.zeros(2), torch.tensor(1.0)), "input 'y' is a single number"),
        ((torch.zeros(2), [1, 2]), "input 'y' is a list, not a tensor"),
    ],
)
def test_bad_inputs_are_refused(inputs: object, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        name_inputs(["x", "y"], inputs)  # type: ignore[arg-type]


def test_the_name_becomes_the_name_of_the_graph() -> None:
    named = DagModule({"layer": nn.Linear(2, 2)}, {"layer": ["x"]}, name="mine")
    assert capture(named, torch.zeros(2, 2)).name == "mine"
    assert list(named.state_dict()) == ["layer.weight", "layer.bias"]
