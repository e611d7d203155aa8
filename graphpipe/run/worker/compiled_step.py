"""Steps whose stages are compiled: what can be, and when."""

from collections.abc import Collection, Mapping
from contextlib import AbstractContextManager, nullcontext

import torch

from graphpipe.errors import InvalidInput
from graphpipe.model.backends.inductor import INDUCTOR
from graphpipe.model.compiled.own_compilations import Regions
from graphpipe.model.compiled.stage_compiler import StageCompiler
from graphpipe.model.compiled.torch_compiler import Compilation
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
        other = next((each for each in own.get(name, {}).values() if each.backend is not None), None)
        if other is not None:
            raise InvalidInput(
                f"is compiled by the backend '{other.name}', whose backward has no halves as stage '{name}' needs",
                where=_module(other),
                remedy="Compile it by inductor, or plan with a schedule of whole backwards, such as 1f1b.",
            )
    if missing := INDUCTOR.missing():
        raise InvalidInput(missing, where="compile", remedy="Install it, or leave out compile.")
    for stage, engine in zip(plan.stages, syncs.names, strict=True):
        if not every and stage.name not in own:
            continue
        if stage.tensor > 1:
            problem, otherwise = f"{stage.tensor} devices share each of its replicas", "tensor parallelism"
        elif stage.degree > 1 and find_sync(engine).traits.shards_parameters:
            problem, otherwise = f"engine '{engine}' shards its weights", "sharded weights"
        else:
            continue
        if every:
            what, where, remedy = f"stage '{stage.name}' cannot be compiled: {problem}", "compile", "Leave out compile"
        else:
            what = f"is compiled by torch.compile, and cannot be in stage '{stage.name}': {problem}"
            where = _module(next(iter(own[stage.name].values())))
            remedy = "Give it as it was before torch.compile"
        raise InvalidInput(what, where=where, remedy=f"{remedy}, or plan without {otherwise}.")
    return StageCompiler(every=every, own=own)


def _module(asked: Compilation) -> str:
    return f"module '{asked.path}'" if asked.path else "model"


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
