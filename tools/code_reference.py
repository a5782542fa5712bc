"""Writes the tables of codes in `docs/guides/troubleshooting.md` from the explanations.

`python tools/code_reference.py`; `tests/maintenance/test_explanations.py` fails while the page says something else.
"""

from __future__ import annotations

import re
from pathlib import Path

from holdfast.maintenance.explain.explanations import Explanation, explanations

PAGE = Path(__file__).resolve().parent.parent / "docs" / "guides" / "troubleshooting.md"
_HEADINGS = {"error": "### Errors", "finding": "### Findings of verify", "check": "### Checks of the doctor"}


def reference(page: str) -> str:
    """Return the page with its tables made from the explanations."""
    for kind, heading in _HEADINGS.items():
        rows = [each for each in explanations().values() if each.kind == kind]
        table = "\n".join(_table(rows, with_exit_code=kind == "error"))
        section = re.compile(rf"({heading}\n(?:[^|\n][^\n]*\n|\n)*)(?:\|[^\n]*\n)+")
        page = section.sub(lambda found, table=table: f"{found[1]}{table}\n", page)  # type: ignore[misc]
    return page


def _table(rows: list[Explanation], *, with_exit_code: bool) -> list[str]:
    columns = ["code", "meaning", "what to do", *(["exit code"] if with_exit_code else [])]
    lines = [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
    for each in rows:
        cells = [f"`{each.code}`", each.meaning, each.remedy, *([str(each.exit_code)] if with_exit_code else [])]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


if __name__ == "__main__":
    PAGE.write_text(reference(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
