"""The files of the example, `examples/digits.toml`, which come with the package, written where they are wanted."""

import shutil
from pathlib import Path

from graphpipe.errors import InvalidInput

FOLDER = Path("examples")
"""Below the current folder. The pages of the documentation name the files there."""
NAMES = ("digits.toml", "digits.py", "digits_stages.json", "digits.csv.gz")
_PACKAGE = Path(__file__).parent
SOURCES = (_PACKAGE / "digits", _PACKAGE.parents[1] / "examples")
"""In an installed package, and in a clone of the repository."""


def write_example(folder: Path = FOLDER) -> list[Path]:
    """Write those files of the example that the folder does not have, and return them.

    Raises:
        InvalidInput: the folder cannot be written.
    """
    source = next((each for each in SOURCES if (each / NAMES[0]).exists()), None)
    assert source is not None, "the package lacks the files of the example"
    missing = [folder / name for name in NAMES if not (folder / name).exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for path in missing:
            shutil.copyfile(source / path.name, path)
    except OSError as error:
        remedy = "Start the demo in a folder that can be written."
        raise InvalidInput(f"cannot be written: {error.strerror}", where=str(folder), remedy=remedy) from None
    return missing
