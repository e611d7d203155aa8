"""Options of the command line that are fields of a settings class: their names, help texts, choices and defaults."""

import argparse
import ast
import inspect
from collections.abc import Collection, Iterator
from dataclasses import MISSING, Field, fields
from functools import cache
from types import UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

Settings = TypeVar("Settings")


def add_settings(parser: argparse.ArgumentParser, kind: type[Any], only: Collection[str] = ()) -> None:
    """Add an option for each field of a settings class, or for some.

    `offload_to` becomes `--offload-to`. The help is the first paragraph of the field's docstring. A field that is true
    by default becomes an option that turns it off, `--no-cache`. In the metadata of a field, `option` is another name,
    `metavar` stands for the value, and `known` is a function that returns names to list.

    Args:
        parser: of a verb.
        kind: a dataclass with a docstring below each field.
        only: names of fields; empty: all.
    """
    hints, docs = get_type_hints(kind), field_docs(kind)
    for field in fields(kind):
        if not only or field.name in only:
            _add(parser, field, tuple(_alternatives(hints[field.name])), docs[field.name])


def read_settings(args: argparse.Namespace, kind: type[Settings], **changes: Any) -> Settings:
    """Return the settings of arguments that `add_settings` added.

    Args:
        args: of the command line. Fields without an option keep their defaults.
        kind: the dataclass.
        changes: fields with other values than the arguments'.

    Raises:
        InvalidInput: a value is out of range.
    """
    given = {each.name: getattr(args, each.name) for each in fields(kind) if hasattr(args, each.name)}  # pyright: ignore[reportArgumentType]
    return kind(**given | changes)


@cache
def field_docs(kind: type[Any]) -> dict[str, str]:
    """Return the docstrings below the fields of a dataclass and of its bases, by name."""
    docs: dict[str, str] = {}
    for each in reversed(kind.__mro__[:-1]):
        body = ast.parse(inspect.cleandoc(inspect.getsource(each))).body[0]
        assert isinstance(body, ast.ClassDef)
        for declared, said in zip(body.body, body.body[1:], strict=False):
            if isinstance(declared, ast.AnnAssign) and isinstance(said, ast.Expr):
                assert isinstance(declared.target, ast.Name)
                assert isinstance(said.value, ast.Constant)
                docs[declared.target.id] = inspect.cleandoc(str(said.value.value))
    return docs


def _add(parser: argparse.ArgumentParser, field: Field[Any], types: tuple[Any, ...], doc: str) -> None:
    name, default = field.metadata.get("option", f"--{field.name.replace('_', '-')}"), field.default
    assert default is not MISSING, f"{field.name} has no default, so it is no option"
    words = _help(field, doc)
    if bool in types:
        action = "store_false" if default else "store_true"
        option = f"--no-{field.name.replace('_', '-')}" if default else name
        parser.add_argument(option, dest=field.name, action=action, help=words)
        return
    metavar = field.metadata.get("metavar")
    if tuple in types:
        parser.add_argument(name, dest=field.name, action=_Listed, metavar=metavar, default=default, help=words)
        return
    literals = [each for each in types if isinstance(each, str) and each]
    choices = literals if literals and not metavar else None
    number = int if int in types else float if float in types else None
    read = str if number is None else _NumberOrWord(number, literals) if literals else number
    parser.add_argument(name, type=read, choices=choices, metavar=metavar, default=default, help=words)


class _NumberOrWord:
    """The type of an option whose value is a number or one of some words."""

    def __init__(self, number: type[int] | type[float], words: Collection[str]) -> None:
        self._number, self._words = number, words
        self.__name__ = f"number or {' or '.join(words)}"  # which argparse puts into its message

    def __call__(self, text: str) -> float | str:
        return text if text in self._words else self._number(text)


class _Listed(argparse.Action):
    """An option that may be given several times; its values are a tuple."""

    def __call__(self, parser: Any, namespace: argparse.Namespace, values: Any, option_string: Any = None) -> None:
        setattr(namespace, self.dest, (*(getattr(namespace, self.dest) or ()), values))


def _alternatives(hint: Any) -> Iterator[Any]:
    """Yield the types and the literal words of a type: of `Literal["a"] | int | None`, `"a"` and `int`."""
    if get_origin(hint) in (Union, UnionType):
        for each in get_args(hint):
            yield from _alternatives(each)
    elif get_origin(hint) is Literal:
        yield from get_args(hint)
    elif hint is not type(None):
        yield get_origin(hint) or hint


def _help(field: Field[Any], doc: str) -> str:
    words = " ".join(doc.split("\n\n")[0].split()).replace("`", "").removesuffix(".")
    words = words[0].lower() + words[1:]
    known = field.metadata.get("known")
    words += f". One of {', '.join(known())}" if known else ""
    shown = isinstance(field.default, str) and field.default
    return f"{words} (default: {field.default})".replace("%", "%%") if shown else words.replace("%", "%%")
