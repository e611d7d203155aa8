"""The table of the findings of `graphpipe doctor`."""

from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from graphpipe.doctor import Finding
from graphpipe.report.tables.styled_table import new_table

STYLES = {"fine": "green", "warning": "yellow", "problem": "red"}


def findings_table(findings: Sequence[Finding]) -> Table:
    """Return a row per finding."""
    table = new_table("Installation")
    for heading in ("what", "is", "found", "what to do"):
        table.add_column(heading, overflow="fold")
    for finding in findings:
        status = Text(finding.status, style=STYLES[finding.status])
        table.add_row(finding.name, status, finding.what, finding.remedy)
    return table
