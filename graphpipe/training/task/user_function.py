"""The user's own code by name: `package.module:function` or `file.py:function`."""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from inspect import isfunction, signature
from pathlib import Path
from types import ModuleType
from typing import Any, cast

from torch import nn

from graphpipe.errors import GraphPipeError, InvalidInput, nearest
from graphpipe.graph import Graph
from graphpipe.model.inputs import Inputs
from graphpipe.model.without_data.construction import ModelBuilder
from graphpipe.model.without_data.meta_model import without_data
from graphpipe.user_frames import describe_error


@dataclass(frozen=True, slots=True, kw_only=True)
class UserModel:
    """A module with example inputs, and how it is captured."""

    module: nn.Module
    example_inputs: Inputs
    graph: Graph | None = None
    """The graph that the user captured from the module with options. None: the default options."""
    loss_fn: Callable[[Any, Any], Any] | None = None
    """Of the training, if it is known."""


def call(word: str, folder: str | Path = ".") -> object:
    """Call a function of the user's without arguments, and return its result.

    Args:
        word: `package.module:function` or `file.py:function`.
        folder: of a relative file, and of modules that are not installed.

    Raises:
        InvalidInput: there is no such module, file or function (the message names the nearest one), or its code raises.
    """
    place, _, name = word.rpartition(":")
    if not place or not name.isidentifier():
        raise InvalidInput(
            f"'{word}' does not name a function", remedy="Write package.module:function or file.py:function."
        )
    try:
        module = _load_file(Path(folder) / place) if place.endswith(".py") else _load_module(place, folder)
        if not callable(function := getattr(module, name, None)):
            known = [each for each, value in vars(module).items() if isfunction(value) and not each.startswith("_")]
            raise InvalidInput(f"has no function '{name}'", where=place, remedy=nearest(name, known))
        return function()
    except GraphPipeError:
        raise
    except (Exception, SystemExit) as error:
        raise InvalidInput(
            f"raised {describe_error(error)}", where=f"'{word}'", remedy="GRAPHPIPE_DEBUG=1 shows the traceback."
        ) from error


def why_not_called(function: Callable[..., object], *arguments: str) -> str:
    """Return why a function does not take these arguments; empty if it does.

    The arguments of a function that is not written in Python may be unknown. Then it is believed to take them.
    """
    try:
        signature(function).bind(*arguments)
    except TypeError as error:
        return str(error)
    except ValueError:
        pass
    return ""


def call_for_model(word: str, folder: str | Path = ".") -> UserModel:
    """Return the model from a function of the user's: a tuple, or an object with these fields, such as a Task.

    Raises:
        InvalidInput: as `call`, or the function returns another type.
    """
    return model_of(call(word, folder), word)


def model_of(found: Any, word: str) -> UserModel:
    """Return the model from what a function of the user's has returned.

    Raises:
        InvalidInput: it is something else than a model with its inputs.
    """
    names = ("module", "example_inputs", "graph", "loss_fn")
    module, inputs, graph, loss_fn = (getattr(found, name, None) for name in names)
    if isinstance(found, tuple) and len(found) in {2, 3}:
        module, inputs, graph = (*found, None)[:3]
        if callable(module) and not isinstance(module, nn.Module | type):
            module = without_data(cast("ModelBuilder", module))
    if isinstance(module, nn.Module) and inputs is not None and isinstance(graph, Graph | None):
        return UserModel(module=module, example_inputs=inputs, graph=graph, loss_fn=loss_fn)
    raise InvalidInput(
        f"returned {type(found).__name__}, must return (module, example inputs)",
        where=f"'{word}'",
        remedy="Return a tuple of an nn.Module, or a function that builds it, and its example inputs. The graph of "
        "`capture` may be the third.",
    )


def find_model(word: str, folder: str | Path = ".") -> UserModel:
    """Return the module and the example inputs of a MODEL of the command line that is not a graph file.

    Args:
        word: a zoo name, `package.module:function` or `file.py:function`.
        folder: of a relative file, and of modules that are not installed.

    Raises:
        InvalidInput: there is no such model (the message names the nearest one), or the function returns another type.
    """
    if ":" in word and not word.endswith(":small"):
        return call_for_model(word, folder)
    if Path(word).suffix:
        what = "a graph file has no module behind it" if word.endswith(".json") else "is not a model"
        remedy = "Write file.py:function; other tools' graphs are read by `graphpipe import`."
        raise InvalidInput(what, where=f"'{word}'", remedy=remedy)
    from graphpipe.model.zoo.registry import zoo_model

    model = zoo_model(word)
    return UserModel(module=model.module, example_inputs=model.example_inputs, loss_fn=model.loss_fn)


def _load_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise InvalidInput("no such file", where=str(path))
    _find_modules_in(path.parent)
    spec = spec_from_file_location(f"user_code.{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look up their module by its name.
    spec.loader.exec_module(module)
    return module


def _load_module(name: str, folder: str | Path) -> ModuleType:
    if not all(part.isidentifier() for part in name.split(".")):
        raise InvalidInput(
            f"'{name}' is neither a module nor a file",
            remedy=f"Write {name}.py:FUNCTION for a file, or package.module:FUNCTION.",
        )
    _find_modules_in(Path(folder))
    return import_module(name)


def _find_modules_in(folder: Path) -> None:
    place = str(folder.resolve())
    if place not in sys.path:
        sys.path.insert(0, place)
