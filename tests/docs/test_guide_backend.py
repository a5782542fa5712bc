"""The backend that the guide builds passes the suite that the guide shows."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import pytest

from holdfast.backends.port import Backend
from holdfast.testing import child
from holdfast.testing.conformance import BackendConformance, Stores
from tests.docs.markdown import ROOT, split
from tests.docs.test_code_blocks import PYTHON, run

GUIDE = ROOT / "docs" / "guides" / "backends.md"


def journal() -> type[Backend]:
    """The class `Journal`, from the guide's blocks up to the one that has it."""
    blocks = [block for block in split(GUIDE)[0] if block.info == PYTHON]
    last = next(place for place, block in enumerate(blocks) if "class Journal(" in block.text)
    module = ModuleType("guide_backends")
    run(blocks[: last + 1], module)
    found: type[Backend] = module.Journal
    return found


JOURNAL = journal()
CHILD = "import sys; sys.path.insert(0, {!r}); from tests.docs.test_guide_backend import as_child; as_child()"


def as_child() -> None:
    """What other processes of the suite run: the package of the guide is installed nowhere."""
    child.main(sys.argv[1:], opened=lambda url, options: JOURNAL.open(url, **options))


class TestJournal(BackendConformance):
    @pytest.fixture
    def stores(self, tmp_path: Path) -> Stores:
        command = (sys.executable, "-c", CHILD.format(str(ROOT)))
        return Stores(f"journal:///{tmp_path}/store.journal", kind=JOURNAL, command=command)
