"""Table of measured links."""

from collections.abc import Sequence

from graphpipe.cluster.measured_link import MeasuredLink
from graphpipe.report.tables.styled_table import Column, FittingTable
from graphpipe.units import format_bytes, format_seconds

COLUMNS = (
    Column(heading="ranks", right=False),
    Column(heading="hosts", right=False, spare=1),
    Column(heading="latency"),
    Column(heading="bandwidth"),
    Column(heading="work per message"),
    Column(heading="work per MB"),
)


def links_table(measured: Sequence[MeasuredLink]) -> FittingTable:
    """Return a row for every pair of ranks. Work is that of the process at each end."""
    rows = [
        (
            f"{link.first} - {link.second}",
            "same" if link.same_host else "two",
            format_seconds(link.link.latency_seconds),
            f"{format_bytes(link.link.bandwidth_bytes_per_second)}/s",
            format_seconds(link.link.processor_seconds),
            format_seconds(link.link.processor_seconds_per_byte * 1e6),
        )
        for link in measured
    ]
    return FittingTable(columns=COLUMNS, rows=rows)
