"""Files of the examples, which come with the package, written where they are wanted."""

import shutil
from dataclasses import dataclass
from pathlib import Path

from graphpipe.errors import InvalidInput

_PACKAGE = Path(__file__).parent
_CLONE = _PACKAGE.parents[1] / "examples"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExampleFiles:
    """An example."""

    names: tuple[str, ...]
    """The names of its files."""
    sources: tuple[Path, ...]
    """Their folders in an installed package and in a clone of the repository."""


DIGITS = ExampleFiles(
    names=("digits.toml", "digits.py", "digits_stages.json", "digits.csv.gz"), sources=(_PACKAGE / "digits", _CLONE)
)
PROJECT = ExampleFiles(
    names=("task.py", "train.toml", "test_task.py"), sources=(_PACKAGE / "project", _CLONE / "project")
)
FOLDER = Path("examples")
"""Below the current folder. The pages of the documentation name the files of the digits there."""


def write_files(example: ExampleFiles, folder: Path) -> list[Path]:
    """Write those files of an example that the folder does not have, and return them.

    Raises:
        InvalidInput: the folder cannot be written.
    """
    source = next((each for each in example.sources if (each / example.names[0]).exists()), None)
    assert source is not None, f"the package lacks the files of the example: {example.names}"
    missing = [folder / name for name in example.names if not (folder / name).exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for path in missing:
            shutil.copyfile(source / path.name, path)
    except OSError as error:
        remedy = "Name a folder that can be written."
        raise InvalidInput(f"cannot be written: {error.strerror}", where=str(folder), remedy=remedy) from None
    return missing
