"""Groups that compute next to nothing are joined to a neighbour."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from torch import fx

from graphpipe.model.capture.groups import Groups, Reads, acyclic_groups
from graphpipe.model.capture.reading import Reading


def fuse_tiny(
    groups: Groups,
    readings: Mapping[fx.Node, Reading],
    parameter_elements: Callable[[fx.Node], int],
    whole_batch: Callable[[fx.Node], bool],
    reads: Reads,
    *,
    saving: bool = True,
) -> Groups:
    """Join every tiny group to a neighbour.

    A tiny group has no matrix product, and at most two parameter elements per element of output: a layer norm is tiny,
    an embedding is not. It joins its only producer, if that feeds nothing else. A residual addition joins the branch
    that it closes, and a check of values joins what it checks. Any other tiny group joins its only consumer. Groups
    that need the whole mini-batch are never joined to groups that do not.

    Args:
        groups: in topological order.
        readings: of every node.
        parameter_elements: elements of a node's own parameters.
        whole_batch: true for nodes that need the whole mini-batch.
        reads: what each node reads.
        saving: also join groups that save something for the backward.
    """
    links = _link(groups, reads)
    whole = {number: any(map(whole_batch, group)) for number, group in enumerate(groups)}

    def tiny(number: int) -> bool:
        nodes = links.members[number]
        if not saving and any(readings[node].saved for node in nodes):
            return False
        flops = sum(readings[node].flops for node in nodes)
        return not flops and sum(map(parameter_elements, nodes)) <= 2 * max(readings[node].elements for node in nodes)

    changed = True
    while changed:
        changed = False
        for number in sorted(links.members):
            if number in links.members and tiny(number):
                target = _partner(number, links, whole)
                if target is not None:
                    links.merge(number, target)
                    changed = True
    order = {node: index for index, node in enumerate(node for group in groups for node in group)}
    merged = [tuple(sorted(members, key=order.__getitem__)) for members in links.members.values()]
    return acyclic_groups([*order], {node: group[0] for group in merged for node in group}, reads)


@dataclass(slots=True, kw_only=True)
class _Links:
    # Groups by number: their nodes, the groups they read, and the groups that read them.
    members: dict[int, list[fx.Node]]
    before: dict[int, set[int]]
    after: dict[int, set[int]]

    def merge(self, group: int, into: int) -> None:
        self.members[into] += self.members.pop(group)
        for mine, theirs in ((self.before, self.after), (self.after, self.before)):
            for other in mine.pop(group):
                theirs[other].discard(group)
                if other != into:
                    theirs[other].add(into)
                    mine[into].add(other)

    def ancestors(self, group: int) -> set[int]:
        stack, found = [group], set[int]()
        while stack:
            for other in self.before[stack.pop()] - found:
                found.add(other)
                stack.append(other)
        return found

    def holds_output(self, group: int) -> bool:
        return any(node.op == "output" for node in self.members[group])


def _link(groups: Groups, reads: Reads) -> _Links:
    number = {node: index for index, group in enumerate(groups) for node in group}
    links = _Links(
        members={index: list(group) for index, group in enumerate(groups)},
        before={index: set() for index in range(len(groups))},
        after={index: set() for index in range(len(groups))},
    )
    for node, here in number.items():
        for value in reads(node):
            there = number.get(value, here)
            if there != here:
                links.before[here].add(there)
                links.after[there].add(here)
    return links


def _partner(number: int, links: _Links, whole: Mapping[int, bool]) -> int | None:
    # The group that a tiny group joins; None if it stays separate.
    before, after = links.before[number], links.after[number]
    if before and not after and not links.holds_output(number) and whole[max(before)] == whole[number]:
        return max(before)
    for producer in sorted(before, reverse=True):
        if links.after[producer] != {number} or whole[producer] != whole[number]:
            continue
        only_producer = len(before) == 1
        closes_branch = not links.holds_output(number) and before - {producer} <= links.ancestors(producer)
        if only_producer or closes_branch:
            return producer
    if len(after) == 1:
        (consumer,) = after
        gathers_output = links.holds_output(consumer) and len(links.before[consumer]) > 1
        if whole[consumer] == whole[number] and not gathers_output:
            return consumer
    return None
