"""The output of a verb: tables on standard output, or one JSON object there and the tables on standard error."""

import json
import math
import sys
from dataclasses import dataclass
from typing import Any, cast

from rich.console import Console, RenderableType

from graphpipe.files.printable import printable

NOT_A_TERMINAL_WIDTH = 160


@dataclass(frozen=True, slots=True)
class Output:
    """Prints the results of a verb."""

    json: bool
    """Print one JSON object on standard output and everything else on standard error."""

    def show(self, *what: RenderableType) -> None:
        """Print tables and sentences."""
        console = self._console()
        try:
            for each in what:
                each = printable(each) if isinstance(each, str) else each
                console.print(each, highlight=False, markup=False, soft_wrap=isinstance(each, str))
        except SystemExit:  # rich raises this when the reader has ended.
            raise BrokenPipeError from None

    def emit(self, result: dict[str, Any]) -> None:
        """Print the result if JSON was asked for. What is NaN or infinite, as a metric may be, becomes null."""
        if self.json:
            print(json.dumps(_finite(result), allow_nan=False))

    @property
    def width(self) -> int:
        """Number of characters in a line."""
        return self._console().width

    def _console(self) -> Console:
        # Made for each use, because the stream may have been redirected.
        stream = sys.stderr if self.json else sys.stdout
        return Console(file=stream, width=None if stream.isatty() else NOT_A_TERMINAL_WIDTH)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(each) for key, each in cast("dict[str, Any]", value).items()}
    if isinstance(value, list | tuple):
        return [_finite(each) for each in cast("list[Any]", value)]
    return None if isinstance(value, float) and not math.isfinite(value) else value
