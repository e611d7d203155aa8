"""A figure of the page: a plotly figure, with its size and its data for the page's script.

Plotly checks every field in Python, needs one script and one JSON object per figure, and brings hover, zoom, touch and
resizing.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import plotly.graph_objects as go


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One figure. The page sets the colours of text, lines and background when it shows the figure."""

    figure: go.Figure
    height: int
    """Height in pixels."""
    least_width: int = 0
    """Least width in pixels. On a narrower page the figure scrolls sideways inside its panel."""
    most_width: int | None = None
    """Largest width in pixels. On a wider page the figure is centred."""
    kind: str = "plain"
    """The kind of figure: `plain`, or `timeline`, which `page/assets/timeline.js` fills."""
    extra: Mapping[str, Any] = field(default_factory=dict[str, Any])

    def script(self) -> str:
        """Return the JSON that the page reads, escaped for a <script> element."""
        whole = json.loads(str(self.figure.to_json())) | {"height": self.height, "kind": self.kind, "extra": self.extra}
        whole["layout"].pop("template", None)
        return json.dumps(whole, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
