"""YAML files of other tools. GraphPipe writes none."""

from pathlib import Path
from typing import Any

from graphpipe.errors import InvalidInput
from graphpipe.files.text_file import read_text


def read_yaml(path: str | Path) -> Any:
    """Return the content of a YAML file of plain values.

    Raises:
        InvalidInput: the file is unreadable or is not YAML (the line is named), or PyYAML is not installed.
    """
    text = read_text(path)
    try:
        import yaml
    except ImportError:
        raise InvalidInput("reading YAML needs PyYAML", where=str(path), remedy="pip install pyyaml") from None
    try:
        return yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        what = " ".join(str(error).split())
        raise InvalidInput(f"not valid YAML: {what}", where=str(path), remedy="Mend it there.") from None
