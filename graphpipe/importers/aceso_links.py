"""Measured links and collectives of Aceso's profiles."""

from collections.abc import Mapping
from pathlib import Path

from graphpipe.cluster import Link
from graphpipe.errors import InvalidInput
from graphpipe.importers.aceso_files import amount, read_amounts, read_rows
from graphpipe.importers.aceso_profile import MIB
from graphpipe.profiler.fitting.fit_curve import fit_line

GIB = 2.0**30


def read_link(path: Path) -> Link:
    """Return the link that a file of bandwidths describes.

        1,2,4,8                 MB of a message
        1.33,1.37,1.31,1.37     GB per second; more pairs of lines are more measurements

    Latency and bandwidth are the line through the seconds of the messages, with the smallest relative error.

    Raises:
        InvalidInput: unreadable, lines that do not come in pairs of equal length, or a bad number (with its line).
    """
    lines = read_amounts(path)
    if not lines or len(lines) % 2:
        remedy = "Write a line of sizes, then a line of bandwidths."
        raise InvalidInput(f"has {len(lines)} lines, must be pairs", where=str(path), remedy=remedy)
    seconds: dict[float, list[float]] = {}
    for (size_at, sizes), (rate_at, rates) in zip(lines[::2], lines[1::2], strict=True):
        if len(sizes) != len(rates):
            what = f"has {len(rates)} bandwidths for {len(sizes)} sizes"
            raise InvalidInput(what, where=rate_at, remedy="Write one for each size.")
        for size, rate in zip(sizes, rates, strict=True):
            count = amount(size, size_at, zero=False) * MIB
            seconds.setdefault(count, []).append(count / (amount(rate, rate_at, zero=False) * GIB))
    mean = {count: sum(times) / len(times) for count, times in seconds.items()}
    ((latency, per_byte),) = fit_line(mean).lines
    if not per_byte:
        raise InvalidInput("messages of all sizes take the same time", where=str(path), remedy="Measure it again.")
    return Link(latency_seconds=latency, bandwidth_bytes_per_second=1 / per_byte)


def read_collective(path: Path) -> Mapping[float, float]:
    """Return the seconds of a collective by bytes.

    Raises:
        InvalidInput: unreadable, a column is missing, or a bad number (with its line).
    """
    size, time = "data_size(MB)", "time(ms)"
    seconds_by_bytes: dict[float, float] = {}
    for where, row in read_rows(path, (size, time)):
        count = amount(row[size], f"{where}, {size}", zero=False) * MIB
        seconds_by_bytes[count] = amount(row[time], f"{where}, {time}") * 1e-3
    if not seconds_by_bytes:
        raise InvalidInput("lists no sizes", where=str(path), remedy="Write it again.")
    return seconds_by_bytes


def collective_seconds(measured: Mapping[float, float], count: float) -> float:
    """Return the seconds of a collective of `count` bytes, on the line between the two measured sizes around it.

    Beyond the measured sizes, the bandwidth of the nearest one counts.
    """
    below = max((size for size in measured if size <= count), default=None)
    above = min((size for size in measured if size >= count), default=None)
    if below is None or above is None:
        nearest = above if below is None else below
        assert nearest is not None
        return measured[nearest] * count / nearest
    if below == above:
        return measured[below]
    share = (count - below) / (above - below)
    return measured[below] * (1 - share) + measured[above] * share
