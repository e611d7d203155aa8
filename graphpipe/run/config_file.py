"""Training configurations from TOML files and `section.key=value` overrides."""

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, cast

from graphpipe.documents import from_body
from graphpipe.errors import InvalidInput, nearest
from graphpipe.run.train_config import TrainConfig


def read_config(path: str | Path, overrides: Sequence[str] = ()) -> TrainConfig:
    """Return the configuration of a TOML file, with some values changed.

    Args:
        path: the file.
        overrides: `section.key=value`, the value as in TOML (a bare word is a string).

    Raises:
        InvalidInput: unreadable, not TOML, an unknown key (the nearest is given), or a value that cannot be used.
    """
    try:
        content = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidInput(f"cannot read: {error.strerror}", where=str(path)) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidInput(f"not valid TOML: {error}", where=str(path)) from None
    for override in overrides:
        _override(content, override)
    _refuse_unknown(TrainConfig, content, str(path))
    home = Path(path).resolve()
    content["folder"] = str(home.parent / content.get("folder", "."))
    config = content | {"run": {"name": home.stem} | content.get("run", {})}
    return from_body(TrainConfig, config, str(path))


def _override(content: dict[str, Any], override: str) -> None:
    key, equals, text = override.partition("=")
    *sections, last = key.strip().split(".")
    if not equals or not last:
        raise InvalidInput(f"'{override}' is not an override", remedy="Write section.key=value.")
    for section in sections:
        content = content.setdefault(section, {})
        if not isinstance(content, dict):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidInput(f"'{section}' is no section", where=f"override {override}")
    try:
        content[last] = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        content[last] = text.strip()


def _refuse_unknown(kind: Any, content: Mapping[str, Any], where: str, prefix: str = "") -> None:
    known = {each.name: each.type for each in fields(kind)}
    for key, value in content.items():
        if key not in known:
            raise InvalidInput(f"unknown key '{prefix}{key}'", where=where, remedy=nearest(key, list(known)))
        if is_dataclass(known[key]) and isinstance(value, dict):
            _refuse_unknown(known[key], cast(dict[str, Any], value), where, f"{prefix}{key}.")
