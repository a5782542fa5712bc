"""`import holdfast` is cheap: under 100 ms, and none of the heavy libraries come along."""

import json
import os
import subprocess
import sys
import time

import pytest

LIMIT_SECONDS = 0.1
ROUNDS = 7
HEAVY = ("asyncio", "attr", "langchain_core", "langgraph", "numpy", "pandas", "pydantic")


def run(code: str) -> str:
    """Run code in a new interpreter that measures no coverage."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("COV_", "COVERAGE_"))}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def seconds(code: str) -> float:
    """How long an interpreter takes to start, run code and end."""
    started = time.perf_counter()
    run(code)
    return time.perf_counter() - started


def test_import_takes_less_than_100_ms() -> None:
    run("import holdfast")  # compiles the byte code once
    # Turn about, so that a slow moment of the machine hits both; the best of each counts.
    pairs = [(seconds("pass"), seconds("import holdfast")) for _ in range(ROUNDS)]
    bare = min(pair[0] for pair in pairs)
    with_holdfast = min(pair[1] for pair in pairs)
    assert with_holdfast - bare < LIMIT_SECONDS


@pytest.mark.parametrize("module", ["holdfast", "holdfast.codec", "holdfast.model"])
def test_import_loads_nothing_heavy(module: str) -> None:
    # What the interpreter loads by itself (.pth files of the environment) is not ours.
    code = (
        "import json, sys; before = set(sys.modules);"
        f"import {module};"
        "print(json.dumps(sorted(set(sys.modules) - before)))"
    )
    loaded = set(json.loads(run(code)))
    assert module in loaded
    assert loaded.isdisjoint(HEAVY)
