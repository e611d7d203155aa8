"""Devices of stages on small clusters, worked out by hand."""

from dataclasses import replace

from unequal_links import linked

from graphpipe.planners.problem.assign_devices import place


def test_a_stage_takes_the_smallest_group_that_is_large_enough() -> None:
    assert place(linked("aaab", {}), [1, 3], []) == [(3,), (0, 1, 2)]
    assert place(linked("aaabb", {}), [2], []) == [(3, 4)]
    assert place(linked("aaabb", {}), [3, 2], []) == [(0, 1, 2), (3, 4)]


def test_a_stage_goes_where_it_exchanges_the_most_bytes() -> None:
    # Stage 0 is on node a, stage 1 on the only node with two free devices. One device is left on each.
    nodes = linked("aabbb", {})
    assert place(nodes, [1, 2, 1], [(0, 2, 3.0), (1, 2, 2.0)]) == [(0,), (2, 3), (1,)]
    assert place(nodes, [1, 2, 1], [(0, 2, 3.0), (1, 2, 4.0)]) == [(0,), (2, 3), (4,)]
    assert place(nodes, [1, 2, 1], [(0, 2, 0.5)]) == [(0,), (2, 3), (1,)]
    # Bytes of two stages on node b count together. An edge between other stages does not count.
    apart = linked("aabbbbb", {})
    assert place(apart, [1, 3, 1, 1], [(1, 2, 9.0), (0, 3, 3.0), (1, 3, 2.0)])[2:] == [(5,), (1,)]
    assert place(apart, [1, 3, 1, 1], [(1, 2, 9.0), (0, 3, 3.0), (1, 3, 2.0), (2, 3, 2.0)])[2:] == [(5,), (6,)]
    # What a stage sends to those placed later is not known yet.
    assert place(nodes, [1, 1], [(0, 1, 5.0)]) == [(0,), (1,)]


def test_a_stage_larger_than_every_group_begins_where_it_exchanges_bytes_and_then_where_most_are_free() -> None:
    assert place(linked("aabbb", {}), [4], []) == [(0, 2, 3, 4)]
    assert place(linked("aabbb", {}), [1, 3, 1], [(0, 2, 1.0)]) == [(0,), (2, 3, 4), (1,)]
    assert place(linked("aabbbcccc", {}), [1, 5], [(0, 1, 1.0)]) == [(0,), (1, 5, 6, 7, 8)]


def test_stages_take_devices_of_their_types() -> None:
    pair = linked("aabb", {})
    kind = pair.device_types[0]
    devices = tuple(replace(each, type="other" if at % 2 else kind.name) for at, each in enumerate(pair.devices))
    mixed = replace(pair, devices=devices, device_types=(kind, replace(kind, name="other")))
    assert place(mixed, [1, 2, 1], [(0, 1, 1.0)], ["other", kind.name, "other"]) == [(1,), (0, 2), (3,)]
    assert place(mixed, [2, 2], []) == [(0, 1), (2, 3)]


def test_between_unequal_links_the_fastest_to_its_partners_and_then_to_its_replicas_count() -> None:
    pairs = {(0, 2): 2.0, (1, 3): 4.0, (0, 3): 1.0, (1, 2): 1.0, (0, 1): 1.5, (2, 3): 3.0}
    unequal = linked("abcd", pairs)
    assert not unequal.link_levels.regular
    # On device 2, c bytes with stage 0 and d with stage 1 take c / 2 + d seconds; on device 3, c + d / 4.
    assert place(unequal, [1, 1, 1], [(0, 2, 4.0), (1, 2, 1.0)]) == [(0,), (1,), (2,)]
    assert place(unequal, [1, 1, 1], [(0, 2, 1.0), (1, 2, 1.0)]) == [(0,), (1,), (3,)]
    # Without partners the first device, and then the nearest to it.
    assert place(unequal, [2, 2], []) == [(0, 2), (1, 3)]
    assert place(unequal, [3], []) == [(0, 2, 3)]


def test_a_replica_has_its_share_of_the_bytes() -> None:
    pairs = {(0, 2): 2.0, (0, 3): 1.0, (2, 3): 3.0, (1, 3): 4.0, (0, 4): 1.9, (2, 4): 1.9, (1, 4): 0.8}
    five = linked("abcde", pairs, intra=1.0, inter=1.0)
    # 5 bytes with devices 0 and 2 together, 1 with device 1: on device 3 that takes 2.5 / 1 + 2.5 / 3 + 1 / 4 s, on
    # device 4 2 x 2.5 / 1.9 + 1 / 0.8 s.
    assert place(five, [2, 1, 1], [(0, 2, 5.0), (1, 2, 1.0)]) == [(0, 2), (1,), (3,)]
    assert place(five, [2, 1, 1], [(0, 2, 10.0), (1, 2, 1.0)]) == [(0, 2), (1,), (4,)]


def test_a_stage_chooses_after_the_others_if_all_replicas_then_sum_their_gradients_in_less_time() -> None:
    # Two nodes of three devices and one more: one of the three stages must be spread.
    nodes, degrees = linked("aaabbbc", {}), [2, 3, 2]
    as_they_come = [(0, 1), (3, 4, 5), (2, 6)]
    assert place(nodes, degrees, []) == as_they_come
    assert place(nodes, degrees, [], summed_bytes=[1.0, 9.0, 1.0].__getitem__) == as_they_come
    assert place(nodes, degrees, [], summed_bytes=[9.0, 1.0, 9.0].__getitem__) == [(0, 1), (2, 5, 6), (3, 4)]
    assert place(nodes, degrees, [], summed_bytes=[1.0, 9.0, 9.0].__getitem__) == [(5, 6), (0, 1, 2), (3, 4)]


def test_a_stage_larger_than_every_group_keeps_the_others_where_they_are() -> None:
    assert place(linked("aaabbb", {}), [1, 4], [], summed_bytes=[1.0, 9.0].__getitem__) == [(0,), (1, 3, 4, 5)]
