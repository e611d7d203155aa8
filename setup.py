"""The description of the package, and the files of its examples.

The description is README.md, whose links do not lead to files beside it. Everything else is in pyproject.toml. If that
has a `Source` under `[project.urls]`, the links lead there. Otherwise the description names the files without a link.
"""

import re
import shutil
import tomllib
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

ROOT = Path(__file__).parent
LINK = re.compile(r"\[([^\]]*)\]\((?!https?:|#)([^)]*)\)")


def description(readme: str, source: str | None) -> str:
    """Return the text with absolute links, or without links to files."""
    if source is None:
        return LINK.sub(r"\1 (`\2`)", readme)
    return LINK.sub(lambda link: f"[{link[1]}]({source.rstrip('/')}/blob/main/{link[2]})", readme)


class WithExamples(build_py):
    """Copies the example of the digits and the template of a project into the package.

    A package in place finds them in the repository.
    """

    def run(self) -> None:
        """Build the modules, and copy the files."""
        super().run()
        if self.editable_mode:
            return
        for name, pattern in (("digits", "digits*.*"), ("project", "project/*.*")):
            folder = Path(self.build_lib, "graphpipe", "cli", name)
            folder.mkdir(parents=True, exist_ok=True)
            for path in sorted((ROOT / "examples").glob(pattern)):
                shutil.copyfile(path, folder / path.name)


if __name__ == "__main__":
    urls = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"].get("urls", {})
    setup(
        cmdclass={"build_py": WithExamples},
        long_description=description((ROOT / "README.md").read_text(), urls.get("Source")),
        long_description_content_type="text/markdown",
    )
