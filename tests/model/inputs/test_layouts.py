"""A forward that takes a dict, a dataclass or None was refused, or its containers were taken for several inputs."""

from collections import OrderedDict
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_sequence

from graphpipe.errors import InvalidInput
from graphpipe.graph import InputLayout
from graphpipe.model.inputs import name_inputs, read_layout, with_containers

X, Y = torch.zeros(4, 3), torch.ones(4, 2)


@dataclass
class Sample:
    image: Tensor
    texts: list[Tensor]
    scale: float = 0.5

    def __post_init__(self) -> None:
        self.width = self.image.shape[1]


class Pair(NamedTuple):
    left: Tensor
    right: Tensor


class Batched(nn.Module):
    def forward(self, batch: Any, flag: bool = False) -> Any:
        return batch, flag


class Only(nn.Module):
    def forward(self, batch: list[Tensor]) -> Tensor:
        return batch[0] @ batch[1]


class Two(nn.Module):
    def forward(self, x: Tensor, mask: Tensor | None = None, *, scale: float = 1.0) -> Any:
        return x, mask, scale


@pytest.mark.parametrize(
    ("batch", "names"),
    [
        (
            {"image": X, "texts": (X, {"deep": Y}), "none": None, "n": 3},
            ["batch.image", "batch.texts.0", "batch.texts.1.deep"],
        ),
        (Pair(X, Y), ["batch.0", "batch.1"]),
        (Sample(X, [X, Y]), ["batch.image", "batch.texts.0", "batch.texts.1"]),
        (OrderedDict(image=X, word="text"), ["batch.image"]),
    ],
)
def test_the_only_input_may_be_a_container(batch: Any, names: list[str]) -> None:
    layout = read_layout(Batched(), batch)
    assert [*layout.names] == names
    named = name_inputs(layout, batch)
    (again,) = with_containers(layout, named).values()
    assert type(again) is type(batch)
    if isinstance(batch, Sample):
        assert vars(again).keys() == vars(batch).keys()
        assert again.texts[1] is batch.texts[1]
        assert (again.scale, again.width) == (0.5, 3)
    else:
        assert again == batch


def test_several_values_are_the_list_that_one_parameter_takes() -> None:
    layout = read_layout(Only(), [X, Y])
    assert layout.names == ("batch.0", "batch.1")
    assert name_inputs(layout, (X, Y))["batch.1"] is Y  # as a loader returns lists
    assert with_containers(layout, name_inputs(layout, {"batch": [X, Y]}))["batch"] == [X, Y]
    assert read_layout(Batched(), [X, Y]).names == ("batch", "flag")


def test_inputs_that_are_all_tensors_have_no_parts() -> None:
    assert read_layout(nn.Linear(3, 2), {"x": X}) == InputLayout(names=("x",))
    assert read_layout(Batched(), {"batch": X}) == InputLayout(names=("batch",))
    assert read_layout(Batched(), X) == InputLayout(names=("batch",))


def test_arguments_by_name_may_be_none_and_numbers() -> None:
    layout = read_layout(Two(), {"scale": 2.0, "x": X, "mask": None})
    assert (layout.names, layout.arguments) == (("x",), ("x", "mask", "scale"))
    assert [*name_inputs(layout, {"x": X, "scale": 2.0, "mask": None})] == ["x"]
    assert with_containers(layout, {"x": X})["mask"] is None


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"scale": 3.0}, r"input 'scale': it is 3.0, in the example it is 2.0"),
        ({"scale": 2}, r"input 'scale': it is 2, in the example it is 2.0"),
        ({"mask": Y}, r"input 'mask': it is a tensor, in the example it is None"),
        ({"x": {"a": Y}}, r"input 'x': it is a dict, in the example it is a tensor"),
    ],
)
def test_what_is_no_tensor_stays_as_in_the_example(changed: dict[str, Any], message: str) -> None:
    given: dict[str, Any] = {"x": X, "mask": None, "scale": 2.0}
    layout = read_layout(Two(), given)
    with pytest.raises(InvalidInput, match=message):
        name_inputs(layout, given | changed)
    with pytest.raises(InvalidInput, match="input 'scale' is missing"):
        name_inputs(layout, {"x": X, "mask": None})


def test_a_number_that_is_nan_is_that_of_the_example() -> None:
    """It is not equal to itself, so it was refused: "it is nan, in the example it is nan"."""
    layout = read_layout(Two(), {"x": X, "mask": None, "scale": float("nan")})
    assert [*name_inputs(layout, {"x": X, "mask": None, "scale": float("nan")})] == ["x"]


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        ({"image": X, "path": ["a", "b", "c", "d"]}, "as many as there are samples"),
        ({"image": X.numpy()}, "ndarray, not a tensor.*torch.as_tensor"),
        ({"image": X, "packed": pack_sequence([X[0], X[1]])}, "pack_padded_sequence"),
        ({"image": X, "odd": {1.5: X}}, "neither a text nor a whole number"),
        ({"image": X, "what": object()}, "is a object, not a tensor"),
        ({"a": {"b": X}, "a.b": X}, "two inputs are named 'batch.a.b'"),
        ({"number": 3, "word": "text"}, "there is no tensor"),
    ],
)
def test_what_cannot_be_divided_by_samples_is_refused_with_a_remedy(batch: Any, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        read_layout(Batched(), batch)


def test_samples_come_first_in_every_tensor() -> None:
    layout = read_layout(Batched(), {"a": X, "b": {"c": Y}})
    with pytest.raises(InvalidInput, match=r"'batch.a' has 4, 'batch.b.c' has 2"):
        name_inputs(layout, {"a": X, "b": {"c": Y[:2]}})
    with pytest.raises(InvalidInput, match=r"'batch.b.c' is a single number"):
        name_inputs(layout, {"a": X, "b": {"c": torch.tensor(1.0)}})


def test_a_class_that_no_other_process_could_find_is_refused() -> None:
    @dataclass
    class Local:
        x: Tensor

    with pytest.raises(InvalidInput, match=r"Local, which cannot be found by its name.*outside of functions"):
        read_layout(Batched(), Local(X))


def test_only_classes_of_imported_modules_are_built() -> None:
    """A plan names the class of a container, and comes from anywhere."""
    layout = read_layout(Batched(), Sample(X, [Y]))
    first = layout.parts[0]
    for kind in ("subprocess:Popen", "graphpipe:nothing", "not_imported:Class"):
        from dataclasses import replace

        parts = (replace(first, kind=kind), *layout.parts[1:])
        with pytest.raises(InvalidInput, match="which this process has not imported"):
            with_containers(replace(layout, parts=parts), name_inputs(layout, Sample(X, [Y])))
