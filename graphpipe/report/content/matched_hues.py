"""One colour for the same modules in every plan of a comparison."""

from collections.abc import Sequence

from graphpipe.plans import Plan


def matched_hues(plans: Sequence[Plan]) -> list[tuple[int, ...]]:
    """Return the number of the hue of each stage, plan by plan. Stages of one plan have different hues.

    A stage takes the hue of the stage of an earlier plan with which it has most operators in common, by their share in
    both together (Jaccard index). The stages that are most alike choose first.
    """
    owners: list[frozenset[str]] = []
    hues: list[tuple[int, ...]] = []
    for plan in plans:
        sets = [frozenset(stage.ops) for stage in plan.stages]
        pairs = [
            (len(own & known) / len(own | known), stage, hue)
            for stage, own in enumerate(sets)
            for hue, known in enumerate(owners)
            if own & known
        ]
        chosen: dict[int, int] = {}
        for _, stage, hue in sorted(pairs, key=lambda pair: (-pair[0], pair[1], pair[2])):
            if stage not in chosen and hue not in chosen.values():
                chosen[stage] = hue
        for stage, own in enumerate(sets):
            if stage not in chosen:
                chosen[stage] = len(owners)
                owners.append(own)
        hues.append(tuple(chosen[stage] for stage in range(len(sets))))
    return hues
