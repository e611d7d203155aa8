"""The source of every value of a training's configuration."""

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from graphpipe.files.json_body import to_body
from graphpipe.files.toml import read_toml
from graphpipe.training.config.from_toml import read_settings
from graphpipe.training.config.settings import TrainConfig

Key = tuple[str, ...]


def value_sources(
    config: TrainConfig,
    path: str | Path,
    overrides: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """Return the source of each value by its dotted key.

    A source is `default`, `FILE:LINE`, `environment GRAPHPIPE__...` or `override key=value`.

    Args:
        config: the result of `read_config` with the other arguments.
        path: its file.
        overrides: of `read_config`.
        environment: of `read_config`. None: the variables of this process.
    """
    sources: dict[Key, str] = dict.fromkeys((key for key, _ in leaves(to_body(config))), "default")
    sources |= {key: f"{path}:{line}" for key, line in key_lines(read_toml(path)[0]).items() if key in sources}
    for setting in read_settings(overrides, environment):
        inner = leaves({setting.key[-1]: setting.value})
        sources |= {(*setting.key[:-1], *key): setting.source for key, _ in inner}
    return {".".join(key): source for key, source in sources.items()}


def key_lines(text: str) -> dict[Key, int]:
    """Return the line, from 1, on which the value of each key begins in a TOML text.

    tomllib does not report lines. Only whole statements can be parsed, so a key begins on the first line after the
    longest beginning of the text that parses and does not contain it.
    """
    found: dict[Key, int] = {}
    lines = text.split("\n")
    begins = 1
    for number in range(1, len(lines) + 1):
        try:
            content = tomllib.loads("\n".join(lines[:number]))
        except tomllib.TOMLDecodeError:  # The value has more lines.
            continue
        for key, _ in leaves(content):
            found.setdefault(key, begins)
        begins = number + 1
    return found


def leaves(content: Mapping[str, Any], prefix: Key = ()) -> Iterator[tuple[Key, Any]]:
    """Yield every value that is not a table, with the keys that lead to it."""
    for name, value in content.items():
        if isinstance(value, dict):
            yield from leaves(cast(dict[str, Any], value), (*prefix, name))
        else:
            yield (*prefix, name), value
