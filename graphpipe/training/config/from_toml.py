"""Training configurations from TOML files, environment variables and `section.key=value` overrides."""

import os
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any, cast

from graphpipe.errors import InvalidInput
from graphpipe.files.json_body import from_body, to_body
from graphpipe.files.toml import parse_toml, read_toml
from graphpipe.training.config.settings import TrainConfig
from graphpipe.training.config.suggestions import suggestion

PREFIX = "GRAPHPIPE__"
"""Start of the environment variables' names: GRAPHPIPE__TRAIN__STEPS=50 sets train.steps=50."""


@dataclass(frozen=True, slots=True)
class Setting:
    """One value that an environment variable or an override sets."""

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
        overrides: `section.key=value`, with the value as in TOML. A bare word is a string.
        environment: variables such as GRAPHPIPE__TRAIN__STEPS. Overrides are stronger. None: those of this process.

    Raises:
        InvalidInput: the file cannot be read or is not TOML, a key is unknown (the message names the nearest one), or a
            value cannot be used.
    """
    content = read_toml(path)[1]
    refuse_unknown(TrainConfig, content, str(path))
    _apply(content, read_settings(overrides, environment))
    home = Path(path).resolve()
    if isinstance(folder := content.get("folder", "."), str):
        content["folder"] = str(home.parent / folder)
    run = content.get("run", {})
    config = content | {"run": {"name": home.stem} | run if isinstance(run, dict) else run}
    return from_body(TrainConfig, config, str(path), strict=True)


def resolve_config(config: str | Path | TrainConfig, overrides: Sequence[str] = ()) -> TrainConfig:
    """Return the configuration of a TOML file, or a configuration with some values changed.

    Environment variables change only what a file says.

    Raises:
        InvalidInput: as `read_config`.
    """
    if not isinstance(config, TrainConfig):
        return read_config(config, overrides)
    if not overrides:
        return config
    content = to_body(config)
    _apply(content, read_settings(overrides, {}))
    return from_body(TrainConfig, content, "TrainConfig", strict=True)


def read_settings(overrides: Sequence[str], environment: Mapping[str, str] | None = None) -> Iterator[Setting]:
    """Yield what the environment and the overrides set, the strongest last.

    Raises:
        InvalidInput: an override has no key or no value, or its value is not TOML.
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
    """Check that every key is a field of a dataclass, or of a dataclass inside it.

    Args:
        kind: the dataclass.
        content: values by key.
        where: the source of the content, for the message.
        prefix: of the keys, in the message.

    Raises:
        InvalidInput: a key is unknown (the message names the nearest one), or has keys inside it although it is not a
            section.
    """
    known = {each.name: each.type for each in fields(kind)}
    for key, value in content.items():
        if key not in known:
            remedy = suggestion(f"{prefix}{key}", list(known), TrainConfig)
            raise InvalidInput(f"unknown key '{prefix}{key}'", where=where, remedy=remedy)
        if isinstance(value, dict) and not _is_table(known[key]):
            if not is_dataclass(known[key]):
                raise InvalidInput(f"'{prefix}{key}' is not a section", where=where)
            refuse_unknown(known[key], cast(dict[str, Any], value), where, f"{prefix}{key}.")


def _is_table(kind: Any) -> bool:
    # A field whose keys are the user's own.
    return getattr(kind, "__origin__", None) is dict


def _apply(content: dict[str, Any], settings: Iterable[Setting]) -> None:
    for setting in settings:
        _set(content, setting)
        refuse_unknown(TrainConfig, _nest(setting), setting.source)


def _set(content: dict[str, Any], setting: Setting) -> None:
    *sections, last = setting.key
    for section in sections:
        content = content.setdefault(section, {})
        if not isinstance(content, dict):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidInput(f"'{section}' is not a section", where=setting.source)
    content[last] = setting.value


def _nest(setting: Setting) -> dict[str, Any]:
    nested = setting.value
    for name in reversed(setting.key):
        nested = {name: nested}
    return nested


def _value(text: str, where: str) -> Any:
    # As in TOML; a shell takes the quotation marks away, so words may stand without them, also in a list.
    try:
        return parse_toml(f"value = {text}", where)["value"]
    except tomllib.TOMLDecodeError:
        word = text.strip()
    if word[:1] == "[" and word[-1:] == "]" and not any(mark in word[1:-1] for mark in "[]{}\"'"):
        return [_value(part, where) for part in word[1:-1].split(",") if part.strip()]
    return word
