"""The table of a configuration: every value, and its source (default, file or command line)."""

import json
from collections.abc import Mapping
from typing import Any

from rich.table import Table

from graphpipe.report.tables.styled_table import new_table


def config_table(values: Mapping[str, Any], sources: Mapping[str, str]) -> Table:
    """Return a row per dotted key.

    Args:
        values: by dotted key, in JSON types.
        sources: where each value was set, by dotted key.
    """
    table = new_table("Configuration")
    for heading in ("key", "value", "from"):
        table.add_column(heading, overflow="fold")
    for key, value in values.items():
        table.add_row(key, json.dumps(value), sources[key])
    return table
