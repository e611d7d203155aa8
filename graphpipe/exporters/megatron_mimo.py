"""The parallelism of a Megatron MIMO model: ranks and degrees for each encoder and the language model.

References:
    github.com/NVIDIA-NeMo/Megatron-Bridge, models/megatron_mimo/megatron_mimo_config.py, 0.5.
"""

from itertools import accumulate

from graphpipe.errors import InvalidInput
from graphpipe.exporters.branches import LANGUAGE, Branch, branches_of, check_one_stage_each
from graphpipe.exporters.exporter import Exported, Exporter
from graphpipe.exporters.notes import check_synchronous, notes_of
from graphpipe.exporters.stage_modules import check_parameters
from graphpipe.plans import Plan
from graphpipe.schedule.schedulers import one_f_one_b


def write_megatron_mimo(plan: Plan) -> Exported:
    """Return a plan as a Python module.

    Raises:
        InvalidInput: MIMO cannot hold the plan.
    """
    check_synchronous(plan)
    check_parameters(plan)
    branches = sorted(branches_of(plan), key=lambda branch: branch.chain.groups[0])
    check_one_stage_each(branches, "MIMO")
    _check_degrees(branches)
    counts = [len(branch.chain.groups) * len(branch.chain.groups[0]) for branch in branches]
    notes = (*notes_of(plan, one_f_one_b.NAME), *_uneven(branches))
    lines = [
        *(f"# {note}" for note in notes),
        "from megatron.bridge.models.megatron_mimo.megatron_mimo_config import (",
        "    MegatronMIMOParallelismConfig,",
        "    ModuleParallelismConfig,",
        ")",
        "",
        "parallelism = MegatronMIMOParallelismConfig(",
        "    module_parallelisms={",
    ]
    for branch, offset in zip(branches, accumulate([0, *counts]), strict=False):
        lines += [f"        # {stage}" for stage in _stages(plan, branch)]
        lines += [
            f'        "{branch.name}": ModuleParallelismConfig(',
            f"            tensor_model_parallel_size={branch.chain.tensor},",
            f"            pipeline_model_parallel_size={len(branch.chain.groups)},",
            f"            data_parallel_size={branch.chain.degree},",
            f"            rank_offset={offset},",
            "        ),",
        ]
    return Exported(text="\n".join([*lines, "    }", ")", ""]), notes=notes)


def _stages(plan: Plan, branch: Branch) -> list[str]:
    return [
        f"{plan.stages[stage].name} on {', '.join(plan.cluster.devices[device].name for device in group)}: "
        + ", ".join(modules if len(modules) < 4 else (modules[0], "..", modules[-1]))
        for stage, group, modules in zip(branch.chain.stages, branch.chain.groups, branch.modules, strict=True)
    ]


def _uneven(branches: list[Branch]) -> list[str]:
    return [
        f"MIMO gives each pipeline rank of '{branch.name}' equally many layers; the plan's are listed beside it."
        for branch in branches
        if len({len(modules) for modules in branch.modules}) > 1
    ]


def _check_degrees(branches: list[Branch]) -> None:
    (language,) = (branch for branch in branches if branch.name == LANGUAGE)
    for branch in branches:
        if branch.chain.degree % language.chain.degree:
            what = (
                f"'{branch.name}' has data-parallel degree {branch.chain.degree}, which must be a multiple of the "
                f"language model's {language.chain.degree}"
            )
            raise InvalidInput(what, where="plan", remedy="Run this plan with `graphpipe train`.")


MEGATRON_MIMO = Exporter(
    name="megatron-mimo",
    summary="a Python module with ranks and degrees for each module of a Megatron MIMO model",
    write=write_megatron_mimo,
)
