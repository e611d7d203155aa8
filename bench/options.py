"""The command line of a benchmark, read from the parameters of its `main`.

A parameter before `*` is an argument, one after it an option. Its type is `bool` (a flag), `int`, `float`, `Path`, a
sequence of `str`, or a tuple of these. `Annotated[type, known]` refuses what is not in `known`. Its help is its line in
the docstring.
"""

import inspect
import re
from argparse import ArgumentParser, ArgumentTypeError, RawDescriptionHelpFormatter
from collections.abc import Callable, Container, Sequence
from difflib import get_close_matches
from typing import Annotated, Any, get_args, get_origin, get_type_hints

MOST_SHOWN = 30
"""Most known values that a message lists. Of more, it lists those that resemble what was given."""


def parser(name: str, main: Callable[..., None]) -> ArgumentParser:
    """Return the parser of a benchmark.

    Args:
        name: of the benchmark.
        main: what runs it.
    """
    module = inspect.getmodule(main)
    text = (module and module.__doc__) or ""
    found = ArgumentParser(f"python -m bench {name}", description=text, formatter_class=RawDescriptionHelpFormatter)
    hints, notes = get_type_hints(main, include_extras=True), _notes(inspect.getdoc(main) or "")
    for key, parameter in inspect.signature(main).parameters.items():
        option = parameter.kind is parameter.KEYWORD_ONLY
        words: dict[str, Any] = _words(hints[key], option=option) | {"default": parameter.default, "help": notes[key]}
        found.add_argument(f"--{key.replace('_', '-')}" if option else key, **words)
    return found


def _notes(text: str) -> dict[str, str]:
    # By parameter. A note may go on in lines that are indented further.
    lines = re.findall(r"^ {4}(\w+): (.*(?:\n {5,}.*)*)", text, re.MULTILINE)
    return {name: " ".join(note.split()).replace("%", "%%") for name, note in lines}


def _words(hint: Any, *, option: bool) -> dict[str, Any]:
    kind, known = get_args(hint)[:2] if get_origin(hint) is Annotated else (hint, None)
    if kind is bool:
        return {"action": "store_true"}
    parts = get_args(kind)
    if get_origin(kind) is tuple:
        return {"type": _reader(parts[0], known), "nargs": len(parts), "metavar": parts[0].__name__.upper()}
    if parts:
        return {"type": _reader(parts[0], known), "nargs": "+" if option else "*", "metavar": "NAME"}
    return {"type": _reader(kind, known)} | ({} if option else {"nargs": "?"})


def _reader(kind: Callable[[str], Any], known: Container[Any] | None) -> Callable[[str], Any]:
    def read(word: str) -> Any:
        value = kind(word)
        if known is not None and value not in known:
            raise ArgumentTypeError(f"'{word}' is not {_among(word, known)}")
        return value

    read.__name__ = getattr(kind, "__name__", "value")  # for the message of a word that `kind` refuses
    return read


def _among(word: str, known: Any) -> str:
    if isinstance(known, range):
        return f"from {known.start} to {known.stop - 1}"
    names: Sequence[str] = [*known]
    shown = names if len(names) <= MOST_SHOWN else get_close_matches(word, names, n=5, cutoff=0.3)
    return f"known; {'known' if shown is names else 'similar'}: {', '.join(shown)}"
