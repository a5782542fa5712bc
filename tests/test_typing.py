"""Type checkers on a user's program: it passes in strict mode, and every typo of a public name is an error."""

from __future__ import annotations

import importlib
import inspect
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.test_api import MODULES

PROJECT = Path(__file__).parent.parent
PROGRAM = Path(__file__).parent / "typing" / "program.py"


def errors_of_mypy(file: Path) -> dict[int, str]:
    """The first error in each line of a file, in strict mode."""
    cache = PROJECT / ".mypy_cache" / "typing"
    command = [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", f"--cache-dir={cache}", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=file.parent, env=_environment(), check=False)
    assert done.returncode in (0, 1), done.stdout + done.stderr
    found: dict[int, str] = {}
    for line in done.stdout.splitlines():
        match = re.match(rf"{re.escape(file.name)}:(\d+): error: (.*)", line.removeprefix(f"{file.parent}/"))
        assert match or " note: " in line, line
        if match:
            found.setdefault(int(match[1]), match[2])
    return found


def errors_of_pyright(file: Path) -> dict[int, str]:
    """The first error in each line of a file, in strict mode."""
    config = file.parent / "pyrightconfig.json"
    settings = {"typeCheckingMode": "strict", "extraPaths": [str(PROJECT / "src")], "include": [str(file)]}
    config.write_text(json.dumps(settings))
    command = [sys.executable, "-m", "basedpyright", "--outputjson", "--pythonpath", sys.executable, "-p", str(config)]
    done = subprocess.run(command, capture_output=True, text=True, env=_environment(), check=False)
    assert done.returncode in (0, 1), done.stdout + done.stderr
    found: dict[int, str] = {}
    for each in json.loads(done.stdout)["generalDiagnostics"]:
        if each["severity"] == "error":
            found.setdefault(each["range"]["start"]["line"] + 1, each["message"])
    return found


def _environment() -> dict[str, str]:
    return {**os.environ, "MYPYPATH": str(PROJECT / "src")}


CHECKERS = pytest.mark.parametrize(
    "errors_of",
    [
        pytest.param(errors_of_mypy, id="mypy"),
        pytest.param(errors_of_pyright, id="pyright"),
    ],
)


@pytest.mark.nightly  # by day, mypy checks the examples in strict mode
@CHECKERS
def test_a_users_program_passes_in_strict_mode(errors_of: type, tmp_path: Path) -> None:
    file = tmp_path / "program.py"
    file.write_text(PROGRAM.read_text())
    assert errors_of(file) == {}


@pytest.mark.nightly
@CHECKERS
def test_every_typo_of_a_public_name_is_an_error(errors_of: type, tmp_path: Path) -> None:
    lines = ["from typing import Any", *(f"import {root}" for root in MODULES)]
    expected: list[int] = []
    for root in MODULES:
        module = importlib.import_module(root)
        for name in module.__all__:
            lines.append(f"{root}.{name}_x")
            expected.append(len(lines))
            thing = getattr(module, name)
            if not inspect.isclass(thing):
                continue
            members = [each for each in dir(thing) if not each.startswith("_")]
            lines.append(f"def use_{len(lines)}(thing: {root}.{name}) -> None:  # type: ignore")
            for member in members or ["anything"]:
                lines.append(f"    thing.{member}_x")
                expected.append(len(lines))
    file = tmp_path / "typos.py"
    file.write_text("\n".join(lines) + "\n")
    found = errors_of(file)
    missed = [lines[number - 1].strip() for number in expected if number not in found]
    assert len(expected) > 500
    assert not missed, missed[:20]
