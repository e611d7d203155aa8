"""The section of a torchtitan job that says which submodules each pipeline stage has.

References:
    github.com/pytorch/torchtitan, config/job_config.py, Parallelism, release 0.2.
"""

import json

from graphpipe.exporters.exporter import Exported, Exporter
from graphpipe.exporters.notes import check_synchronous, notes_of
from graphpipe.exporters.stage_chain import chain_of
from graphpipe.exporters.stage_modules import check_parameters, stage_modules, top_level
from graphpipe.exporters.torch_schedule import torch_schedule
from graphpipe.plans import Plan


def write_torchtitan(plan: Plan) -> Exported:
    """Return a plan as the TOML of `parallelism` and `training`.

    Raises:
        InvalidInput: torchtitan cannot hold the plan.
    """
    check_synchronous(plan)
    chain = chain_of(plan)
    check_parameters(plan)
    name, written = torch_schedule(plan, chain)
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
        *([f"tensor_parallel_degree = {chain.tensor}"] if chain.tensor > 1 else []),
        f"data_parallel_replicate_degree = {chain.degree}",
        "data_parallel_shard_degree = 1",
        f'pipeline_parallel_schedule = "{name}"',
        f"pipeline_parallel_microbatch_size = {chain.micro_batch // chain.degree}",
        "module_fqns_per_model_part = [",
        *(f"    {json.dumps(part)}," for part in parts),
        "]",
    ]
    return Exported(text="\n".join([*lines, ""]), notes=notes)


TORCHTITAN = Exporter(
    name="torchtitan",
    summary="the TOML of a torchtitan job: submodules by stage, degrees and schedule",
    write=write_torchtitan,
)
