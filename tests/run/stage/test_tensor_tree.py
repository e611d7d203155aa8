"""Trees of tensors: described, rebuilt and mapped."""

from typing import Any

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from graphpipe.run.stage.tensor_tree import describe, leaves, map_tensors, rebuild

trees = st.recursive(
    st.sampled_from([torch.zeros(2, 3), torch.ones(1, dtype=torch.int64), None, 3, "word"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.text(max_size=2), inner, max_size=3)
    ),
    max_leaves=6,
)


@given(trees)
def test_a_described_tree_is_rebuilt_with_the_same_arrangement(tree: Any) -> None:
    rebuilt = rebuild(describe(tree))
    assert describe(rebuilt) == describe(tree)
    assert [leaf.shape for leaf in leaves(rebuilt)] == [leaf.shape for leaf in leaves(tree)]


@given(trees)
def test_mapping_a_tree_keeps_its_arrangement(tree: Any) -> None:
    assert describe(map_tensors(tree, lambda tensor: tensor + 1)) == describe(tree)
    assert all(torch.equal(a, b + 1) for a, b in zip(leaves(map_tensors(tree, _plus_one)), leaves(tree), strict=True))


def _plus_one(tensor: Tensor) -> Tensor:
    return tensor + 1
