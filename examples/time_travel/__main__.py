"""An agent gave a wrong answer. When did it go wrong, why, and what would it have said otherwise?

    python -m examples.time_travel

It prints the history, the step that wrote the wrong value, and both endings side by side.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import holdfast

READINGS = ["3.1", "2.9", "29", "3.0"]  # the third lacks a point


def step(state: dict[str, Any], reading: str) -> dict[str, Any]:
    """Take a reading into the plan, in place of a model."""
    values = [*state["values"], float(reading)]
    return {"values": values, "mean": round(sum(values) / len(values), 2), "alarm": max(values) > 10}


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, holdfast.open(Path(folder) / "agents.db") as store:
        thread = store.thread("tide-1")
        state: dict[str, Any] = {"values": [], "mean": 0.0, "alarm": False}
        for reading in READINGS:
            state = step(state, reading)
            thread.put(state, metadata={"reading": reading})
        print("the answer: alarm", thread.get().state["alarm"])

        (entry,) = thread.blame("alarm")
        wrong = entry.writer.step
        print(f"written by step {wrong}, for the reading", thread.get(at=wrong).metadata["reading"])
        print(thread.diff(wrong - 1, wrong).stat())

        thread.fork("corrected", at=wrong - 1)  # copies nothing
        state = thread.get(at="corrected").state
        for reading in ("2.9", *READINGS[wrong + 1 :]):
            state = step(state, reading)
            thread.put(state, branch="corrected", metadata={"reading": reading})
        for branch in ("main", "corrected"):
            ending = thread.get(at=branch).state
            print(f"{branch}: mean {ending['mean']}, alarm {ending['alarm']}")


if __name__ == "__main__":
    main()
