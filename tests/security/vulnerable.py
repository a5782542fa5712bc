"""Releases of others that are open to the attacks, each in an environment of its own.

They are installed from the package index that this machine is set up for, into a folder of the tests, and run only
there. `run_attack` runs a program in such an environment, with the payload of the attack.
"""

from __future__ import annotations

import atexit
import functools
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

_PROGRAM = """
import json, sys, warnings
warnings.simplefilter("ignore")
payload = json.load(sys.stdin)
{program}
"""


def _folder() -> Path:
    """Return a folder that is removed when the tests end."""
    folder = Path(tempfile.mkdtemp(prefix="vulnerable-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


@functools.cache
def environment(*requirements: str) -> Path:
    """Return the Python of an environment with these requirements."""
    folder = _folder()
    python = folder / "bin" / "python"
    for command in (
        [sys.executable, "-m", "uv", "venv", "--quiet", "--python", sys.executable, str(folder)],
        [sys.executable, "-m", "uv", "pip", "install", "--quiet", "--python", str(python), *requirements],
    ):
        done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
        if done.returncode:
            pytest.fail(f"the vulnerable release cannot be installed: {done.stderr[-500:]}")
    return python


def run_attack(requirements: tuple[str, ...], program: str, payload: Any) -> list[str]:
    """Run a program in an environment; return the lines that it prints. `payload` is what it has as JSON."""
    python = environment(*requirements)
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "LANGGRAPH_"))}
    done = subprocess.run(
        [str(python), "-c", _PROGRAM.format(program=program)],
        input=json.dumps(payload),
        capture_output=True,
        text=True,
        timeout=120,
        env=clean,
        check=False,
    )
    assert not done.returncode, done.stderr
    return done.stdout.splitlines()


@functools.cache
def node_modules(*packages: str) -> Path:
    """Return a folder with packages of Node.js installed."""
    npm = shutil.which("npm")
    if npm is None or shutil.which("node") is None:
        pytest.skip("Node.js is not installed: the attack on a release for it cannot be shown")
    folder = _folder()
    command = [npm, "install", "--no-audit", "--no-fund", "--ignore-scripts", "--omit=dev", *packages]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=600, check=False)
    if done.returncode:
        pytest.fail(f"the vulnerable release cannot be installed: {done.stderr[-500:]}")
    return folder


def run_node(packages: tuple[str, ...], program: str, payload: Any) -> list[str]:
    """Run a module of JavaScript, with the payload in `PAYLOAD`; return the lines that it prints."""
    folder = node_modules(*packages)
    (folder / "attack.mjs").write_text(program, encoding="utf-8")
    done = subprocess.run(
        ["node", "attack.mjs"],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "PAYLOAD": json.dumps(payload)},
        check=False,
    )
    assert not done.returncode, done.stderr
    return done.stdout.splitlines()
