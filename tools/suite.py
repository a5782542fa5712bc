"""Run the checks of the project: `python -m tools.suite test`, or `nightly`, or `lint`.

`test` runs the linters beside the everyday tests; mypy alone takes a minute when it starts cold. `nightly` runs
everything except `make torture`, one step after the other, continues after a failure, and sums up at the end.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("src", "tests", "tools", "examples", "benchmarks")
OTHER_PYTHONS = ("3.12", "3.13")

WORKERS = str((os.cpu_count() or 1) * 3 // 2)
"""More than processors: tests wait for servers, timers and other processes."""

PYTEST = (sys.executable, "-m", "pytest", "-n", WORKERS, "--dist", "worksteal")
LINTERS = (
    (sys.executable, "-m", "ruff", "check", *FOLDERS),
    (sys.executable, "-m", "ruff", "format", "--check", *FOLDERS),
    (str(Path(sys.executable).with_name("lint-imports")), "--no-logo"),
    (sys.executable, "-m", "mypy", *FOLDERS),
)


class Result(NamedTuple):
    """How a step ended."""

    name: str
    passed: bool
    seconds: float


def main(arguments: Sequence[str]) -> int:
    """Run what is named. Returns the exit code."""
    if len(arguments) != 1 or arguments[0] not in COMMANDS:
        sys.exit(f"usage: python -m tools.suite {'|'.join(COMMANDS)}")
    os.chdir(ROOT)
    results = COMMANDS[arguments[0]]()
    for name, passed, seconds in results:
        report(f"{'passed' if passed else 'FAILED'}  {minutes(seconds)}  {name}")
    return 0 if all(each.passed for each in results) else 1


def lint() -> list[Result]:
    """Style, formatting, types and layers."""
    return [timed("lint", run_linters)]


def test() -> list[Result]:
    """The linters beside the everyday tests."""
    with tempfile.TemporaryFile("w+", encoding="utf-8") as output:
        start = time.monotonic()
        linters = subprocess.Popen(
            (sys.executable, "-m", "tools.suite", "lint"),
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # to be stopped with all that it started
        )
        try:
            report("the linters run in the background; what they say follows after the tests")
            tests = timed("tests", partial(run, PYTEST))
            passed = linters.wait() == 0
        finally:
            if linters.poll() is None:
                os.killpg(linters.pid, signal.SIGKILL)
                linters.wait()
        output.seek(0)
        sys.stdout.write(output.read())
    return [tests, Result("tests and linters together", tests.passed and passed, time.monotonic() - start)]


def nightly() -> list[Result]:
    """Everything except the runs that take as long as they are given."""
    every_test = (*PYTEST, "-m", "not torture", "--hypothesis-profile=nightly", "--cov", "--cov-report=term")
    steps: list[tuple[str, Callable[[], bool]]] = [
        ("lint", run_linters),
        ("all tests, with coverage", partial(run, every_test)),
        ("what each store guarantees", partial(run, (sys.executable, "-m", "tools.matrix", "--check"))),
        ("benchmarks", partial(run, (sys.executable, "-m", "benchmarks.run", "--check"))),
    ]
    left_out = ["the long fault and fuzzing runs (make torture)", "macOS and Windows (the workflow runs them)"]
    here = f"{sys.version_info.major}.{sys.version_info.minor}"
    for version in OTHER_PYTHONS:
        if version == here:
            continue
        if python := find_python(version):
            command = ("make", "test", f"PYTHON={python}", f"VENV=build/python{version}")
            steps.append((f"the everyday tests on Python {version}", partial(run, command)))
        else:
            left_out.append(f"Python {version}, which is not installed, or without ensurepip")
    results = [timed(name, step) for name, step in steps]
    for each in left_out:
        report(f"left out: {each}")
    return results


def run_linters() -> bool:
    """Run all of them, also after one has failed."""
    results = [run(command) for command in LINTERS]
    return all(results)


def find_python(version: str) -> str | None:
    """A Python of a version that works: on the path, or among those of pyenv, whose shims may lead nowhere."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    candidates = [shutil.which(f"python{version}"), *map(str, pyenv.glob(f"versions/{version}.*/bin/python"))]
    for python in filter(None, candidates):
        if subprocess.run((python, "-c", "import ensurepip"), capture_output=True, check=False).returncode == 0:
            return python
    return None


def run(command: Sequence[str]) -> bool:
    """Whether a command ended well. It gets the time to sum up when it is interrupted, as this process is."""
    with subprocess.Popen(command) as process:
        try:
            return process.wait() == 0
        except KeyboardInterrupt:
            process.wait()
            raise


def timed(name: str, step: Callable[[], bool]) -> Result:
    """Run a step, and measure it."""
    report(name)
    start = time.monotonic()
    return Result(name, step(), time.monotonic() - start)


def minutes(seconds: float) -> str:
    """Minutes and seconds, as a clock shows them."""
    return f"{int(seconds) // 60:3}:{int(seconds) % 60:02}"


def report(text: str) -> None:
    """Print a line that stands out from the output of the tools."""
    print(f"== {text}", flush=True)


COMMANDS: dict[str, Callable[[], list[Result]]] = {"test": test, "nightly": nightly, "lint": lint}

if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(130)
