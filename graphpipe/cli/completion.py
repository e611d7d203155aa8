"""`graphpipe completion`: a script that lets a shell complete words."""

import argparse
from collections.abc import Iterator
from typing import Any

from graphpipe.cli.arguments import Subparsers, add_verb
from graphpipe.cli.output import Output
from graphpipe.planners.registry import all_planners
from graphpipe.planning.choose_schedule import schedule_choices
from graphpipe.zoo_graphs import zoo_graph_names

SHELLS = ("bash", "zsh", "tcsh")
FILES = ("FILE", "PLAN", "CHECKPOINT", "RUN", "CONFIG.toml", "PLAN|TRACE|RUN")
"""Names in the help of arguments that are a file or a folder."""
CLUSTERS = ("local:4", "summit:8x4", "dgx-a100:2x8", "dgx-h100:4x8")

EXAMPLE = 'eval "$(graphpipe completion bash)"'


def add(subparsers: Subparsers) -> None:
    """Add the verb."""
    parser = add_verb(subparsers, "completion", "print a script that lets a shell complete words", EXAMPLE)
    parser.add_argument("shell", choices=SHELLS)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print the script."""
    script = completion(args.parser, args.shell)
    if args.json:
        Output(args.json).emit({"shell": args.shell, "script": script})
    else:
        print(script, end="")
    return 0


def completion(parser: argparse.ArgumentParser, shell: str) -> str:
    """Return a script that lets a shell complete the words of a command line.

    Args:
        parser: of the command line. Its arguments are marked with their completions.
        shell: one of `SHELLS`.
    """
    import shtab

    words = _words()
    for action in _actions(parser):
        marked: Any = action
        if action.dest in words:
            marked.complete = _Completer(action.dest, words[action.dest]).by_shell
        elif action.metavar in FILES:
            marked.complete = shtab.FILE
    functions = [_Completer(dest, known).function(shell) for dest, known in words.items()]
    return shtab.complete(parser, shell=shell, preamble="\n".join(functions))


def _words() -> dict[str, list[str]]:
    # Known words by the name of the argument.
    return {
        "model": zoo_graph_names(),
        "planner": list(all_planners()),
        "planners": list(all_planners()),
        "schedule": list(schedule_choices()),
        "cluster": list(CLUSTERS),
    }


def _actions(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    for action in parser._actions:  # pyright: ignore[reportPrivateUsage]  # argparse has no public name for it
        yield action
        if isinstance(action.choices, dict):
            for inner in action.choices.values():
                yield from _actions(inner)


class _Completer:
    """Completes one argument with known words. A model or a cluster may also be a file; planners are a list."""

    def __init__(self, dest: str, words: list[str]) -> None:
        self._dest, self._words = dest, " ".join(words)
        self._files = dest in ("model", "cluster")
        # If the name contains "file", the bash script adds no blank after a folder.
        self._name = f"_graphpipe_{dest}{'_or_file' * self._files}"

    @property
    def by_shell(self) -> dict[str, str]:
        """The completion in the script of each shell. tcsh has no functions."""
        return {"bash": self._name, "zsh": self._name, "tcsh": f"`echo {self._words}{' *' * self._files}`"}

    def function(self, shell: str) -> str:
        """Return the function's definition. $1 is the word so far."""
        if shell == "bash":
            return f"{self._name}() {{\n  {self._bash()}\n}}"
        if shell == "zsh":
            return f"{self._name}() {{\n  {self._zsh()}\n}}"
        return ""

    def _bash(self) -> str:
        if self._dest == "planners":
            return f"""compgen -P "${{1%"${{1##*,}}"}}" -W "{self._words}" -- "${{1##*,}}\""""
        files = '; compgen -f -- "$1"' * self._files
        return f'compgen -W "{self._words}" -- "$1"{files}'

    def _zsh(self) -> str:
        if self._dest == "planners":
            return f"_values -s , planner {self._words}"
        return f"compadd -- {self._words}{'; _files' * self._files}"
