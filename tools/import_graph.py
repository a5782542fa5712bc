"""Draws the imports between packages in `docs/architecture.md`, for Mermaid.

`python tools/import_graph.py`; `tests/test_layers.py` fails while the page shows something else. An arrow that another
path of arrows already implies is left out.
"""

from __future__ import annotations

import re
from itertools import permutations
from pathlib import Path

import grimp

PAGE = Path(__file__).resolve().parent.parent / "docs" / "architecture.md"
PACKAGES = (
    *("interfaces.web", "interfaces.http", "interfaces.cli", "interfaces.langgraph", "interfaces.scripting"),
    *("interfaces.metrics", "store", "maintenance", "agents", "state", "security", "hooks", "history"),
    *("recording", "schemas", "engine", "codec", "backends", "errors"),
)


def draw(page: str) -> str:
    """Return the page with its drawing made from the imports."""
    names = [(importer.rpartition(".")[2], imported.rpartition(".")[2]) for importer, imported in arrows()]
    lines = ["flowchart TD", *(f"    {importer} --> {imported}" for importer, imported in names)]
    drawing = "\n".join(lines)
    return re.sub(r"(?<=```mermaid\n).*?(?=\n```)", lambda _: drawing, page, count=1, flags=re.DOTALL)


def arrows() -> list[tuple[str, str]]:
    """Return which package imports which, without the arrows that follow from others."""
    graph = grimp.build_graph("holdfast")
    names = {name: f"holdfast.{name}" for name in PACKAGES}
    imports = {
        (one, other)
        for one, other in permutations(PACKAGES, 2)
        if graph.direct_import_exists(importer=names[one], imported=names[other], as_packages=True)
    }
    reach = {name: _reachable(name, imports) for name in PACKAGES}
    return [
        (one, other)
        for one, other in permutations(PACKAGES, 2)
        if (one, other) in imports and not any((one, step) in imports and other in reach[step] for step in PACKAGES)
    ]


def _reachable(start: str, imports: set[tuple[str, str]]) -> set[str]:
    found: set[str] = set()
    todo = [start]
    while todo:
        here = todo.pop()
        below = {other for one, other in imports if one == here} - found
        found |= below
        todo += below
    return found


if __name__ == "__main__":
    PAGE.write_text(draw(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
