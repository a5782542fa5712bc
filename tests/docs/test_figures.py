"""Figures are measured once: those of the README are those of the page on benchmarks."""

import re

from tests.docs.markdown import ROOT

README = ROOT / "README.md"
_FIGURES = re.compile(r"^\| ((?:SQLite|PostgreSQL), .*?) \| (.*?) \| (.*?) \| (.*?) \|$", re.MULTILINE)


def test_the_readme_has_the_figures_of_the_benchmarks() -> None:
    page = (ROOT / "docs" / "guides" / "benchmarks.md").read_text(encoding="utf-8")
    rows = _FIGURES.findall(README.read_text(encoding="utf-8"))
    assert len(rows) >= 4
    for name, own, other, ratio in rows:
        row = re.compile(rf"^\| {re.escape(name.partition(', ')[2])}.*$", re.MULTILINE)
        assert any(
            {own, other, ratio} <= set(re.split(r" \| |\| | \|| / |[()]| \(", found)) for found in row.findall(page)
        ), name


def test_the_readme_is_short_and_asks_for_nothing_that_is_not_there() -> None:
    text = README.read_text(encoding="utf-8")
    assert len(text.splitlines()) < 120
    assert not re.search(r"pip install [\"']?holdfast", text), "there is no release"
