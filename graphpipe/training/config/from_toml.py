"""Training configurations from TOML files, environment variables and `section.key=value` overrides."""

import os
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any, cast

from graphpipe.errors import InvalidInput, nearest
from graphpipe.files.json_document import from_body
from graphpipe.files.toml import parse_toml, read_toml
from graphpipe.training.config.settings import TrainConfig

PREFIX = "GRAPHPIPE__"
"""Of environment variables: GRAPHPIPE__TRAIN__STEPS=50 stands for train.steps=50."""


@dataclass(frozen=True, slots=True)
class Setting:
    """One value that changes what the file says."""

    key: tuple[str, ...]
    value: Any
    source: str
    """`override train.steps=50`, or `environment GRAPHPIPE__TRAIN__STEPS`."""


def read_config(
    path: str | Path, overrides: Sequence[str] = (), environment: Mapping[str, str] | None = None
) -> TrainConfig:
    """Return the configuration of a TOML file, with some values changed.

    Args:
        path: the file.
        overrides: `section.key=value`, the value as in TOML (a bare word is a string).
        environment: variables such as GRAPHPIPE__TRAIN__STEPS, which overrides go before; None takes this process's.

    Raises:
        InvalidInput: unreadable, not TOML, an unknown key (the nearest is given), or a value that cannot be used.
    """
    content = read_toml(path)[1]
    refuse_unknown(TrainConfig, content, str(path))
    for setting in read_settings(overrides, environment):
        _set(content, setting)
        refuse_unknown(TrainConfig, _nest(setting), setting.source)
    home = Path(path).resolve()
    if isinstance(folder := content.get("folder", "."), str):
        content["folder"] = str(home.parent / folder)
    run = content.get("run", {})
    config = content | {"run": {"name": home.stem} | run if isinstance(run, dict) else run}
    return from_body(TrainConfig, config, str(path), strict=True)


def read_settings(overrides: Sequence[str], environment: Mapping[str, str] | None = None) -> Iterator[Setting]:
    """Yield what environment and overrides change, the strongest last.

    Raises:
        InvalidInput: an override without a key or a value, or a value that no TOML file may have.
    """
    variables = os.environ if environment is None else environment
    for name in sorted(variables):
        if name.startswith(PREFIX):
            key = tuple(name.removeprefix(PREFIX).lower().split("__"))
            yield Setting(key, _value(variables[name], f"environment {name}"), f"environment {name}")
    for override in overrides:
        name, equals, text = override.partition("=")
        key = tuple(name.strip().split("."))
        if not equals or not all(key):
            raise InvalidInput(f"'{override}' is not an override", remedy="Write section.key=value.")
        yield Setting(key, _value(text, f"override {name}"), f"override {override}")


def refuse_unknown(kind: Any, content: Mapping[str, Any], where: str, prefix: str = "") -> None:
    """Check that every key belongs to a dataclass, or to one inside it.

    Raises:
        InvalidInput: one does not (the nearest that does is named), or there are keys inside one that is no section.
    """
    known = {each.name: each.type for each in fields(kind)}
    for key, value in content.items():
        if key not in known:
            raise InvalidInput(f"unknown key '{prefix}{key}'", where=where, remedy=nearest(key, list(known)))
        if isinstance(value, dict):
            if not is_dataclass(known[key]):
                raise InvalidInput(f"'{prefix}{key}' is no section", where=where)
            refuse_unknown(known[key], cast(dict[str, Any], value), where, f"{prefix}{key}.")


def _set(content: dict[str, Any], setting: Setting) -> None:
    *sections, last = setting.key
    for section in sections:
        content = content.setdefault(section, {})
        if not isinstance(content, dict):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidInput(f"'{section}' is no section", where=setting.source)
    content[last] = setting.value


def _nest(setting: Setting) -> dict[str, Any]:
    nested = setting.value
    for name in reversed(setting.key):
        nested = {name: nested}
    return nested


def _value(text: str, where: str) -> Any:
    try:
        return parse_toml(f"value = {text}", where)["value"]
    except tomllib.TOMLDecodeError:
        return text.strip()
