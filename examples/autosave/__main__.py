"""A plain class that is saved after every step, and a state that is saved when it changed.

    python -m examples.autosave

It prints what a second object of the class finds, and how often a state was saved.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import holdfast
from holdfast.savers import AutoCheckpointer, CheckpointableMixin, EveryStep, OnChange


class Reader(CheckpointableMixin):
    """Reads, and remembers what."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def read(self, page: str) -> None:
        """Read a page: a step."""
        self.notes.append(page)
        self.step_done()


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, holdfast.open(Path(folder) / "agents.db") as store:
        reader = Reader().attach(store, "reader-1", EveryStep())
        for page in ("one", "two", "three"):
            reader.read(page)
        again = Reader().attach(store, "reader-1")  # another process
        again.restore()
        print("read:", *again.notes)
        again.restore(at="HEAD~1")
        print("one step before:", *again.notes)

        state: dict[str, Any] = {"count": 0}
        with AutoCheckpointer(store, "counter", lambda: state, OnChange()) as autosave:
            for add in (1, 0, 0, 1):
                state["count"] += add
                autosave.step()
        print("steps: 4, saved:", len(store.thread("counter").log()))


if __name__ == "__main__":
    main()
