"""The argument MODEL: a zoo name, a function of the user's, or a graph file."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from graphpipe.errors import InvalidInput
from graphpipe.graph import Graph, Precision
from graphpipe.graph.import_common import warn_of_units
from graphpipe.plans.backward_record import BackwardRecord
from graphpipe.waiting import waiting
from graphpipe.zoo_graphs import find_zoo_graph

if TYPE_CHECKING:
    from graphpipe.model.capture.capture import Captured
    from graphpipe.training.task.user_function import UserModel

MODEL_HELP = (
    "a zoo name (such as mmt or gpt; mmt-small and so on for a laptop), "
    "package.module:function or file.py:function returning (module, example inputs), or a graph file (.json)"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelArgument:
    """The graph of a MODEL, and its module or the record of its backward."""

    graph: Graph
    module: Any = None
    """A `torch.nn.Module`. None for a graph file and for a zoo model whose graph is in the package."""
    captured: "Captured | None" = None
    """The capture of the module."""
    backward: BackwardRecord | None = None
    """Of a zoo model whose graph is in the package."""


def listed(names: str | None) -> tuple[str, ...]:
    """Return names with commas in between as a tuple."""
    return tuple(name.strip() for name in names.split(",")) if names else ()


def read_model_argument(
    word: str,
    cache: Path | None = None,
    look_into: str = "",
    precision: Precision = "fp32",
    *,
    fused_attention: bool = False,
    shares: bool = False,
    sequence: bool = False,
    measured: str = "",
) -> ModelArgument:
    """Read a graph from a file or from the package, or make a model and capture it.

    Args:
        word: the argument.
        cache: the folder of the cache. None: captures are neither read nor kept.
        look_into: the submodules to look into, with commas in between. Empty: those of the default.
        precision: of the forwards in training.
        fused_attention: as for `capture`, if the model is captured here.
        shares: find how devices can share its operators. A graph file says so itself, or has no such operators.
        sequence: also find how they can divide the sequence.
        measured: fingerprint of the graph whose costs are given. Its operators stay as they are.

    Raises:
        InvalidInput: there is no such model (the message names the nearest one), or it cannot be read or captured.
    """
    if word.endswith(".json") and look_into:
        remedy = "Name the model that it was captured from."
        raise InvalidInput("a graph file has no submodules to look into", where="--look-into", remedy=remedy)
    if word.endswith(".json"):
        graph = Graph.load(word)
        if precision != ((graph.origin and graph.origin.precision) or "fp32"):
            what = f"is {precision}, but the graph counts the bytes of another precision"
            raise InvalidInput(what, where="--precision", remedy="Name the model that it was captured from.")
        warn_of_units(graph, word)
        return ModelArgument(graph=graph)
    if not look_into and precision == "fp32" and not shares and (in_zoo := find_zoo_graph(word)):
        assert in_zoo.graph.origin is not None
        graph = replace(in_zoo.graph, origin=replace(in_zoo.graph.origin, precision=precision))
        return ModelArgument(graph=graph, backward=in_zoo.backward)
    with waiting(f"capturing {word}"):
        from graphpipe.training.task.user_function import find_model

        model = find_model(word)
        captured = captured_model(model, cache, look_into, precision, fused_attention=fused_attention)
        if shares:
            from graphpipe.model.shards.with_shards import captured_with_shards

            captured = captured_with_shards(
                captured, model.module, sequence_parallel=sequence, loss_fn=model.loss_fn, measured=measured
            )
    return ModelArgument(graph=captured.graph, module=model.module, captured=captured)


def captured_model(
    model: "UserModel", cache: Path | None, look_into: str, precision: Precision, *, fused_attention: bool
) -> "Captured":
    """Return the capture of a model.

    Args:
        model: of the user, or of the zoo.
        cache: folder of captures; None keeps nothing.
        look_into: names of submodules, with commas in between, whose children become operators.
        precision: of its training.
        fused_attention: whether attention runs in fused kernels.

    Raises:
        InvalidInput: it cannot be captured.
    """
    from graphpipe.model.capture_cache.capture_cache import cached_capture

    return cached_capture(
        model.module,
        model.example_inputs,
        cache,
        split=listed(look_into),
        precision=precision,
        graph=model.graph,
        fused_attention=fused_attention,
    )
