"""Tables of benchmarks stand on the pages themselves. They were filled in only where the site was built."""

from pathlib import Path

import pytest

from bench.pages import DOCS, show, shown
from bench.record import RESULTS

PAGES = [page for page in sorted(DOCS.rglob("*.md")) if "<!-- results of" in page.read_text()]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_shows_what_the_benchmark_wrote(page: Path) -> None:
    assert len(shown(page)) == page.read_text().count("<!-- results of")
    for name, text in shown(page).items():
        assert text == (RESULTS / f"{name}.md").read_text().partition("\n\n")[2].strip(), name


def test_new_results_are_written_into_the_pages_that_show_them(tmp_path: Path) -> None:
    one, other = tmp_path / "one.md", tmp_path / "other.md"
    one.write_text("# One\n\n<!-- results of a -->\n\nold\n\n<!-- end of a -->\n\nText.\n")
    other.write_text("# Other\n\n<!-- results of b -->\n\nold\n\n<!-- end of b -->\n")
    assert show("a", "| \\1 new |", tmp_path) == [one]
    assert one.read_text() == "# One\n\n<!-- results of a -->\n\n| \\1 new |\n\n<!-- end of a -->\n\nText.\n"
    assert shown(other) == {"b": "old"}
