"""The tutorial is typed, word for word, and prints what it says."""

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.docs.markdown import ROOT, split

TUTORIAL = ROOT / "docs" / "guides" / "tutorial.md"

# What differs each time: ids and hashes, times, sizes, where the store is, and what the shell says of a signal.
_VARYING = [
    (re.compile(r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b|\b[0-9a-f]{64}\b"), "ID"),
    (re.compile(r"\b[0-9a-f]{8}-[0-9a-f]{2,4}\b"), "SHORT"),
    (re.compile(r"\b[0-9a-f]{8}\.1\b"), "BACKUP"),
    (re.compile(r"\w{3} \w{3} \d\d [\d:]{8} \d{4} [+-]\d{4}"), "TIME"),
    (re.compile(r"\(\d+ \w+ ago\)"), "AGO"),
    (re.compile(r"\d+\.\d s\b"), "SECONDS"),
    (re.compile(r"[\d.]+ k?B\b"), "SIZE"),
    (re.compile(r"sqlite:///\S+/agents.db"), "URL"),
    (re.compile(r"^.*Killed.*$", re.MULTILINE), "Killed"),
]


def masked(text: str) -> str:
    for pattern, name in _VARYING:
        text = pattern.sub(name, text)
    return text


def typed(command: str, directory: Path) -> str:
    """Type a command into a shell in a directory, and return what it printed, as one sees it."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")}
    path = f"{Path(sys.executable).parent}{os.pathsep}{kept['PATH']}"
    done = subprocess.run(
        ["bash", "-c", f"{command}\nexit 0"],
        cwd=directory,
        env={**kept, "PATH": path, "LC_ALL": "C.UTF-8", "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        check=True,
    )
    return done.stdout


def test_the_tutorial_prints_what_it_says(tmp_path: Path) -> None:
    commands = 0
    for block in split(TUTORIAL)[0]:
        if block.info == "python":
            (tmp_path / "agent.py").write_text(block.text, encoding="utf-8")
        elif block.info == "console":
            printed = ""
            for line in block.text.splitlines():
                if line.startswith("$ "):
                    printed += f"{line}\n{typed(line[2:], tmp_path)}"
                    commands += 1
            assert masked(printed) == masked(block.text), block.where
    assert commands == 16


def test_the_commands_of_the_readme_work_as_printed(tmp_path: Path) -> None:
    blocks = split(ROOT / "README.md")[0]
    example = next(block.text for block in blocks if block.info == "python")
    (tmp_path / "example.py").write_text(example, encoding="utf-8")
    (console,) = (block.text.replace("$ ", "") for block in blocks if block.info == "console")
    export, *commands = console.splitlines()
    assert len(commands) >= 7
    printed = typed(f"{sys.executable} example.py && {export} && {commands[0]}", tmp_path)
    shown = next(block.text for block in blocks if block.info == "text")
    assert masked(printed) == masked(shown)
    rest = " && ".join(command for command in commands[1:] if command != "holdfast ui")
    assert typed(f"{export}; {rest} && echo all of them", tmp_path).endswith("\nall of them\n")
