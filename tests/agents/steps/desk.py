"""An agent whose steps leave traces in a file, for tests."""

from __future__ import annotations

from pathlib import Path

from holdfast import Store
from holdfast.agents import PersistentAgent

ID = "desk-1"


class Desk(PersistentAgent, name="tests: desk"):
    """An agent that charges."""


def desk_of(store: Store, id: str = ID) -> Desk:
    """Return the agent, which is created if there is none."""
    desk = Desk().attach(store, id)
    if store.agents.exists(id):
        desk.reload()
    else:
        desk.save()
    return desk


def append_line(path: Path, line: str) -> None:
    """Leave a trace that outlives the process."""
    with path.open("a") as file:
        file.write(f"{line}\n")


def lines_of(path: Path) -> list[str]:
    """Return the traces."""
    return path.read_text().splitlines() if path.exists() else []
