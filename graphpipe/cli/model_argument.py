"""The word MODEL of the command line: a zoo name, a function of the user's, or a graph file."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from graphpipe.errors import InvalidInput
from graphpipe.graph import Graph
from graphpipe.graph.import_common import warn_of_units

if TYPE_CHECKING:
    from graphpipe.model.capture.capture import Captured
    from graphpipe.training.task.user_function import Model

MODEL_HELP = (
    "a zoo name (mmt, dlrm, candle-uno, case-study, gpt, two-tower; mmt-small and so on for a laptop), "
    "package.module:function or file.py:function returning (module, example inputs), or a graph file (.json)"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What a MODEL stands for."""

    graph: Graph
    module: Any = None
    """A `torch.nn.Module`; None where there is a graph file only, as for the next."""
    captured: "Captured | None" = None


def find(word: str) -> Found:
    """Return what a MODEL stands for.

    Raises:
        InvalidInput: no such model (the nearest is named), unreadable, or it cannot be captured.
    """
    if word.endswith(".json"):
        graph = Graph.load(word)
        warn_of_units(graph, word)
        return Found(graph=graph)
    module, inputs = find_model(word)
    from graphpipe.model.capture.capture import follow

    captured = follow(module, inputs)
    return Found(graph=captured.graph, module=module, captured=captured)


def find_model(word: str) -> "Model":
    """Return module and example inputs of a MODEL that is no graph file.

    Raises:
        InvalidInput: no such model (the nearest is named), a graph file, or a function that does not return a model.
    """
    if ":" in word and not word.endswith(":small"):
        from graphpipe.training.task.user_function import call_for_model

        return call_for_model(word)
    if Path(word).suffix:
        what = "a graph file has no module behind it" if word.endswith(".json") else "is no model"
        remedy = "Write file.py:function; other tools' graphs are read by `graphpipe import`."
        raise InvalidInput(what, where=f"'{word}'", remedy=remedy)
    from graphpipe.model.zoo import zoo

    return zoo(word)
