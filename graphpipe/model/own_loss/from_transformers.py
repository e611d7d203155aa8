"""Models of Hugging Face `transformers`: captured layer by layer, with a loss that is exact over micro-batches."""

import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from inspect import signature
from typing import Any

from torch import Tensor, fx, nn

from graphpipe.errors import InvalidInput
from graphpipe.graph import Graph, Input, Origin, Precision
from graphpipe.model.autocast import check_precision
from graphpipe.model.capture.batch_statistics import statistic_of
from graphpipe.model.capture.capture import Captured, Traced, capture_measured, measure, trace
from graphpipe.model.capture.fused_attention import is_fused
from graphpipe.model.capture.module_graph.failures import ExportFailed
from graphpipe.model.capture.module_graph.opaque_modules import EVERY
from graphpipe.model.hidden.compiled_modules import check_compiled_modules
from graphpipe.model.inputs import describe, name_inputs, read_layout
from graphpipe.model.key_value_cache import without_cache
from graphpipe.model.own_loss.layer_class import layer_class
from graphpipe.model.own_loss.loss_cut import WITHOUT_LABELS
from graphpipe.model.own_loss.own_loss import OwnLoss, own_loss
from graphpipe.model.own_loss.processor_inputs import ProcessorInputs
from graphpipe.model.own_loss.without_loss import without_loss
from graphpipe.model.recorded_parts import recorded_parts
from graphpipe.model.without_data.construction import ModelBuilder
from graphpipe.model.without_data.meta_model import without_data

LABELS = ("labels", "start_positions", "end_positions")
"""Inputs that only the loss reads, by default."""
Scalar = bool | int | float | str


@dataclass(frozen=True, slots=True, kw_only=True)
class TransformersModel:
    """A model of `transformers` with what `gp.plan` and `gp.Pipeline` need."""

    module: nn.Module
    """The model itself, unchanged, so that its parameter names and checkpoints stay valid."""
    captured: Captured
    """The captured model. With `PipelineOptions(captured=...)` the pipeline does not trace the model again."""
    loss: OwnLoss | None
    """The model's own loss; None if the example has no labels."""
    processor_inputs: ProcessorInputs = field(default_factory=ProcessorInputs)
    """How inputs follow from what the processor returns."""

    @property
    def graph(self) -> Graph:
        """The operator graph, for `gp.plan`."""
        return self.captured.graph

    @property
    def inputs(self) -> tuple[str, ...]:
        """The pipeline's inputs, in order."""
        return tuple(each.name for each in self.graph.inputs)

    def batch(self, batch: Mapping[str, Any]) -> tuple[dict[str, Tensor], Any]:
        """Return the inputs and targets of a whole mini-batch, for `Pipeline.step` and `Pipeline.evaluate`.

        Without labels the targets are None. Missing decoder inputs are the shifted labels, as in the model itself.

        Raises:
            InvalidInput: an input or label is missing, or samples have different numbers of images or sizes of images.
        """
        given = _with_decoder_inputs(self.module, batch, self.inputs)
        given = self.processor_inputs.by_samples(self.module, given)
        inputs = name_inputs(self.inputs, {name: given[name] for name in self.inputs if name in given})
        if self.loss is None:
            return inputs, None
        for name in self.loss.labels:
            if name not in given:
                raise InvalidInput(f"'{name}' is missing, which the model's loss reads", where="mini-batch")
        return inputs, self.loss.targets(given)

    def loss_fn(self, output: Any, targets: Any) -> Tensor:
        """Return the loss for the pipeline: the model's own, over the labels that count in the whole mini-batch.

        Raises:
            InvalidInput: the model was captured without labels.
        """
        if self.loss is None:
            remedy = "Put the labels into the example, or give the pipeline a loss function of your own."
            raise InvalidInput(f"{type(self.module).__name__} was captured without labels", where="loss", remedy=remedy)
        return self.loss(output, targets)


def from_transformers(
    model: nn.Module | ModelBuilder,
    example: Mapping[str, Any],
    *,
    outputs: Sequence[str] = (),
    labels: Sequence[str] = LABELS,
    whole_batch: Sequence[str] = (),
    split: Sequence[str] = (),
    opaque: Sequence[str] = (),
    precision: Precision = "fp32",
    fused_attention: bool | None = None,
) -> TransformersModel:
    """Return a model of Hugging Face `transformers`, captured for planning: nothing is computed or downloaded.

    Its transformer layers stay whole, unless `split` names them, or the model is asked for results inside them, such as
    the scores of routers. Key-value caches are switched off. Operators that compare samples with each other, or return
    one number for all of them, need the whole mini-batch. If the example has labels, the pipeline returns only the
    outputs that the model's own loss reads, and the last stage computes that loss. A cross-entropy is then the sum over
    all labels, divided by the number of labels in the whole mini-batch that are not -100.

    Args:
        model: any model that `capture` can trace, with data, on the meta device, or a function that builds it. For
            others declare a DagModule of its parts.
        example: a batch as the tokenizer or processor returns it: tensors by name, with at least two samples. Numbers,
            booleans and strings are arguments of the forward that are the same in every step.
        outputs: the entries of the model's output to return; by default those that the loss reads, or else all.
        labels: names of inputs that only the loss reads.
        whole_batch: as in `capture`, in addition to operators that compare samples.
        split: layers to look into, as in `capture`. `*` looks into all of them.
        opaque: further submodules to keep whole, as in `capture`.
        precision: of the forwards in training, as in `capture`.
        fused_attention: as in `capture`.

    Raises:
        InvalidInput: `transformers` is not installed, the model cannot be traced, or its loss is not known to be exact
            over micro-batches.
    """
    check_precision(precision)
    model = without_data(model)
    check_compiled_modules(model)
    given = _with_decoder_inputs(model, example, ())
    processed = ProcessorInputs.of(model, given)
    given = processed.by_samples(model, given)
    tensors = {name: each for name, each in given.items() if isinstance(each, Tensor)}
    arguments = _arguments(model, given)
    layers = innermost(model, layer_class())
    recorded = [path for path in recorded_parts(model, arguments) if _inside_one(path, layers)]
    split = [*dict.fromkeys([*split, *recorded])]
    layers = [] if EVERY in split else [path for path in layers if not _inside(path, split)]
    origin = Origin(
        method="export",
        split=tuple(split),
        opaque=tuple(dict.fromkeys([*opaque, *layers])),
        whole_batch=tuple(whole_batch),
        arguments=tuple(arguments.items()),
        precision=precision,
        forms=tuple(processed.forms.items()),
        fused_attention=is_fused(model) if fused_attention is None else fused_attention,
    )
    inputs = {name: each for name, each in tensors.items() if name not in labels}
    loss, traced, same = None, None, False
    if len(inputs) < len(tensors):
        known = [name for name in labels if name in tensors]
        try:
            loss, origin, whole = own_loss(model, describe(_named(model, tensors)), known, origin)
        except InvalidInput as error:
            if not isinstance(error.__cause__, ExportFailed):
                raise
            raise InvalidInput(f"with labels, {error.what}", where="labels", remedy=WITHOUT_LABELS) from error
        outputs = tuple(dict.fromkeys([*outputs, *loss.reads]))
        # The glue was compared in both modes when the loss was cut out of it. The wanted outputs may be the same in
        # both, where the other outputs are not.
        same = not origin.modes_differ
        rest = without_loss(whole.module_graph, outputs, known) if same else None
        traced = rest and replace(whole, module_graph=rest)
    origin = replace(origin, outputs=tuple(dict.fromkeys(outputs)), modes_differ=False)
    captured = _captured(model, describe(_named(model, inputs)), origin, traced, compare_modes=not same)
    return TransformersModel(module=model, captured=captured, loss=loss, processor_inputs=processed)


def innermost(model: nn.Module, kind: type[nn.Module]) -> list[str]:
    """Return the paths of the submodules of a kind that do not contain another one, as Swin's stages contain layers."""
    return without_outer([path for path, part in model.named_modules() if isinstance(part, kind)])


def without_outer(paths: Sequence[str]) -> list[str]:
    """Return the paths of submodules that do not contain another one of them."""
    return [path for path in paths if not any(other.startswith(path + ".") for other in paths)]


def _inside(path: str, split: Collection[str]) -> bool:
    # Whether this layer, or a submodule of it, is in `split`.
    return any(name == path or name.startswith(path + ".") for name in split)


def _inside_one(path: str, layers: Collection[str]) -> bool:
    # Whether this submodule is one of the layers, or inside one.
    return any(path == layer or path.startswith(layer + ".") for layer in layers)


def _named(model: nn.Module, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return name_inputs(read_layout(model, tensors), tensors)


def _with_decoder_inputs(model: nn.Module, batch: Mapping[str, Any], wanted: Collection[str]) -> dict[str, Any]:
    # The batch without entries that are None; an encoder-decoder makes missing decoder inputs from its labels.
    given = {name: each for name, each in batch.items() if each is not None}
    prepare = _decoder_inputs_of(model)
    known = {"decoder_input_ids", "decoder_inputs_embeds"} & given.keys()
    if prepare is not None and "labels" in given and not known and (not wanted or "decoder_input_ids" in wanted):
        given["decoder_input_ids"] = prepare(given["labels"])
    return given


def _decoder_inputs_of(model: nn.Module) -> Callable[[Tensor], Tensor] | None:
    # How the model makes decoder inputs from labels: a method of the model, or a function beside it.
    prepare = getattr(model, "prepare_decoder_input_ids_from_labels", None)
    shift = getattr(sys.modules.get(type(model).__module__), "shift_tokens_right", None)
    if prepare is not None or shift is None or "decoder_input_ids" not in signature(model.forward).parameters:
        return prepare
    config: Any = model.config
    if not hasattr(config, "pad_token_id"):  # Florence-2 has a configuration for each of its parts
        config = config.get_text_config()

    def shifted(labels: Tensor) -> Tensor:
        return shift(labels, config.pad_token_id, config.decoder_start_token_id)

    return shifted


def _arguments(model: nn.Module, given: Mapping[str, Any]) -> dict[str, Scalar]:
    found: dict[str, Scalar] = {}
    for name, each in given.items():
        if isinstance(each, bool | int | float | str):
            found[name] = each
        elif not isinstance(each, Tensor):
            what = f"'{name}' is a {type(each).__name__}"
            raise InvalidInput(what, where="example", remedy="Give tensors (return_tensors='pt'), numbers or texts.")
    config = getattr(model, "config", None)
    found = {**without_cache(model), **found}
    if getattr(config, "return_dict", True) is False:
        found.setdefault("return_dict", True)
    return found


def _compares(captured: Captured, node: fx.Node) -> bool:
    # Whether samples are mixed, two dimensions are samples, or the model returns one number for all samples.
    if statistic_of(node, captured.readings):
        return True
    returned = set(node.all_input_nodes) - captured.values.duplicated if node.op == "output" else set[fx.Node]()
    return captured.readings[node].compares or any(captured.readings[each].shape == () for each in returned)


def _captured(
    model: nn.Module, inputs: tuple[Input, ...], origin: Origin, traced: Traced | None, *, compare_modes: bool
) -> Captured:
    # The model is traced once. It is grouped twice if operators need the whole mini-batch.
    if traced is None:
        traced, origin = trace(model, inputs, origin, compare_modes=compare_modes)
    measured = measure(traced, inputs, origin)
    captured = capture_measured(model, inputs, origin, measured)
    comparing = [
        op.name
        for op in captured.graph.ops
        if not op.whole_batch and any(_compares(captured, node) for node in captured.nodes[op.name])
    ]
    if not comparing:
        return captured
    origin = replace(origin, whole_batch=(*origin.whole_batch, *comparing))
    return capture_measured(model, inputs, origin, measured)
