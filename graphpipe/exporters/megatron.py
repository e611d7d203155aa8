"""Arguments of Megatron-LM: the layout of a pipeline of transformer layers.

    Et*3|t*4|t*4|tL       four stages: embedding and 3 layers, 4 layers, 4 layers, a layer and the loss

With several stages on each device, the stages of the first round come first, as the chain has them.

References:
    docs.nvidia.com/megatron-core, Custom Pipeline Model Parallel Layout, core 0.15.
"""

import re
from collections.abc import Sequence

from graphpipe.errors import InvalidInput
from graphpipe.exporters.exporter import Exported, Exporter
from graphpipe.exporters.notes import check_synchronous, notes_of
from graphpipe.exporters.stage_chain import chain_of, check_looped
from graphpipe.exporters.stage_modules import CUT_BETWEEN, check_parameters, layer, stage_modules
from graphpipe.plans import Plan
from graphpipe.schedule.schedulers import interleaved, one_f_one_b

_LAYER = re.compile(r"(.+)\.\d+")


def write_megatron(plan: Plan) -> Exported:
    """Return a plan as a shell array of arguments.

    Raises:
        InvalidInput: Megatron cannot hold the plan.
    """
    check_synchronous(plan)
    chain = chain_of(plan)
    check_parameters(plan, may_tie=True)
    check_looped(chain, "Megatron visits them in rounds")
    parts = stage_modules(plan, chain.stages, layer)
    names = [plan.stages[stage].name for stage in chain.stages]
    notes = notes_of(plan, interleaved.NAME if chain.rounds > 1 else one_f_one_b.NAME)
    layers = [unit for part in parts for unit in part if _LAYER.fullmatch(unit)]
    lines = [
        *(f"# {note}" for note in notes),
        "GRAPHPIPE_ARGS=(",
        f"    --tensor-model-parallel-size {chain.tensor}",
        f"    --pipeline-model-parallel-size {len(chain.groups)}",
        f'    --pipeline-model-parallel-layout "{layout(parts, names)}"',
        f"    --num-layers {len(layers)}",
        f"    --micro-batch-size {chain.micro_batch // chain.degree}",
        f"    --global-batch-size {plan.batch_size}",
        ")",
        f"# For {len(plan.used_devices)} ranks: each pipeline rank has {len(chain.groups[0])} of them, one after the "
        "other.",
    ]
    return Exported(text="\n".join([*lines, ""]), notes=notes)


def layout(parts: Sequence[Sequence[str]], names: Sequence[str]) -> str:
    """Return the layout string of stages.

    Args:
        parts: by stage, the layers and other submodules that it holds, in order of execution.
        names: of the stages, for errors.

    Raises:
        InvalidInput: the layers are of several lists, are out of order, or the embedding or the head lie in several
            stages.
    """
    flat = [unit for part in parts for unit in part]
    places = [place for place, unit in enumerate(flat) if _LAYER.fullmatch(unit)]
    lists = {match[1] for unit in flat if (match := _LAYER.fullmatch(unit))}
    if len(lists) != 1:
        listed = ", ".join(sorted(lists)) or "none"
        what = f"the model has {len(lists)} lists of layers ({listed}), and Megatron's layout has one"
        raise InvalidInput(what, where="plan", remedy="Use `--format torch-pipelining` for other models.")
    before, after = set(flat[: places[0]]), set(flat[places[-1] + 1 :])
    inner = set(flat[places[0] : places[-1] + 1]) - {flat[place] for place in places}
    if inner:
        what = f"'{min(inner)}' lies between the layers, and Megatron's layout has only layers there"
        raise InvalidInput(what, where="plan", remedy="Use `--format torch-pipelining` for other models.")
    embeds = [stage for stage, part in enumerate(parts) if before & set(part)]
    if len(embeds) > 1:
        what = (
            f"stages {' and '.join(names[stage] for stage in embeds)} share the embedding, which Megatron keeps whole"
        )
        raise InvalidInput(what, where="plan", remedy=CUT_BETWEEN)
    last = max((stage for stage, part in enumerate(parts) if after & set(part)), default=len(parts) - 1)
    return "|".join(_stage(part, stage in embeds, stage == last) for stage, part in enumerate(parts))


def _stage(part: Sequence[str], embeds: bool, ends: bool) -> str:
    count = sum(bool(_LAYER.fullmatch(unit)) for unit in part)
    repeated = "t" * count if count < 3 else f"t*{count}"
    return f"{'E' if embeds else ''}{repeated}{'L' if ends else ''}"


MEGATRON = Exporter(
    name="megatron",
    summary="arguments of Megatron-LM, with the pipeline's layout",
    write=write_megatron,
)
