"""The table of names from other libraries names what exists here."""

import importlib
import re
from typing import Any

import pytest

from tests.docs.markdown import ROOT
from tests.support.cases import case

GUIDE = ROOT / "docs" / "guides" / "names.md"
_ROW = re.compile(r"^\| (?P<elsewhere>`.*?) \| (?P<here>`.*?) \|", re.MULTILINE)
_NAME = re.compile(r"`([\w.]+)`")


def find(name: str) -> Any:
    """Return what a dotted name names: modules as far as there are any, then attributes."""
    parts = name.split(".")
    found: Any = importlib.import_module(parts[0])
    for number, part in enumerate(parts[1:], 1):
        is_there = hasattr(found, part)
        found = getattr(found, part) if is_there else importlib.import_module(".".join(parts[: number + 1]))
    return found


def test_the_table_names_what_exists(subtests: pytest.Subtests) -> None:
    page = GUIDE.read_text(encoding="utf-8")
    rows = [(_NAME.findall(row["elsewhere"]), _NAME.findall(row["here"])) for row in _ROW.finditer(page)]
    looked_for = {name for names, _ in rows for name in names}
    assert looked_for >= {"MemorySaver", "SQLiteCheckpointSaver", "StateManager", "save_state", "load_state"}
    for names, here in rows:
        assert here, names
        for name in here:
            with case(subtests, name):
                assert callable(find(name))


def test_a_name_that_is_none_is_noticed() -> None:
    with pytest.raises(ModuleNotFoundError):
        find("holdfast.store.Thread.save_sate")
