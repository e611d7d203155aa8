"""Encoders that lead into one language model: the only graph of stages that multimodal trainers know.

vision:    s0 -> s1 -.
audio:     s2 --------> s3 -> s4  language
"""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import takewhile

from graphpipe.errors import InvalidInput
from graphpipe.exporters.stage_chain import ONE_STAGE_EACH, StageChain, chain_of
from graphpipe.exporters.stage_modules import layer, stage_modules
from graphpipe.plans import Plan

LANGUAGE = "language"
"""Name of the branch that every other one leads into."""
_BY_HAND = "Write the stages by hand (`graphpipe plan --stages`), or run this plan with `graphpipe train`."


@dataclass(frozen=True, slots=True, kw_only=True)
class Branch:
    """One module of a multimodal model: a chain of stages on devices of its own."""

    name: str
    chain: StageChain
    modules: tuple[tuple[str, ...], ...]
    """The submodules that each stage holds."""


def branches_of(plan: Plan) -> tuple[Branch, ...]:
    """Return the encoders of a plan and the language model, which comes last.

    Raises:
        InvalidInput: the stages do not form chains that lead into one chain, or chains share devices. The message names
            the edge or the stage.
    """
    main = _language(plan)
    chains = [_encoder(plan, source, main) for source in plan.predecessors[main[0]]]
    left = set(range(len(plan.stages))) - set(main) - {stage for chain in chains for stage in chain}
    if left:
        name = plan.stages[min(left)].name
        what = f"stage {name} leads into an encoder, and the format holds only chains that lead into one chain"
        raise InvalidInput(what, where="plan", remedy="Run this plan with `graphpipe train`.")
    branches = [_branch(plan, stages, "") for stages in chains]
    branches.append(_branch(plan, main, LANGUAGE))
    _check_own_devices(plan, branches)
    _check_names(branches)
    return tuple(branches)


def check_one_stage_each(branches: Iterable[Branch], tool: str) -> None:
    """Check that each device hosts one stage.

    Raises:
        InvalidInput: a branch has several on each device, and the tool has one.
    """
    for branch in branches:
        if branch.chain.rounds > 1:
            what = f"'{branch.name}' has {branch.chain.rounds} stages on each device, and {tool} has one"
            raise InvalidInput(what, where="plan", remedy=ONE_STAGE_EACH)


def _language(plan: Plan) -> tuple[int, ...]:
    # From the stage where branches meet to the last one. If the first stage of the language model embeds the text, one
    # encoder and the language model form a chain.
    joins = [stage for stage in range(len(plan.stages)) if len(plan.predecessors[stage]) > 1]
    joins = joins or [stage for stage in range(1, len(plan.stages)) if _embeds(plan, stage)][:1]
    if not joins and _embeds(plan, 0) and len(plan.stages) > 1:
        first, second = plan.stages[0].name, plan.stages[1].name
        what = f"stage {first} embeds the text, and the format needs that in the language model, such as in {second}"
        raise InvalidInput(what, where="plan", remedy=f"For one chain use `--format megatron`. {_BY_HAND}")
    if not joins:
        what = "the plan has no stage where branches meet, and none after the first that embeds an input"
        raise InvalidInput(what, where="plan", remedy="Use `--format megatron` for a chain of stages.")
    if len(joins) > 1:
        names = ", ".join(plan.stages[stage].name for stage in joins)
        what = f"branches meet at several stages ({names}), and the format knows only encoders that lead into one model"
        raise InvalidInput(what, where="plan", remedy="Run this plan with `graphpipe train`.")
    return tuple(stage for stage in range(len(plan.stages)) if stage == joins[0] or _follows(plan, stage, joins[0]))


def _embeds(plan: Plan, stage: int) -> bool:
    ops = plan.stages[stage].ops
    return any("Embedding" in op.kind and op.model_inputs for op in plan.graph.ops if op.name in ops)


def _follows(plan: Plan, stage: int, start: int) -> bool:
    return any(before == start or _follows(plan, before, start) for before in plan.predecessors[stage])


def _encoder(plan: Plan, last: int, main: tuple[int, ...]) -> tuple[int, ...]:
    chain = [last]
    while plan.predecessors[chain[0]]:
        chain.insert(0, plan.predecessors[chain[0]][0])
    for stage, after in zip(chain, (*chain[1:], main[0]), strict=True):
        for other in plan.successors[stage]:
            if other != after:
                edge = f"{plan.stages[stage].name} -> {plan.stages[other].name}"
                what = f"edge {edge} leaves an encoder on the way, and the format holds only chains"
                raise InvalidInput(what, where="plan", remedy="Run this plan with `graphpipe train`.")
    return tuple(chain)


def _branch(plan: Plan, stages: tuple[int, ...], name: str) -> Branch:
    modules = tuple(tuple(part) for part in stage_modules(plan, stages, layer))
    return Branch(name=name or _module_of(modules), chain=chain_of(plan, stages), modules=modules)


def _module_of(modules: tuple[tuple[str, ...], ...]) -> str:
    # The innermost submodule that all these are in. Without one, the model's first child among them.
    paths = [path.split(".")[:-1] for part in modules for path in part]
    levels = takewhile(lambda parts: len(set(parts)) == 1, zip(*paths, strict=False))
    return ".".join(parts[0] for parts in levels) or modules[0][0].split(".")[0]


def _check_own_devices(plan: Plan, branches: list[Branch]) -> None:
    owner: dict[int, str] = {}
    for branch in branches:
        for device in (device for group in branch.chain.groups for device in group):
            if owner.setdefault(device, branch.name) != branch.name:
                device_name = plan.cluster.devices[device].name
                both = f"'{owner[device]}' and '{branch.name}'"
                what = f"{both} share {device_name}, and the format gives each ranks of its own"
                raise InvalidInput(what, where="plan", remedy=_BY_HAND)


def _check_names(branches: list[Branch]) -> None:
    names = [branch.name for branch in branches]
    for name in names:
        if names.count(name) > 1:
            what = f"two branches consist of submodules of '{name}', and the format needs a name for each"
            raise InvalidInput(what, where="plan", remedy="Run this plan with `graphpipe train`.")
