"""Tests that take too long."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

TESTS = """
import threading

import pytest
from hypothesis import given, strategies as st

wait = threading.Event().wait

@pytest.mark.time_limit(0.3)
def test_waits():
    threading.Thread(target=wait_beside, daemon=True).start()
    try:
        wait()
    except Exception:
        pass

def wait_beside():
    wait()

@pytest.mark.time_limit(0.3)
@given(st.integers())
def test_waits_with_an_example(number):
    wait()

def test_ends():
    pass

@pytest.fixture
def slow():
    wait()

def test_waits_in_a_fixture(slow):
    pass
"""

UNHEARD = """
import signal, threading
from tests.support.time_limit import ended

def test_does_not_hear():
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGALRM])
    with ended(0.3):
        threading.Event().wait()
"""


def run_tests(folder: Path, text: str) -> subprocess.CompletedProcess[str]:
    """Run tests in a process of their own, with a limit of half a second."""
    (folder / "test_limit.py").write_text(text)
    (folder / "pytest.ini").write_text("[pytest]\nmarkers = time_limit: seconds\n")
    without = ("-p", "no:langsmith_plugin", "-p", "no:schemathesis")  # which take longer to start than all else
    options = ("-q", "-p", "tests.support.time_limit", *without, "--time-limit=0.5")
    command = (sys.executable, "-m", "pytest", *options, str(folder))
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=60)


def test_a_test_that_takes_too_long_is_stopped_and_named_with_the_stacks_of_its_threads(tmp_path: Path) -> None:
    done = run_tests(tmp_path, TESTS)
    assert "2 failed, 1 passed, 1 error" in done.stdout, done.stdout + done.stderr
    assert "test_limit.py::test_waits took longer than 0.3 s. Its threads:" in done.stdout
    assert "in wait_beside" in done.stdout
    assert "test_limit.py::test_waits_in_a_fixture took longer than 0.5 s" in done.stdout


@pytest.mark.nightly
@pytest.mark.skipif(sys.platform == "win32", reason="no signals to block")
def test_a_process_that_does_not_react_is_ended_with_its_stacks(tmp_path: Path) -> None:
    done = run_tests(tmp_path, UNHEARD)
    assert done.returncode == 1
    assert "Timeout" in done.stderr
    assert "in test_does_not_hear" in done.stderr
