"""The description of the package: README.md, whose links do not lead to files beside it.

Everything else is in pyproject.toml. If that has a `Source` under `[project.urls]`, the links lead there. Otherwise the
description names the files without a link.
"""

import re
import tomllib
from pathlib import Path

from setuptools import setup

ROOT = Path(__file__).parent
LINK = re.compile(r"\[([^\]]*)\]\((?!https?:|#)([^)]*)\)")


def description(readme: str, source: str | None) -> str:
    """Return the text with absolute links, or without links to files."""
    if source is None:
        return LINK.sub(r"\1 (`\2`)", readme)
    return LINK.sub(lambda link: f"[{link[1]}]({source.rstrip('/')}/blob/main/{link[2]})", readme)


if __name__ == "__main__":
    urls = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"].get("urls", {})
    setup(
        long_description=description((ROOT / "README.md").read_text(), urls.get("Source")),
        long_description_content_type="text/markdown",
    )
