"""The line of the user's own code, or of a library, that an error or a warning comes from."""

import inspect
import re
import sysconfig
import traceback
import warnings
from collections.abc import Iterable
from pathlib import Path

_LINE = re.compile(r'^ *File "([^"\n]+)", line (\d+), in (.+)$', re.MULTILINE)
_PACKAGE = str(Path(__file__).parent)
_OTHER_CODE = (Path(_PACKAGE), *(Path(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib")))
_INSTALLED = {"site-packages", "dist-packages"}
_OF_TORCH = {"torch", "functorch", "torchgen", "sympy", "numpy", Path(_PACKAGE).name}


def user_place(error: BaseException) -> str:
    """Return the innermost place in the user's files, as "model.py, line 12, in forward".

    If there is none, return that in a library, as "torchaudio/models/conformer.py, line 11, in forward", and else "".
    """
    frames = traceback.extract_tb(error.__traceback__)
    return _innermost((frame.filename, frame.lineno or 0, frame.name) for frame in frames)


def shown_place(error: BaseException) -> str:
    """Return the same behind a space and in brackets, to end a clause; empty if there is none."""
    place = user_place(error)
    return f" ({place})" if place else ""


def user_place_in(text: str) -> str:
    """Return the same as `user_place`, from the text of a traceback."""
    return _innermost((file, int(line), name) for file, line, name in _LINE.findall(text))


def warn_user(message: str) -> None:
    """Warn at the innermost line outside this package, however many of its functions are between."""
    frame, depth = inspect.currentframe(), 1
    while frame is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        frame, depth = frame.f_back, depth + 1
    warnings.warn(message, stacklevel=depth)


def describe_error(error: BaseException) -> str:
    """Return an error as one line: its type, the first line of its text, and the place in the user's files."""
    first = next((line.strip() for line in str(error).splitlines() if line.strip()), "").rstrip(".")
    text = f"{type(error).__name__}: {first}" if first else type(error).__name__
    return text + shown_place(error)


def _innermost(frames: Iterable[tuple[str, int, str]]) -> str:
    innermost_first = [*frames][::-1]
    for shown in (_in_user_file, _in_library):
        for file, line, name in innermost_first:
            if path := shown(Path(file)):
                return f"{path}, line {line}" + (f", in {name}" if name.isidentifier() else "")
    return ""


def _in_user_file(path: Path) -> str:
    """Return the name of a file that is not generated, not installed, and not part of Python or of this package."""
    other = any(path.is_relative_to(place) for place in _OTHER_CODE)
    return "" if path.suffix != ".py" or other or _INSTALLED & set(path.parts) else path.name


def _in_library(path: Path) -> str:
    """Return the path of a file inside an installed library, except torch and what it computes with."""
    for number, part in enumerate(path.parts):
        inside = path.parts[number + 1 :]
        if part in _INSTALLED and path.suffix == ".py" and inside[0] not in _OF_TORCH:
            return "/".join(inside)
    return ""
