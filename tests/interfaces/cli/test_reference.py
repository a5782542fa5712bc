"""The reference of the commands says what they say."""

from __future__ import annotations

import re

from holdfast.interfaces.cli.exit_codes import EXIT_CODES
from tests.docs.markdown import ROOT
from tools.cli_reference import FOLDER, pages


def test_the_reference_is_up_to_date() -> None:
    expected = pages()
    assert {path for path in expected if path.parent == FOLDER} == set(FOLDER.glob("*.md"))
    for path, text in expected.items():
        assert path.read_text(encoding="utf-8") == text, "run: python tools/cli_reference.py"


def test_the_guide_lists_the_exit_codes() -> None:
    guide = (ROOT / "docs" / "guides" / "cli.md").read_text(encoding="utf-8")
    assert [int(code) for code in re.findall(r"^\| (\d+) \|", guide, re.MULTILINE)] == list(EXIT_CODES)
