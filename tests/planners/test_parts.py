"""In-flight rule, placement, sharding and trees, compared with results worked out by hand."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from problems import cluster, towers

from graphpipe.graph.series_parallel import Leaf, Parallel, Series, decompose
from graphpipe.planners.problem.assign_devices import place
from graphpipe.planners.problem.whole_batch_tail import WholeBatchTail
from graphpipe.planners.search.tree_rewrites import bundled, cut_bytes, mirrored, paired, width
from graphpipe.plans.in_flight import in_flight_samples
from graphpipe.plans.sharding import SampleRange, count_micro_batches, sample_range


def test_in_flight_of_the_papers_figure_5() -> None:
    # A chain of three stages with micro-batches 1, 2, 4 keeps 10, 8, 4 samples in flight; with 4 everywhere 12.
    assert in_flight_samples(64, [1, 2, 4], [1, 1, 1], [[1], [2], []]) == (10, 8, 4)
    assert in_flight_samples(64, [4, 4, 4], [1, 1, 1], [[1], [2], []]) == (12, 8, 4)


def test_in_flight_follows_the_longest_path_up_to_the_mini_batch() -> None:
    # 0 feeds 1 and 3, 1 feeds 2, 2 feeds 3: the longer path counts.
    assert in_flight_samples(64, [2] * 4, [1] * 4, [[1, 3], [2], [3], []]) == (8, 6, 4, 2)
    assert in_flight_samples(4, [2] * 4, [1] * 4, [[1, 3], [2], [3], []]) == (4, 4, 4, 2)


def test_replicas_stay_on_a_node_and_neighbours_near() -> None:
    # Two chains of two stages: each chain's stages share a node although they are listed alternately.
    edges = [(0, 2, 1.0), (1, 3, 1.0)]
    placed = place(cluster(8, per_node=4), [3, 3, 1, 1], edges)
    assert placed == [(0, 1, 2), (4, 5, 6), (3,), (7,)]


def test_a_stage_larger_than_a_node_takes_the_remaining_devices() -> None:
    assert place(cluster(6, per_node=4), [6], []) == [(0, 1, 2, 3, 4, 5)]
    placed = place(cluster(8, per_node=4), [1, 6], [(0, 1, 1.0)])
    assert sorted(placed[0] + placed[1]) == list(range(7))


@given(batch=st.integers(1, 40), micro_batch=st.integers(1, 12), degree=st.integers(1, 4))
def test_ranges_cover_every_sample_once_in_order(batch: int, micro_batch: int, degree: int) -> None:
    ranges = [
        sample_range(batch, micro_batch, degree, index, replica)
        for index in range(count_micro_batches(batch, micro_batch))
        for replica in range(degree)
    ]
    assert [sample for held in ranges for sample in range(held.start, held.stop)] == list(range(batch))


def test_range_intersection() -> None:
    assert SampleRange(0, 4) & SampleRange(2, 9) == SampleRange(2, 4)
    assert len(SampleRange(0, 2) & SampleRange(5, 9)) == 0


def leaf_series(*names: str) -> Series:
    return Series(tuple(Leaf(name) for name in names))


def test_trees_are_mirrored_and_bundled() -> None:
    tree = Series((Leaf("a"), Parallel((leaf_series("b", "c"), leaf_series("d"), leaf_series("e"))), Leaf("f")))
    assert width(tree) == 3
    assert mirrored(mirrored(tree)) == tree
    assert mirrored(tree).parts[0] == Leaf("f")
    assert bundled(tree, 2) == Series((Leaf("a"), Parallel((leaf_series("b", "c"), leaf_series("d", "e"))), Leaf("f")))
    assert bundled(tree, 1) == leaf_series("a", "b", "c", "d", "e", "f")
    assert bundled(tree, 5) == tree


def test_light_branches_follow_heavy_ones_and_equal_branches_stay() -> None:
    light, heavy, other = leaf_series("a"), leaf_series("b"), leaf_series("c", "d")
    tree = Series((Parallel((light, heavy, other, leaf_series("e"))), Leaf("f")))
    shares = {"a": 0.1, "b": 0.3, "c": 0.2, "d": 0.2, "e": 0.2, "f": 0.0}
    assert paired(tree, shares) == Series((Parallel((leaf_series("b", "e"), leaf_series("c", "d", "a"))), Leaf("f")))
    equal = dict.fromkeys(tree.ops, 0.1)
    assert paired(Series((Parallel((light, heavy)), Leaf("f"))), equal).parts[0] == Parallel((light, heavy))


def test_cut_bytes_count_an_output_once_and_carry_it_past_a_bundled_branch() -> None:
    graph = towers([2, 1], 2, 4).graph
    chain = bundled(decompose(graph), 1)
    # b0.0 | b0.1 | b1.0 | join: the output of b0.1 also crosses the cut after b1.0.
    assert cut_bytes(chain, graph)[id(chain)] == (0.0, 1e3, 1e3, 2e3, 0.0)


def test_the_tail_is_everything_from_a_whole_batch_operator_on() -> None:
    problem = towers([2, 2], 2, 4, whole_batch=True)
    tail = WholeBatchTail.of(problem.graph)
    assert tail.ops == ("join",)
    assert tail.before is not None
    assert len(tail.before.ops) == 4
    assert WholeBatchTail.of(towers([2], 1, 4).graph).ops == ()


@pytest.mark.parametrize("branches", [[1], [4, 2], [3, 3, 3]])
def test_bundling_keeps_every_operator(branches: list[int]) -> None:
    tree = decompose(towers(branches, 2, 4).graph)
    for groups in range(1, 5):
        assert sorted(bundled(tree, groups).ops) == sorted(tree.ops)
