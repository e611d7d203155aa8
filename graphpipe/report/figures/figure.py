"""A figure of the page, as a plotting library's figure and what the page must know to show it.

The library is plotly: Python checks a figure's every field, the page needs one script and one JSON object per figure,
and hover, zoom, touch and resizing are its own.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import plotly.graph_objects as go


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One figure. Its colours of text, lines and background are the page's, set when it is shown."""

    figure: go.Figure
    height: int
    """Pixels."""
    least_width: int = 0
    """Pixels; where the page is narrower, the figure scrolls sideways inside its panel."""
    most_width: int | None = None
    """Pixels; where the page is wider, the figure stands in the middle."""
    kind: str = "plain"
    """`timeline`: filled by assets/timeline.js."""
    extra: Mapping[str, Any] = field(default_factory=dict[str, Any])

    def script(self) -> str:
        """Return the JSON that the page reads, fit to stand inside a <script> element."""
        whole = json.loads(str(self.figure.to_json())) | {"height": self.height, "kind": self.kind, "extra": self.extra}
        whole["layout"].pop("template", None)
        return json.dumps(whole, separators=(",", ":"), allow_nan=False).replace("</", "<\\/")
