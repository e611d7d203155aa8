"""The pipeline: trains a split model, one mini-batch per `step`, on one rank or on one rank per device."""

import warnings
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from traceback import clear_frames
from types import TracebackType
from typing import Any, Self

import torch
from torch import Tensor, nn

from graphpipe.errors import InvalidInput, NonFiniteLoss, PeerLost
from graphpipe.model.inputs import Inputs
from graphpipe.model.stage_program import StageProgram
from graphpipe.plans import Plan
from graphpipe.run.comm import broadcast as share
from graphpipe.run.comm.batch_comparison import neighbours
from graphpipe.run.comm.plan_handshake import agree
from graphpipe.run.comm.rank_placement import Placement, RankLayout, layout
from graphpipe.run.comm.scalar_sum import Numbers
from graphpipe.run.comm.warm_up_pairs import talking
from graphpipe.run.comm.world import join
from graphpipe.run.device.loss_scale import LossScale
from graphpipe.run.device.precision import PrecisionName, check_precision, initial_scale
from graphpipe.run.device.rng import apart
from graphpipe.run.faults.fault import Fault
from graphpipe.run.faults.out_of_memory import naming_shortage
from graphpipe.run.faults.rank_status import EVERYBODY
from graphpipe.run.faults.status_reporter import Watch
from graphpipe.run.stage.edge_values import gradient_edges
from graphpipe.run.stage.loss import LossFunction
from graphpipe.run.stage.mini_batch import Batch
from graphpipe.run.step import gather_outputs as outputs
from graphpipe.run.step.batch_preparer import Intake
from graphpipe.run.step.build_worker import align_buffers, build_worker
from graphpipe.run.step.evaluation import evaluating, lower_forward
from graphpipe.run.step.optimizer_groups import portions
from graphpipe.run.step.pipeline_state import Held
from graphpipe.run.step.programs_by_shape import Shapes
from graphpipe.run.step.step_summary import check_finite, places, tally
from graphpipe.run.weights import sharded_tensors as shards
from graphpipe.run.weights.build_sync import check_schedule
from graphpipe.run.weights.replica_sync import EngineName, check_engine
from graphpipe.run.weights.weight_update import OptimizerFactory, SchedulerFactory, Update
from graphpipe.schedule import lower, schedule
from graphpipe.schedule.verify_lowered import verify_lowered
from graphpipe.trace import Trace


class Pipeline:
    """A model in training, as a plan has cut it. All ranks build it and call its methods alike (SPMD).

    Args:
        plan: says which stage runs where. With one rank, that rank runs everything; otherwise there is one rank per
            device in use, rank i on the i-th.
        model: the user's model, the same on every rank; or its stage programs, by stage.
        loss_fn: takes the model's output and the targets of some samples, returns the mean loss over these samples
            (0-d). Unless the output stage takes the whole batch, the mini-batch's loss must be that mean over samples.
        optimizer: makes an optimizer of the trainable parameters a rank hosts; not called where there are none.
            None: gradients are computed and no weight changes.
        lr_scheduler: makes a schedule of the optimizer; stepped once per step.
        engine: how replicas of a stage on ranks of their own sum gradients: `allreduce` after the last backward, `ddp`
            (DistributedDataParallel) during it, `fsdp2` (`fully_shard`) as shards of weights, gradients and optimizer
            state. `gradients` then takes part of all ranks, as `sync_model` does.
        shard_optimizer: replicas share out the optimizer's state (ZeRO-1); `fsdp2` does by itself.
        precision: of forwards and losses: `fp32`, or `bf16` or `fp16` by autocast; weights and gradients stay as they
            are. With fp16 the loss is scaled, and a step whose gradients overflow changes the scale alone.
        clip_norm: largest 2-norm of the whole model's gradients; larger ones are scaled down to it.
        seed: with step, stage, micro-batch and replica it decides all random numbers, wherever a stage runs.
        device: where this rank computes; None is `cuda:LOCAL_RANK` where there is CUDA, else the CPU.
        check_finite: look for NaN and infinity in what every stage computes, and in its gradients before the update,
            to name the first stage and micro-batch. Without it a step is refused for its loss alone.
        record: measure when everything happens, for `trace`; costs a barrier per step.
        debug: assert that no replica of a stage has more samples in flight than the plan says.
        timeout_seconds: how long to wait for a peer that neither answers nor dies.
        faults: to be injected, of all ranks (see `faults`).
        fault_log: a file that says which have struck already, and where they are noted as they strike.

    Raises:
        InvalidInput: the world does not fit the plan, the model does not, or the ranks differ.
        PeerLost, PeerStalled: a peer did not come.
    """

    def __init__(
        self,
        plan: Plan,
        model: nn.Module | Sequence[StageProgram],
        loss_fn: LossFunction,
        optimizer: OptimizerFactory | None = None,
        *,
        lr_scheduler: SchedulerFactory | None = None,
        engine: EngineName = "allreduce",
        shard_optimizer: bool = False,
        precision: PrecisionName = "fp32",
        clip_norm: float | None = None,
        seed: int = 0,
        device: torch.device | str | None = None,
        check_finite: bool = True,
        record: bool = False,
        debug: bool = False,
        timeout_seconds: float = 300.0,
        faults: Sequence[Fault] = (),
        fault_log: Path | None = None,
    ) -> None:
        self.plan = plan
        self.steps = 0
        """Steps done; with the seed they decide a step's random numbers."""
        self._loss_fn, self._seed, self._check_finite = loss_fn, seed, check_finite
        check_engine(engine, shard_optimizer=shard_optimizer)
        check_precision(precision)
        self._scale = initial_scale(precision)
        self._model = model if isinstance(model, nn.Module) else None
        self._schedule = schedule(plan)
        self._world = join(device, timeout_seconds)
        self._open = True
        with self._world.closing_on_error():
            shapes = Shapes(plan, model, precision, self._world.device)
            self._programs, specs = shapes.first.programs, shapes.first.specs
            self._output_stage = [program.is_output for program in self._programs].index(True)
            self._lowered = lower(plan, self._schedule, gradient_edges=gradient_edges(specs))
            verify_lowered(plan, self._schedule, self._lowered, gradient_edges(specs))
            placement = Placement.of(plan, self._world.size)
            shares = "shared out" if shard_optimizer else "whole"
            settings = {"engine": engine, "optimizer sharding": shares, "precision": precision}
            agree(self._world, plan, placement, specs, seed, settings)
            self._numbers = Numbers(self._world, places(plan, self._output_stage), root=placement.ranks(0)[0])
            self._watch = Watch.of(
                self._world.rank, [stage.name for stage in plan.stages], self._world.device, faults, fault_log
            )
            split_stages = self._schedule.split_stages
            check_schedule(engine, plan, split_stages, placement, self._lowered)
            self._worker = build_worker(
                plan,
                self._programs,
                placement,
                self._world,
                self._watch,
                split=split_stages,
                lasts=self._lowered.last_backwards(),
                engine=engine,
                precision=precision,
                record=record,
                debug=debug,
            )
            self._worker.channels.open(talking(self._lowered, placement))
            self._intake = Intake(
                plan=plan,
                shapes=shapes,
                worker=self._worker,
                neighbours=neighbours(plan, placement, self._lowered, self._world.rank),
            )
            shared_out = portions(self._worker, share_out=shard_optimizer)
            self._devices = placement.devices(self._world.rank)
            self._first_stage = self._worker.leaders()[0].seat.stage
            self._replicated = [number for number, stage in enumerate(plan.stages) if stage.degree > 1]
            self._update = Update.of(shared_out, optimizer, lr_scheduler, clip_norm)

    def step(self, inputs: Inputs, targets: Any = None) -> float:
        """Train on one mini-batch, and return its mean loss, the same on every rank.

        Args:
            inputs: the whole mini-batch, the same on every rank; each rank takes the rows it needs. The samples' shapes
                may differ from step to step; the first time takes as long as capturing the model.
            targets: what `loss_fn` gets beside the output: a tensor, or tuples, lists and dicts of tensors.

        Raises:
            InvalidInput: the mini-batch has another size than the plan's, or a value has an unexpected shape.
            NonFiniteLoss: of a loss or gradient, on every rank, before any weight is changed; training may go on.
            OutOfMemory: on this rank.
            PeerLost, PeerStalled: another rank is gone.
        """
        batch = self._batch(inputs, targets, training=True)
        worker, plan, watch = self._worker, self.plan, self._watch
        with self._failing():
            watch.begin(self.steps + 1)
            batch = self._intake.ready(batch)
            worker.recorder.begin()
            self._update.clear()
            self._numbers.expect()
            with apart(self._world.device):
                worker.run(self._lowered, batch, self._loss_fn)
            if self._scale is not None:
                self._update.scale_gradients(1 / self._scale.factor)
            result = tally(
                self._numbers,
                plan,
                [*worker.replicas.values()],
                self._output_stage,
                with_norms=self._update.clip_norm is not None or self._check_finite or self._scale is not None,
            )
            overflown = self._scale is not None and not self._scale.exhausted and result.overflown
            if not overflown:
                check_finite(result, plan, self.steps + 1)
            watch.at("optimizer")
            with worker.recorder.span(self._devices[0], "optimizer", self._first_stage):
                if not overflown:
                    self._update.step(result.gradient_norm)
            if self._scale is not None:
                self._scale = self._scale.after(finite=not overflown)
            if self._replicated:
                watch.at("buffers", peer=EVERYBODY)
            for stage in self._replicated:
                align_buffers(worker, stage)
            worker.recorder.end(self._devices)
            watch.end()
        self.steps += 1
        if self.steps == 1:
            self._warn_of_whole()
        return result.loss

    def evaluate(self, inputs: Inputs, targets: Any = None, *, gather: bool = True) -> tuple[float | None, Any]:
        """Compute outputs, and the mean loss if there are targets, in evaluation mode; no weight or mode changes.

        Args:
            inputs: any number of samples, the same on every rank.
            targets: None computes no loss.
            gather: give every rank the outputs; otherwise they are None.

        Returns:
            The mean loss over the samples, or None; and the model's output for all samples, in order.

        Raises:
            InvalidInput: the rows disagree, or the outputs of several micro-batches cannot be put together.
            PeerLost, PeerStalled: another rank is gone.
        """
        batch = self._batch(inputs, targets, training=False)
        stretched, lowered = lower_forward(self.plan, self._schedule, batch.size)
        batch = replace(batch, micro_batches=tuple(stage.micro_batch for stage in stretched.stages))
        worker = self._worker
        replicas = [*worker.replicas.values()]
        with self._failing():
            batch = self._intake.ready(batch)
            worker.channels.open(talking(lowered, worker.placement))
        with self._failing(), evaluating(replica.program.module for replica in replicas):
            if targets is not None:
                self._numbers.expect()
            with apart(self._world.device):
                worker.run(lowered, batch, None if targets is None else self._loss_fn)
            own = [piece for replica in replicas for piece in replica.results]
            arrange = self._programs[self._output_stage].arrange
            results = arrange(outputs.gather(self._world, own)) if gather else None
            loss = None if targets is None else tally(self._numbers, self.plan, replicas, self._output_stage).loss
        return loss, results

    def sync_model(self) -> None:
        """Give every rank's whole model the current parameters and buffers of all stages; all ranks call this."""
        with self._failing():
            self.held().publish()
            for stage, program in enumerate(self._programs):
                source = self._worker.placement.ranks(stage)[0]
                share.broadcast(self._world, share.state(program.module), source)

    def trace(self) -> Trace:
        """Return what all ranks did in the last step, if the pipeline records; all ranks call this.

        Raises:
            InvalidInput: nothing was recorded.
        """
        if not (self._worker.recorder.on and self.steps):
            raise InvalidInput("no step was recorded", where="trace", remedy="Pass record=True, and step first.")
        with self._failing():
            return self._worker.recorder.gather(self.plan)

    def layout(self) -> tuple[RankLayout, ...]:
        """Return what every rank hosts."""
        return layout(self._worker.placement)

    def backwards(self) -> dict[str, str]:
        """Return how the backward of each stage of this rank was done in the last step, where it comes in two halves.

        By stage name: `split`, or `whole: ` and why the stage's operations cannot be split; empty before a step.
        """
        told = {leader.stage_name: leader.whole for leader in self._worker.leaders()}
        return {name: f"whole: {why}" if why else "split" for name, why in told.items() if why is not None}

    def gradients(self) -> dict[str, Tensor | None]:
        """Return the last step's gradients (clipped, if so) of this rank's parameters, by their names in the model.

        With the engine `fsdp2` all ranks call this: whole gradients are put together from shards.
        """
        found = {name: parameter.grad for name, parameter in self._parameters().items()}
        return {name: None if each is None else shards.whole(each) for name, each in found.items()}

    @property
    def loss_scale(self) -> float:
        """What the loss of the next step will be multiplied by; 1 unless the precision is fp16."""
        return 1.0 if self._scale is None else self._scale.factor

    def go_on_from(self, step: int, scale: LossScale | None) -> None:
        """Count steps from a checkpoint's on, with its loss scale if there is one and it is needed."""
        self.steps = step
        if self._scale is not None and scale is not None:
            self._scale = scale

    def held(self) -> Held:
        """Return what this rank holds from step to step, for `Checkpoints`."""
        return Held(
            world=self._world,
            plan=self.plan,
            seed=self._seed,
            model=self._model,
            programs=self._programs,
            worker=self._worker,
            update=self._update,
            loss_scale=self._scale,
        )

    def close(self) -> None:
        """Leave the other ranks, in peace: all ranks call this."""
        if self._open:
            self._open = False
            self._world.leave()

    def __enter__(self) -> Self:
        """Return the pipeline; it closes at the end of the block."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        """Close; after an error at once, so that the other ranks need not wait."""
        if error is None:
            self.close()
        else:
            self._abandon(error)

    def _warn_of_whole(self) -> None:
        # What was predicted is another schedule then: the plan should have said so.
        whole = {name: how for name, how in self.backwards().items() if how != "split"}
        for name, how in whole.items():
            warnings.warn(
                f"the plan splits the backward of stage '{name}', which was done {how}. "
                "gp.choose_backwards(plan, model) finds such stages beforehand, and predicts with them",
                stacklevel=3,
            )

    def _parameters(self) -> dict[str, nn.Parameter]:
        return {
            leader.program.parameter_names[name]: parameter
            for leader in self._worker.leaders()
            for name, parameter in leader.program.module.named_parameters()
        }

    def _batch(self, inputs: Inputs, targets: Any, *, training: bool) -> Batch:
        if not self._open:
            raise InvalidInput("the pipeline is closed", remedy="Build a new one; an error on any rank closes it.")
        try:
            return self._intake.check(
                inputs,
                targets,
                key=(self._seed, self.steps),
                training=training,
                loss_scale=self.loss_scale,
                check_finite=training and self._check_finite,
            )
        except InvalidInput as error:
            with self._failing():
                self._intake.tell(error)
            raise

    def _abandon(self, error: BaseException) -> None:
        # Whatever still refers to a connection keeps it open, and the peers waiting: messages, and torch's own frames.
        if isinstance(error, PeerLost) and error.__cause__ is not None:
            clear_frames(error.__cause__.__traceback__)
        for replica in self._worker.replicas.values():
            replica.begin()
        self._worker.channels.forget()
        self._numbers.forget()
        self._world.close()
        self._open = False

    @contextmanager
    def _failing(self) -> Generator[None]:
        # Among several ranks an error anywhere ends the pipeline everywhere; alone, the next step starts afresh.
        try:
            with naming_shortage(self._watch):
                yield
        except NonFiniteLoss:
            raise
        except BaseException as error:
            if self._world.size > 1:
                self._abandon(error)
            raise
