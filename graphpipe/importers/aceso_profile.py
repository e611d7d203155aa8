"""Operator profiles of Aceso: what each operator costs with some samples and tensor-parallel degree."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from graphpipe.errors import InvalidInput
from graphpipe.importers.aceso_files import amount, read_rows

MIB = 2.0**20
"""The files count bytes in units that they call MB: an output of 2048 x 5120 values in 16 bits is 20."""
_SECONDS = ("forward-compute", "backward-compute")
_BYTES = ("input_size", "output_size", "weights", "activations")


@dataclass(frozen=True, slots=True, kw_only=True)
class OpProfile:
    """One operator for one micro-batch on one GPU of its tensor-parallel group."""

    name: str
    forward_seconds: float
    backward_seconds: float
    """Seconds of the backward. Like the forward's, they include the collectives of the group."""
    input_bytes: float
    output_bytes: float
    """Bytes of everything that the next operator is given, with values that only pass through."""
    weight_bytes: float
    activation_bytes: float
    """Bytes that the forward allocates, and that are still there at its end."""


def read_profile(path: Path) -> tuple[OpProfile, ...]:
    """Return the operators of a profile, in order of the model. Those of a repeated layer are listed once.

    Raises:
        InvalidInput: unreadable, a column is missing, a bad number (with its line), or an operator is listed twice.
    """
    profiles: dict[str, OpProfile] = {}
    for where, row in read_rows(path, ("op_name", *_SECONDS, *_BYTES)):
        if not (name := row["op_name"]) or name in profiles:
            what = f"operator '{name}' is listed twice" if name else "has no operator name"
            raise InvalidInput(what, where=where, remedy="List each operator once, with its name.")
        seconds = [amount(row[column], f"{where}, {column}") * 1e-6 for column in _SECONDS]
        sizes = [amount(row[column], f"{where}, {column}") * MIB for column in _BYTES]
        profiles[name] = OpProfile(
            name=name,
            forward_seconds=seconds[0],
            backward_seconds=seconds[1],
            input_bytes=sizes[0],
            output_bytes=sizes[1],
            weight_bytes=sizes[2],
            activation_bytes=sizes[3],
        )
    if not profiles:
        raise InvalidInput("lists no operators", where=str(path), remedy="Write it again.")
    return tuple(profiles.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelProfiles:
    """The profiles of a model with one tensor-parallel degree and algorithm. All list the same operators."""

    rows: Mapping[int, tuple[OpProfile, ...]]
    """Profiles of the operators, by samples."""

    @staticmethod
    def read(paths: Mapping[int, Path]) -> "ModelProfiles":
        """Read the files.

        Raises:
            InvalidInput: a file cannot be used, or two list other operators.
        """
        rows = {samples: read_profile(path) for samples, path in sorted(paths.items())}
        first = min(rows)
        for samples, profiles in rows.items():
            if [row.name for row in profiles] != [row.name for row in rows[first]]:
                what = f"lists other operators than {paths[first].name}"
                raise InvalidInput(what, where=str(paths[samples]), remedy="Profile the same model again.")
        return ModelProfiles(rows=rows)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the operators."""
        return tuple(row.name for row in next(iter(self.rows.values())))

    def nearest(self, samples: int) -> int:
        """Return the profiled number of samples that is nearest to this one."""
        return min(self.rows, key=lambda known: (abs(known - samples), known))


def positions(names: Sequence[str], layers: int, count: int, where: str) -> tuple[tuple[int, int | None], ...]:
    """Return, for every operator of the model, the row of the profile and the layer that it belongs to.

    A profile lists the operators of one layer. A model of `layers` layers has them `layers` times:

        embedding  a b c  head   3 layers, 11 operators     embedding  a b c  a b c  a b c  head

    The length of the layer follows from the number of operators. It begins where this many neighbours begin with the
    same word.

    Raises:
        InvalidInput: no layer fits the number of operators.
    """
    if count == len(names):
        return tuple((row, None) for row in range(count))
    length, rest = divmod(count - len(names), layers - 1) if layers > 1 else (0, 1)
    words = [name.split("-")[0] for name in names]
    starts = [at for at in range(len(names) - length + 1) if len(set(words[at : at + length])) == 1]
    if rest or length < 1 or not starts:
        what = f"has {count} operators, but {len(names)} profiled operators do not make them in {layers} layers"
        raise InvalidInput(what, where=where, remedy="Give the profile of the model that was run.")
    first, after = starts[0], starts[0] + length
    layer = ((row, number) for number in range(layers) for row in range(first, after))
    return (
        *((row, None) for row in range(first)),
        *layer,
        *((row, None) for row in range(after, len(names))),
    )
