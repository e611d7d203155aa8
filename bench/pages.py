"""The pages of the documentation that show what a benchmark wrote.

A table stands on a page itself, between `<!-- results of NAME -->` and `<!-- end of NAME -->`, so that it can be read
without building the site.
"""

import re
from pathlib import Path

DOCS = Path(__file__).parents[1] / "docs"
_SHOWN = re.compile(r"<!-- results of ([\w-]+) -->\n.*?<!-- end of \1 -->", re.DOTALL)


def show(name: str, text: str, folder: Path = DOCS) -> list[Path]:
    """Write the results of a benchmark into the pages that show them, and return the pages.

    Args:
        name: of the results.
        text: in Markdown, without a title.
        folder: of the pages.
    """
    pages = [page for page in sorted(folder.rglob("*.md")) if name in shown(page)]
    block = f"<!-- results of {name} -->\n\n{text.strip()}\n\n<!-- end of {name} -->"
    for page in pages:
        before = page.read_text(encoding="utf-8")
        page.write_text(_SHOWN.sub(lambda at: block if at[1] == name else at[0], before), encoding="utf-8")
    return pages


def shown(page: Path) -> dict[str, str]:
    """Return the results that stand on a page, by name."""
    found = _SHOWN.finditer(page.read_text(encoding="utf-8"))
    return {each[1]: each[0].partition("-->")[2].rpartition("<!--")[0].strip() for each in found}
