"""The section of a torchtitan job that says which submodules each pipeline stage has.

References:
    github.com/pytorch/torchtitan, config/job_config.py, Parallelism, release 0.2.
"""

from graphpipe.errors import InvalidInput
from graphpipe.exporters.exporter import Exported, Exporter
from graphpipe.exporters.notes import check_synchronous, notes_of
from graphpipe.exporters.stage_chain import StageChain, chain_of
from graphpipe.exporters.stage_modules import check_parameters, stage_modules, top_level
from graphpipe.plans import Plan
from graphpipe.schedule.schedulers import gpipe, interleaved, one_f_one_b

_SCHEDULES = {gpipe.NAME: "GPipe", one_f_one_b.NAME: "1F1B"}


def write_torchtitan(plan: Plan) -> Exported:
    """Return a plan as the TOML of `parallelism` and `training`.

    Raises:
        InvalidInput: torchtitan cannot hold the plan.
    """
    check_synchronous(plan)
    chain = chain_of(plan)
    check_parameters(plan)
    name, written = _schedule(plan, chain)
    parts = stage_modules(plan, chain.stages, top_level)
    notes = notes_of(plan, written)
    lines = [
        *(f"# {note}" for note in notes),
        "[training]",
        f"local_batch_size = {plan.batch_size // chain.degree}",
        f"global_batch_size = {plan.batch_size}",
        "",
        "[parallelism]",
        f"pipeline_parallel_degree = {len(chain.groups)}",
        f"data_parallel_replicate_degree = {chain.degree}",
        "data_parallel_shard_degree = 1",
        f'pipeline_parallel_schedule = "{name}"',
        f"pipeline_parallel_microbatch_size = {chain.micro_batch // chain.degree}",
        "module_fqns_per_model_part = [",
        *(f"    [{', '.join(_quoted(each) for each in part)}]," for part in parts),
        "]",
    ]
    return Exported(text="\n".join([*lines, ""]), notes=notes)


def _quoted(name: str) -> str:
    return f'"{name}"'


def _schedule(plan: Plan, chain: StageChain) -> tuple[str, str]:
    # The name in torchtitan, and the one in GraphPipe.
    if chain.rounds == 1:
        written = plan.schedule if plan.schedule in _SCHEDULES else one_f_one_b.NAME
        return _SCHEDULES[written], written
    if chain.placement == "looped":
        return "Interleaved1F1B", interleaved.NAME
    remedy = "Plan again with `--stages-per-device 1`."
    raise InvalidInput(
        "the stages lie on the devices as a V, and torch has no 1F1B for it", where="plan", remedy=remedy
    )


TORCHTITAN = Exporter(
    name="torchtitan",
    summary="the TOML of a torchtitan job: submodules by stage, degrees and schedule",
    write=write_torchtitan,
)
