"""Runs what the guides and examples of a framework show."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.docs.markdown import ROOT, split


def run_guide(name: str, folder: Path) -> None:
    """Run the Python blocks of a guide, in order, in a folder. A traceback shows the guide's own lines."""
    path = ROOT / "docs" / "guides" / name
    blocks = [block for block in split(path)[0] if block.info == "python"]
    assert blocks
    text = ""
    for block in blocks:
        text += "\n" * (block.line - text.count("\n")) + block.text
    (folder / "guide.py").write_text(text)
    done = subprocess.run([sys.executable, "guide.py"], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def run_example(name: str) -> list[str]:
    """Run an example; return the lines that it prints."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("HOLDFAST_")}
    command = [sys.executable, "-m", f"examples.frameworks.{name}"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()
