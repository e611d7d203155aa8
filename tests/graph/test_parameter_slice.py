"""The names of slices of parameters, under which stages train and checkpoints save them."""

import pytest

from graphpipe.graph import ParameterSlice, parameter_of


@pytest.mark.parametrize(
    ("piece", "name"),
    [
        (ParameterSlice(parameter="top.weight", dimension=0, start=0, stop=3), "top.weight[0:3]"),
        (ParameterSlice(parameter="top.weight", dimension=1, start=64, stop=128), "top.weight[:, 64:128]"),
        (ParameterSlice(parameter="a[1]", dimension=2, start=1, stop=2), "a[1][:, :, 1:2]"),
    ],
)
def test_a_slice_is_named_like_an_index_in_python(piece: ParameterSlice, name: str) -> None:
    assert piece.name == name
    assert ParameterSlice.parse(name) == piece
    assert parameter_of(name) == piece.parameter


@pytest.mark.parametrize("name", ["top.weight", "a[1]", "a[:]", "[0:1]", "a[:, 0:1]b"])
def test_other_names_are_of_whole_parameters(name: str) -> None:
    assert ParameterSlice.parse(name) is None
    assert parameter_of(name) == name
