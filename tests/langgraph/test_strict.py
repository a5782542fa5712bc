"""In LangGraph's strict mode only classes that a graph's schema names are revived."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

KEPT = {
    "known": "Known(text='k!')",
    "models": "[Model(text='m')]",
    "colour": "<Colour.RED: 'red'>",
    "message": "HumanMessage(content='h', additional_kwargs={}, response_metadata={}, id='h')",
}


TYPES = {"known": "Known", "models": "list", "colour": "Colour", "message": "HumanMessage"}
KINDS = ("memory", "sqlite", "serialized", "langgraph")


def observed(folder: Path, *, strict: bool) -> dict[str, Any]:
    """What a graph shows on each kind of saver, in a process of its own."""
    environment = {**os.environ, "LANGGRAPH_STRICT_MSGPACK": "true" if strict else "false"}
    command = [sys.executable, "-m", "tests.langgraph.strict", str(folder), *KINDS]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    seen: dict[str, Any] = json.loads(done.stdout)
    assert len(seen) == 2 * len(KINDS)
    return seen


def test_strict(tmp_path: Path) -> None:
    for where, seen in observed(tmp_path, strict=True).items():
        assert seen["kept"] == KEPT, where
        assert seen["kept when stopped"] == TYPES, where
        assert seen["revived"] == [], f"{where}: {seen['anything']}"
        assert seen["steps"] == [1, 2, 10], where
        assert seen["next"] == ["go on"], where


def test_not_strict(tmp_path: Path) -> None:
    for where, seen in observed(tmp_path, strict=False).items():
        assert seen["kept"] == KEPT, where
        assert set(seen["revived"]) == {"Unknown", "UnknownModel", "UnknownColour"}, where
        assert seen["steps"] == [1, 2, 10], where
