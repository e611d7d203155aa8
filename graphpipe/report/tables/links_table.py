"""Table of measured links."""

from collections.abc import Sequence

from graphpipe.cluster.measured_link import MeasuredLink
from graphpipe.report.tables.styled_table import Column, FittingTable
from graphpipe.units import format_bytes, format_seconds

COLUMNS = (
    *(Column(heading="ranks", right=False), Column(heading="hosts", right=False, spare=1)),
    *(Column(heading="latency"), Column(heading="bandwidth"), Column(heading="work per message")),
    Column(heading="work per MB"),
)


def links_table(measured: Sequence[MeasuredLink]) -> FittingTable:
    """Return a row for every pair of ranks. Work is that of the process at each end."""
    rows = [
        (
            f"{each.first} - {each.second}",
            "same" if each.same_host else "two",
            format_seconds(each.link.latency_seconds),
            f"{format_bytes(each.link.bandwidth_bytes_per_second)}/s",
            format_seconds(each.link.processor_seconds),
            format_seconds(each.link.processor_seconds_per_byte * 1e6),
        )
        for each in measured
    ]
    return FittingTable(columns=COLUMNS, rows=rows)
