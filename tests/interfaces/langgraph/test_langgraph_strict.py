"""In LangGraph's strict mode only classes that a graph's schema names are revived."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.interfaces.langgraph.strict import observed

KEPT = {
    "known": "Known(text='k!')",
    "models": "[Model(text='m')]",
    "colour": "<Colour.RED: 'red'>",
    "message": "HumanMessage(content='h', additional_kwargs={}, response_metadata={}, id='h')",
}


TYPES = {"known": "Known", "models": "list", "colour": "Colour", "message": "HumanMessage"}
KINDS = ("sqlite", "langgraph")


def test_strict(tmp_path: Path) -> None:
    environment = {**os.environ, "LANGGRAPH_STRICT_MSGPACK": "true"}
    command = [sys.executable, "-m", "tests.interfaces.langgraph.strict", str(tmp_path), *KINDS]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    assert len(found) == 2 * len(KINDS)
    for where, seen in found.items():
        assert seen["kept"] == KEPT, where
        assert seen["kept when stopped"] == TYPES, where
        assert seen["revived"] == [], f"{where}: {seen['anything']}"
        assert seen["steps"] == [1, 2, 10], where
        assert seen["next"] == ["go on"], where


def test_not_strict(tmp_path: Path) -> None:
    assert "LANGGRAPH_STRICT_MSGPACK" not in os.environ, "LangGraph has read it by now: this process is strict"
    found = observed(tmp_path, KINDS)
    assert len(found) == 2 * len(KINDS)
    for where, seen in found.items():
        assert seen["kept"] == KEPT, where
        assert set(seen["revived"]) == {"Unknown", "UnknownModel", "UnknownColour"}, where
        assert seen["steps"] == [1, 2, 10], where
