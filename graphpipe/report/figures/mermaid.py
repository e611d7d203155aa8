"""The stage graph as Mermaid text, which GitHub and other Markdown renderers draw.

flowchart TD
    s0["s0<br>image<br>F 2.00 ms, B 4.00 ms<br>2 devices, micro 2 × 4"]
    s0 -->|64.0 KiB| s1
"""

from graphpipe.plans import Plan
from graphpipe.report.figures.palette import ink, stage_colour
from graphpipe.report.figures.stage_boxes import stage_lines
from graphpipe.units import format_bytes


def mermaid(plan: Plan) -> str:
    """Return the flowchart: a box per stage, bytes per sample on the arrows."""
    lines = ["flowchart TD"]
    for number in range(len(plan.stages)):
        text = "<br>".join(line.replace('"', "#quot;") for line in stage_lines(plan, number))
        lines.append(f'    stage{number}["{text}"]')
    for edge in plan.edges:
        lines.append(f"    stage{edge.source} -->|{format_bytes(edge.bytes_per_sample)}| stage{edge.target}")
    for number in range(len(plan.stages)):
        fill = stage_colour(number)
        lines.append(f"    style stage{number} fill:{fill},color:{ink(fill)},stroke:none")
    return "\n".join(lines) + "\n"
