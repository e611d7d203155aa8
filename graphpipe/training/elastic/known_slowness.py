"""slow-devices.json: the speeds that an elastic run has measured, for the run that resumes it.

{"graphpipe": "slow-devices", "schema_version": 1, "times_as_long": {"node0/cpu-1": 3.2}}
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

from pydantic import ConfigDict, Field

from graphpipe.errors import InvalidInput
from graphpipe.files.json_body import from_body
from graphpipe.files.json_document import read_document, write_document
from graphpipe.training.run_folder.run_folder import RunFolder

KIND = "slow-devices"
MOST_TIMES, MOST_DEVICES = 1e6, 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownSlowness:
    """What the file holds."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    times_as_long: Annotated[
        dict[str, Annotated[float, Field(ge=1, le=MOST_TIMES)]],
        Field(max_length=MOST_DEVICES),
    ]
    """How many times as long devices compute as their type does, by name."""


def note_slowness(folder: RunFolder, slowness: Mapping[str, float]) -> None:
    """Write the speeds of slow devices to a run's folder.

    Args:
        folder: of the run.
        slowness: how many times as long each slow device computes, by its name.
    """
    known = {name: min(max(times, 1.0), MOST_TIMES) for name, times in slowness.items()}
    write_document(folder.slow_devices, KIND, KnownSlowness(times_as_long=known))


def read_slowness(folder: RunFolder) -> dict[str, float]:
    """Return the speeds that a run has measured; none if it has not written any.

    Raises:
        InvalidInput: the file cannot be read, or a speed is not possible.
    """
    path = folder.slow_devices
    if not path.exists():
        return {}
    try:
        known = read_document(path, KIND, lambda body: from_body(KnownSlowness, body, str(path)))
    except InvalidInput as error:
        remedy = "Delete the file to plan with the speeds of the cluster."
        raise InvalidInput(error.what, where=error.where, remedy=remedy) from None
    return known.times_as_long
