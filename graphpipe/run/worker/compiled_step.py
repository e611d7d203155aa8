"""Steps whose stages are compiled: what can be, and when."""

from collections.abc import Collection, Mapping
from contextlib import AbstractContextManager, nullcontext

import torch

from graphpipe.errors import InvalidInput
from graphpipe.model.backends.inductor import INDUCTOR
from graphpipe.model.compiled.own_compilations import Regions
from graphpipe.model.compiled.stage_compiler import StageCompiler
from graphpipe.plans import Plan
from graphpipe.run.stage.mini_batch import MiniBatch
from graphpipe.run.weights.registry import find_sync
from graphpipe.run.weights.stage_syncs import StageSyncs
from graphpipe.run.worker.worker import StageWorker


def compiler_for(
    plan: Plan,
    syncs: StageSyncs,
    *,
    every: bool,
    own: Mapping[str, Regions],
    split: Collection[str] = (),
) -> StageCompiler | None:
    """Return what compiles the stages of a rank; None if nothing is compiled.

    Args:
        plan: to be run.
        syncs: how the replicas of its stages synchronise.
        every: compile all regions, and not only those that the user has compiled.
        own: the regions that the user has compiled, by stage.
        split: names of the stages whose backward is split.

    Raises:
        InvalidInput: the compiler is missing, or a stage cannot be compiled. The message names what does not go
            together.
    """
    if not (every or own):
        return None
    for name in split:
        other = next((each.name for each in own.get(name, {}).values() if each.backend is not None), "")
        if other:
            raise InvalidInput(
                f"stage '{name}' has a module that is compiled by the backend '{other}', whose backward has no halves",
                where="model",
                remedy="Compile it by inductor, or plan with a schedule of whole backwards, such as 1f1b.",
            )
    if missing := INDUCTOR.missing():
        raise InvalidInput(missing, where="compile", remedy="Install it, or leave out compile.")
    for stage, engine in zip(plan.stages, syncs.names, strict=True):
        if not every and stage.name not in own:
            continue
        problem = ""
        if stage.tensor > 1:
            problem = f"{stage.tensor} devices share each of its replicas"
        elif stage.degree > 1 and find_sync(engine).traits.shards_parameters:
            problem = f"engine '{engine}' shards its weights"
        if problem:
            raise InvalidInput(
                f"stage '{stage.name}' cannot be compiled: {problem}",
                where="compile",
                remedy="Leave out compile, or plan without tensor parallelism and sharded weights.",
            )
    return StageCompiler(every=every, own=own)


def compiling(compiler: StageCompiler | None, worker: StageWorker, first: MiniBatch) -> AbstractContextManager[None]:
    """Return the context in which a step, or a segment, runs: its stages are compiled, if they are to be.

    Args:
        compiler: of the rank; None runs everything eagerly.
        worker: of the rank.
        first: mini-batch of the step. The first one of a pipeline runs eagerly: it checks what the stages compute.
    """
    if compiler is None:
        return nullcontext()
    if first.step == 1:
        return torch.compiler.set_stance("force_eager") if compiler.own else nullcontext()
    for each in worker.replicas.values():
        each.compares = not compiler.compilations
    return compiler.running([(each.stage_name, each.module) for each in worker.replicas.values()])
