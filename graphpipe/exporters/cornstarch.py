"""The parallelism of a Cornstarch model: a pipeline template for each encoder and the language model.

References:
    github.com/cornstarch-org/Cornstarch, docs/parallelization/cornstarch_parallel.md, 2026.
"""

from graphpipe.errors import InvalidInput
from graphpipe.exporters.branches import LANGUAGE, Branch, branches_of, check_one_stage_each
from graphpipe.exporters.exporter import Exported, Exporter
from graphpipe.exporters.notes import check_synchronous, notes_of
from graphpipe.exporters.stage_chain import PLAN_ALIKE
from graphpipe.exporters.stage_modules import check_parameters
from graphpipe.plans import Plan
from graphpipe.schedule.schedulers import one_f_one_b

_HEAD = """\
from cornstarch.pipeline_template import PipelineTemplate
from cornstarch.plugin.multimodal_parallel_plugin import ModalParallelPlugin, MultimodalParallelPlugin


def make_plugin(models):
    \"\"\"Return the plugin. `models` has the module of each branch under its name.\"\"\"
"""


def write_cornstarch(plan: Plan) -> Exported:
    """Return a plan as a Python module.

    Raises:
        InvalidInput: Cornstarch cannot hold the plan.
    """
    check_synchronous(plan)
    check_parameters(plan)
    branches = branches_of(plan)
    check_one_stage_each(branches, "Cornstarch")
    _check_alike(branches)
    first = branches[0].chain
    notes = notes_of(plan, one_f_one_b.NAME)
    lines = [f"# {note}" for note in notes]
    lines += [
        f"# For {len(plan.used_devices)} ranks, which is {len(first.groups[0])} times the pipeline's.",
        _HEAD.rstrip("\n"),
    ]
    lines += ["    def plugin(name, modules_per_stage):"]
    lines += ["        model_name = PipelineTemplate.get_model_name(models[name])"]
    lines += ["        template = PipelineTemplate(model_name=model_name, modules_per_stage=modules_per_stage)"]
    sizes = f"tp_size={first.tensor}, sp_size=1"
    lines += [f"        return ModalParallelPlugin({sizes}, pipeline_template=template)", ""]
    lines += ["    return MultimodalParallelPlugin(", "        encoder_plugins={"]
    for branch in branches[:-1]:
        lines += [f'            "{branch.name}": plugin("{branch.name}", {_modules(branch)}),']
    lines += ["        },", f'        language_model_plugin=plugin("{LANGUAGE}", {_modules(branches[-1])}),']
    lines += [f"        microbatch_size={first.micro_batch // first.degree},"]
    lines += [f"        num_microbatches={plan.batch_size // first.micro_batch},", "    )", ""]
    return Exported(text="\n".join(lines), notes=notes)


def _modules(branch: Branch) -> str:
    # Names within the branch's own module.
    inside = f"{branch.name}."
    return repr([[path.removeprefix(inside) for path in part] for part in branch.modules])


def _check_alike(branches: tuple[Branch, ...]) -> None:
    last = branches[-1]
    for branch in branches:
        for field, here, there in (
            ("tensor-parallel degree", branch.chain.tensor, last.chain.tensor),
            ("data-parallel degree", branch.chain.degree, last.chain.degree),
            ("micro-batch", branch.chain.micro_batch, last.chain.micro_batch),
        ):
            if here != there:
                what = f"'{branch.name}' has {field} {here} and '{last.name}' has {there}, and Cornstarch has one"
                raise InvalidInput(what, where="plan", remedy=PLAN_ALIKE)


CORNSTARCH = Exporter(
    name="cornstarch",
    summary="a Python module with Cornstarch's plugins: a pipeline template for each branch",
    write=write_cornstarch,
)
