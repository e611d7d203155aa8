"""Shows plans, comparisons and traces: as tables in the terminal, as one HTML page, and as pictures."""

from graphpipe.report.content.summary import Outcome, Summary, summarise, summary_lines
from graphpipe.report.tables.comparison import compare_table, measured_table
from graphpipe.report.tables.config_table import config_table
from graphpipe.report.tables.findings_table import findings_table
from graphpipe.report.tables.plan_table import plan_table
from graphpipe.report.tables.text_timeline import timeline

__all__ = [
    "Outcome",
    "Summary",
    "compare_table",
    "config_table",
    "findings_table",
    "measured_table",
    "plan_table",
    "summarise",
    "summary_lines",
    "timeline",
]
