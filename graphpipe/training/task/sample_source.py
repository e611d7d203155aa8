"""A map-style data set, and how its samples become inputs and targets.

A data set is anything with a length whose samples are read by index: of torch, of Hugging Face, or a list. If it offers
columns (`column_names` and `select_columns`, as those of Hugging Face do), only the wanted ones are read.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import default_collate

from graphpipe.errors import InvalidInput, nearest
from graphpipe.graph import InputLayout
from graphpipe.model.inputs import dotted, found_inputs, name_inputs, nested_arguments
from graphpipe.user_frames import describe_error

Collate = Callable[[list[Any]], Any]
"""Makes a pair (inputs, targets), or a dict of both by name, from a list of samples."""
TARGETS = ""
"""Stands for the targets among names of inputs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleSource:
    """The samples of a data set, as inputs and targets of a model."""

    dataset: Any
    """Has `__len__` and `__getitem__`."""
    layout: InputLayout
    """Of the model's inputs."""
    collate: Collate | None = None
    """Joins samples. None: tensors and numbers are stacked."""
    columns: Mapping[str, tuple[str, ...]]
    """The columns that an input or a target is made of, by its name. Others are made of the column of their name."""
    targets: tuple[str, ...] | None = None
    """Names of the targets in a sample that is a dict. None: a sample is a pair (inputs, target)."""
    one_target: bool = True
    """Whether the loss gets the only target itself, rather than a dict."""
    field: str = "dataset"
    """The field of the task, for messages."""

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of the model's inputs."""
        return self.layout.names

    @property
    def selects(self) -> bool:
        """Whether only the wanted columns are read."""
        return self.targets is not None and offers_columns(self.dataset)

    def columns_of(self, names: Sequence[str]) -> tuple[str, ...]:
        """Return the columns that inputs, and the targets (`TARGETS`), are made of.

        Raises:
            InvalidInput: the data set has no such column.
        """
        wanted: dict[str, None] = {}
        for name in names:
            for part in (self.targets or ()) if name == TARGETS else (name,):
                wanted |= dict.fromkeys(self.columns.get(part, (part,)))
        known = [str(name) for name in self.dataset.column_names]
        for column in wanted:
            if column not in known:
                raise InvalidInput(
                    f"the data set has no column '{column}'",
                    where=self.field,
                    remedy=f"{nearest(column, known)} `columns` says what an input is made of.",
                )
        return tuple(wanted)

    def with_columns(self, names: Sequence[str]) -> Any:
        """Return the data set with only the columns that inputs, and the targets, are made of."""
        return self.dataset.select_columns([*self.columns_of(names)]) if self.selects else self.dataset

    def join(self, samples: list[Any], names: Sequence[str]) -> dict[str, Any]:
        """Return inputs, and the targets under `TARGETS`, of some samples.

        Args:
            samples: as the data set gives them; of columns, only the wanted ones.
            names: what is wanted.

        Raises:
            InvalidInput: the samples cannot be joined, or something that is wanted is missing.
        """
        try:
            collated = self.collate(samples) if self.collate is not None else self._stack(samples, names)
        except InvalidInput:
            raise
        except Exception as error:
            if self.collate is not None:
                raise InvalidInput(f"raised {describe_error(error)}", where="collate") from error
            raise InvalidInput(
                f"the samples cannot be stacked: {describe_error(error)}",
                where=self.field,
                remedy="Pad them to one shape, or give collate=, which makes inputs and targets of a list of samples.",
            ) from error
        found = self._by_name(collated, names)
        for name in names:
            if name not in found:
                raise InvalidInput(
                    f"input '{name}' is missing; found {', '.join(found) or 'nothing'}", where=self._maker()
                )
        return {name: found[name] for name in names}

    def _maker(self) -> str:
        return self.field if self.collate is None else "collate"

    def _stack(self, samples: list[Any], names: Sequence[str]) -> Any:
        if not isinstance(samples[0], Mapping) or any(name in samples[0] for name in nested_arguments(self.layout)):
            return default_collate(samples)
        wanted = [part for name in names for part in (self._targets() if name == TARGETS else (name,))]
        return {name: self._column(samples, name) for name in wanted}

    def _column(self, samples: list[Mapping[str, Any]], name: str) -> Tensor:
        (column, *more) = self.columns.get(name, (name,))
        if more:
            raise InvalidInput(
                f"'{name}' is made of {len(more) + 1} columns, and nothing says how",
                where="columns",
                remedy="Give collate=, which makes it from samples with these columns.",
            )
        if column not in samples[0]:
            raise InvalidInput(f"a sample has no '{column}'", where=self.field, remedy=nearest(column, [*samples[0]]))
        return torch.stack([as_tensor(sample[column], column, self.field) for sample in samples])

    def _targets(self) -> tuple[str, ...]:
        if self.targets is None:
            raise InvalidInput(
                "a sample is a dict, and nothing says which of its values are targets",
                where=self.field,
                remedy="Give targets='NAME', or collate=, which returns a pair (inputs, targets).",
            )
        return self.targets

    def _by_name(self, collated: object, names: Sequence[str]) -> dict[str, Any]:
        if isinstance(collated, Mapping):
            given = cast("Mapping[str, Any]", collated)
            found = {name: value for name in self.inputs if (value := self._value(given, name)) is not None}
            found = {**found_inputs(self.layout, given), **found}
            if TARGETS in names:
                parts = {name: self._value(given, name) for name in self._targets()}
                if missing := [name for name, value in parts.items() if value is None]:
                    raise InvalidInput(
                        f"target '{missing[0]}' is missing", where=self._maker(), remedy=nearest(missing[0], [*given])
                    )
                found[TARGETS] = next(iter(parts.values())) if self.one_target else parts
            return found
        if is_pair(collated):
            inputs, targets = cast("Sequence[Any]", collated)
            return {**self._inputs(inputs), TARGETS: targets}
        raise InvalidInput(
            f"found a {with_size(collated)}, must be a pair (inputs, targets), or a dict of both by name",
            where=self._maker(),
            remedy="" if self.collate else "Give collate=, which makes inputs and targets from a list of samples.",
        )

    def _inputs(self, inputs: Any) -> dict[str, Any]:
        if self.layout.parts:
            return dict(name_inputs(self.layout, inputs))
        if isinstance(inputs, Mapping):
            return dict(cast("Mapping[str, Any]", inputs))
        given = [inputs] if isinstance(inputs, Tensor) else [*inputs]
        if len(given) != len(self.inputs):
            names = ", ".join(self.inputs)
            raise InvalidInput(f"{len(given)} inputs were made, the model takes {names}", where=self._maker())
        return dict(zip(self.inputs, given, strict=True))

    def _value(self, given: Mapping[str, Any], name: str) -> Any:
        if name in given:
            return given[name]
        columns = self.columns.get(name, ())
        return given.get(columns[0]) if len(columns) == 1 else None


def columns_of_leaves(layout: InputLayout) -> dict[str, tuple[str, ...]]:
    """Return the columns that tensors in containers are made of by default: those of their keys, where these differ."""
    keys = {dotted(part.path): str(part.path[-1]) for part in layout.parts if len(part.path) > 1}
    return {name: (key,) for name, key in keys.items() if name in layout.names and [*keys.values()].count(key) == 1}


def is_pair(found: object) -> bool:
    """Return whether something is a pair, as of inputs and targets."""
    return isinstance(found, tuple | list) and len(cast("Sequence[object]", found)) == 2


def with_size(found: object) -> str:
    """Return what something is, for messages: `tuple of 3`, `Tensor`."""
    size = f" of {len(cast('Sequence[object]', found))}" if isinstance(found, tuple | list | Mapping) else ""
    return f"{type(found).__name__}{size}"


def offers_columns(dataset: object) -> bool:
    """Return whether a data set reads columns apart."""
    return hasattr(dataset, "column_names") and callable(getattr(dataset, "select_columns", None))


def as_tensor(value: Any, column: str, where: str) -> Tensor:
    """Return a value of a sample as a tensor: a tensor, an array, a number, or nested lists of numbers.

    Raises:
        InvalidInput: it is something else, such as a text or an image.
    """
    if isinstance(value, Tensor):
        return value
    try:
        if not isinstance(value, list | tuple):
            return torch.as_tensor(value)
        found = torch.as_tensor(np.asarray(value))  # Many times as fast as from nested lists.
        return found.to(torch.get_default_dtype()) if found.dtype is torch.float64 else found
    except (TypeError, ValueError, RuntimeError):
        raise InvalidInput(
            f"'{column}' of a sample is a {type(value).__name__}, which is no tensor",
            where=where,
            remedy="Give collate=, which makes tensors from a list of samples, or a data set that returns tensors.",
        ) from None
