"""The inference pipeline: answers requests as a plan splits the model."""

from collections.abc import Generator, Iterable, Mapping
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import Self

from torch import Tensor, nn

from graphpipe.errors import InvalidInput
from graphpipe.model.backends.place_stage import placed_program
from graphpipe.model.inputs import Inputs, describe, name_inputs
from graphpipe.model.split.module_stage import check_evaluates
from graphpipe.model.without_data.construction import ModelBuilder
from graphpipe.model.without_data.meta_model import without_data
from graphpipe.plans import Plan
from graphpipe.run.comm.messages import RankMessages
from graphpipe.run.comm.plan_handshake import shake_hands
from graphpipe.run.comm.rank_placement import RankPlacement
from graphpipe.run.comm.world import join
from graphpipe.run.device.precision import check_planned_precision
from graphpipe.run.device.stage_streams import StageStreams
from graphpipe.run.faults.status_reporter import StatusReporter
from graphpipe.run.inference.failure_reports import FailureReports
from graphpipe.run.inference.inference_replica import InferenceReplica, InferenceReplicaRun
from graphpipe.run.inference.request_queue import Answer, Refused, Request, RequestQueue, one_row_each
from graphpipe.run.initial_weights.filled_copy import lacks_data
from graphpipe.run.initial_weights.host_tensors import host_tensors
from graphpipe.run.pipeline_parts import digest
from graphpipe.run.stage.mini_batch import MiniBatch, check_rows
from graphpipe.run.stage.receive_buffers import ReceiveBuffers
from graphpipe.run.step.evaluation import evaluation_mode, forward_schedules
from graphpipe.run.step.pipeline_options import PipelineOptions
from graphpipe.run.step.programs_by_shape import ProgramsByShape, format_inputs
from graphpipe.run.tensor.share_stages import check_tensor, open_teams, share_stages
from graphpipe.run.worker.recorder import Recorder
from graphpipe.run.worker.step_batches import StepBatches
from graphpipe.run.worker.step_run import run_step
from graphpipe.run.worker.worker import Worker
from graphpipe.schedule.schedulers.registry import build_schedule


class InferencePipeline:
    """A model that answers requests as a plan splits it. All ranks build it and call `map` alike (SPMD).

    Args:
        plan: from `gp.plan(..., inference=True)`. With one rank, that rank runs everything. Otherwise there is one rank
            per device in use.
        model: the user's model, the same on every rank, or a function that builds it. It runs in evaluation mode. If it
            is on the meta device, or the options give initial weights, each rank has the weights of its stages only.
        options: device, timeout, capture, initial weights and seed are used; None takes the defaults.

    Raises:
        InvalidInput: the plan trains, its answers come from several devices, the world or the model does not fit it, or
            the ranks differ, or a tensor has no initial value.
        PeerLost, PeerStalled: a peer did not come.
    """

    def __init__(self, plan: Plan, model: nn.Module | ModelBuilder, *, options: PipelineOptions | None = None) -> None:
        if plan.trains:
            raise InvalidInput("the plan trains", where="plan", remedy="Plan with inference=True.")
        self.plan, options, model = plan, options or PipelineOptions(), without_data(model)
        self._windows = 0
        self._whole = any(op.whole_batch for op in plan.graph.ops)
        self.world = join(options.device, options.timeout_seconds)
        with self.world.closing_on_error():
            check_tensor(plan, "allreduce")
            placement = RankPlacement.of(plan, self.world.size)
            share = partial(share_stages, placement=placement, world=self.world)
            shapes = ProgramsByShape(plan, model, "fp32", self.world.device, options.captured, share).first
            self._specs = shapes.specs
            programs = [*shapes.programs]
            output = [program.is_output for program in programs].index(True)
            check_evaluates(programs)
            self._arrange = shapes.programs[output].arrange
            if plan.stages[output].degree > 1:
                what = f"stage '{plan.stages[output].name}', which computes the answers, has several replicas"
                raise InvalidInput(what, where="plan", remedy="Give it one device, or devices that share one replica.")
            settings = {
                "engine": "inference",
                "optimizer sharding": "whole",
                "precision": "fp32",
                "seed": options.seed,
                "values on the stage edges": digest(self._specs),
                "initial weights": "the model's" if (source := options.initial_weights) is None else source.description,
            }
            self._schedules = forward_schedules(plan, build_schedule(plan), placement)
            shake_hands(self.world, plan, placement, settings)
            open_teams(placement, self.world)
            check_planned_precision(plan, "fp32", where="inference")
            if source is not None or lacks_data(model):
                host_tensors(model, programs, placement, self.world, source, options.seed)
            for number in {slot.stage for slot in placement.slots(self.world.rank)}:
                if plan.stages[number].regions:
                    programs[number] = placed_program(model, plan, number, programs[number], options.captured)
            self._worker = Worker(
                placement=placement,
                world=self.world,
                replicas={
                    (slot.stage, slot.device): InferenceReplica(
                        slot=slot,
                        stage_name=plan.stages[slot.stage].name,
                        program=programs[slot.stage],
                        device=self.world.device,
                    )
                    for slot in placement.slots(self.world.rank)
                },
                new_run=lambda replica, _: InferenceReplicaRun(replica, ReceiveBuffers(replica.device)),
                syncs={},
                messages=RankMessages(self.world),
                streams=StageStreams.of(self.world.device, plan),
                recorder=Recorder(world=self.world, on=False),
                monitor=StatusReporter.of(
                    self.world.rank,
                    [stage.name for stage in plan.stages],
                    self.world.device,
                    options.faults,
                    options.fault_log,
                ),
            )
            for replica in self._worker.replicas.values():
                replica.program.module.to(self.world.device)
            root = placement.ranks(output)[0]
            members = sorted({*placement.rank_of.values()} - {root})
            self._reports = FailureReports(world=self.world, root=root, members=members)

    @property
    def answers(self) -> bool:
        """Whether this rank hosts the output stage, so that `map` yields answers here."""
        return self.world.rank == self._reports.root

    def map(self, batches: Iterable[Inputs | Refused]) -> Generator[Answer | None]:
        """Yield the answer to every request, in order; None on the ranks that do not host the output stage.

        Requests are cut and joined into windows of the plan's mini-batch. A request is read only when the windows
        before it are computed, so a slow reader of the answers, or a slow stage, holds the requests back. If an
        operator needs the whole batch, every request is a window of its own.

        A sample that fails is named in its answer, and costs no other sample. Outputs have the bits of `model.eval()`
        on batches of a stage's micro-batch.

        Args:
            batches: the requests, the same on every rank. Each is any number of samples, as tensors of the shapes that
                the plan was made for. The first dimension is samples. A `Refused` is answered with its reason.

        Raises:
            InvalidInput: an output has no row per sample.
            PeerLost, PeerStalled: another rank is gone; it is named.
        """
        queue = RequestQueue()
        with self.world.closing_on_error():
            for batch in batches:
                self._take(queue, batch)
                while queue.samples and (self._whole or queue.samples >= self.plan.batch_size):
                    self._run(queue)
                for request in queue.finished():
                    yield self._answer(request)
            while queue.samples:
                self._run(queue)
            for request in queue.finished():
                yield self._answer(request)
            self._reports.wait()

    def close(self) -> None:
        """Leave the other ranks once all of them are ready to leave; all ranks call this."""
        self.world.leave()

    def __enter__(self) -> Self:
        """Return the pipeline; it closes at the end of the block."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        """Close; after an error at once, so that the other ranks need not wait."""
        if error is None:
            self.close()
        else:
            self.world.abandon()

    def _answer(self, request: Request) -> Answer | None:
        if not self.answers:
            return None
        answer = request.answer()
        return answer if answer.outputs is None else replace(answer, outputs=self._arrange(answer.outputs))

    def _take(self, queue: RequestQueue, batch: Inputs | Refused) -> None:
        if isinstance(batch, Refused):
            queue.refuse(batch.reason)
            return
        size = 1  # as long as nothing else is known
        try:
            named = name_inputs(self.plan.graph.input_layout, batch)
            size = check_rows(named, None)
            if describe(named) != self.plan.graph.inputs:
                given, planned = format_inputs(describe(named)), format_inputs(self.plan.graph.inputs)
                raise InvalidInput(f"is {given}, the plan was made for {planned}", where="request")
            if self._whole and size > self.plan.batch_size:
                raise InvalidInput(f"has {size} samples, the plan allows {self.plan.batch_size}", where="request")
        except InvalidInput as error:
            queue.refuse(" ".join(str(error).split()), size)
        else:
            queue.add(named, size)

    def _run(self, queue: RequestQueue) -> None:
        inputs, parts = queue.window(self.plan.batch_size)
        samples = sum(len(rows) for _, rows in parts)
        forward = self._schedules(samples)
        self._worker.messages.open(forward.pairs)
        self._windows += 1
        self._worker.monitor.begin_step(self._windows)
        batch = self._batch(inputs, samples, forward.micro_batches)
        replicas = self._worker.replicas.values()
        with evaluation_mode(replica.program.module for replica in replicas):
            runs = run_step(self._worker, forward.lowered, StepBatches.of((batch,)), None).values()
        own = {sample: why for run in runs for sample, why in sorted(run.failures.items(), reverse=True)}
        failures = self._reports.exchange(own)
        results = [piece for run in runs if not run.replica.slot.position for piece in run.results]
        if not one_row_each(results):
            remedy = "Return one row per sample."
            raise InvalidInput("an output tensor does not have one row per sample", where="model", remedy=remedy)
        queue.settle(parts, results, failures)
        self._worker.monitor.end_step()

    def _batch(self, inputs: Mapping[str, Tensor], size: int, micro_batches: tuple[int, ...]) -> MiniBatch:
        return MiniBatch(
            inputs=inputs,
            targets=None,
            size=size,
            micro_batches=micro_batches,
            key=(0, 0),
            training=False,
            specs=self._specs,
            check_finite=False,
        )
