"""The check of the source: findings without a reason fail it, and so do reasons that nothing needs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tools.audit import EXCEPTIONS, ROOT, Accepted, unexplained


def test_findings_need_reasons_and_reasons_findings() -> None:
    found = {"filename": "src/holdfast/a/b.py", "test_id": "B608", "line_number": 3, "issue_text": "SQL"}
    reason = Accepted("B608", ("a/*",), "constants")
    assert unexplained([found], [reason]) == []
    assert unexplained([found], []) == ["a/b.py:3: B608 SQL"]
    assert unexplained([{**found, "test_id": "B301"}], [reason]) == [
        "a/b.py:3: B608 SQL".replace("B608", "B301"),
        "tools/audit.py: nothing needs B608 in a/*",
    ]
    files = [pattern for each in EXCEPTIONS for pattern in each.files if each.check != "B101"]
    assert all(any((ROOT / "src" / "holdfast").glob(pattern)) for pattern in files)
    assert not any(pattern.startswith("*") for pattern in files)
    assert not any("*" in pattern for pattern in files if pattern.startswith("security")), "each of these is looked at"


@pytest.mark.nightly
def test_the_source_and_the_list_of_parts(tmp_path: Path) -> None:
    """Bandit finds nothing, and finds what is planted; the list has the dependencies."""
    done = subprocess.run([sys.executable, "-m", "tools.audit", "bandit", "sbom"], cwd=ROOT, check=False)
    assert done.returncode == 0
    assert b"msgspec" in (ROOT / "build" / "sbom.json").read_bytes()
    bandit = ROOT / "build" / "audit" / "bin" / "bandit"
    (tmp_path / "planted.py").write_text("import pickle\npickle.loads(b'')\n")
    assert subprocess.run([str(bandit), "-q", "-r", str(tmp_path)], capture_output=True, check=False).returncode == 1
