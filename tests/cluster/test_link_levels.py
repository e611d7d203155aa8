"""Groups of devices that fast links connect, and the bandwidths that a search assumes."""

from dataclasses import replace

import pytest
from unequal_links import FAST, SITE, SLOW, linked

from graphpipe.cluster import Link


def test_nodes_are_the_groups():
    levels = linked("aabb", {}).link_levels
    assert levels.groups == (0, 0, 1, 1)
    assert levels.bandwidths == (SLOW,)
    assert linked("aaaa", {}).link_levels.bandwidths == (FAST,)


def test_the_notation_does_not_matter():
    by_node = linked("aabb", {})
    fast = {(0, 1): FAST, (2, 3): FAST}
    slow = {(one, other): SLOW for one in (0, 1) for other in (2, 3)}
    for nodes, pairs in (("aaaa", slow), ("abcd", fast), ("abcd", fast | slow), ("aabb", fast)):
        assert linked(nodes, pairs).link_levels == by_node.link_levels


def test_devices_of_a_group_need_not_be_neighbours():
    levels = linked("abab", {(0, 1): SLOW}).link_levels
    assert levels.groups == (0, 1, 0, 1)
    assert levels.near_first == (0, 2, 1, 3)


@pytest.mark.parametrize("nodes", ["aaaa", "abcd"])
def test_equal_links_make_one_level(nodes):
    pairs = {(one, other): SLOW for one in range(4) for other in range(one)}
    levels = linked(nodes, pairs).link_levels
    assert levels.groups == (0, 0, 0, 0)
    assert levels.bandwidths == (SLOW,)


def test_a_ring_is_one_group_of_unequal_links():
    levels = linked("abcd", {(0, 1): FAST, (1, 2): FAST, (2, 3): FAST, (0, 3): FAST}).link_levels
    assert levels.groups == (0, 0, 0, 0)
    assert not levels.regular
    # Four fast pairs of six: a byte takes (4 / 8 + 2 / 1) / 6 ns in the mean.
    assert levels.bandwidths == (pytest.approx(2.4e9), SLOW, FAST)


def test_of_three_levels_the_slowest_divides_into_groups():
    pairs = {(one, other): SITE for one in range(4) for other in range(4, 8)}
    levels = linked("aabbccdd", pairs).link_levels
    assert levels.groups == (0, 0, 0, 0, 1, 1, 1, 1)
    assert levels.bandwidths[1:] == (SITE, SLOW, FAST)


def test_levels_are_found_quickly_on_many_devices():
    levels = linked("a" * 512 + "b" * 512, {(0, 512): FAST}).link_levels
    assert levels.groups == (0,) * 1024
    assert not levels.regular


def test_a_latency_that_differs_is_a_level_of_its_own():
    cluster = linked("aab", {(0, 2): FAST, (1, 2): FAST})
    assert cluster.link_levels.regular
    far = Link(latency_seconds=1e-3, bandwidth_bytes_per_second=FAST)
    slower = replace(cluster, pair_links=tuple(replace(pair, link=far) for pair in cluster.pair_links))
    assert not slower.link_levels.regular
