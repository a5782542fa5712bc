"""Identities of processes: whether one has ended is known on its machine, even if another process has its number."""

from __future__ import annotations

import subprocess
import sys

import pytest

from holdfast.backends.runtime.process_identity import has_ended, process_identity

SAY = """
from holdfast.backends.runtime.process_identity import process_identity

print(process_identity(), flush=True)
input()
"""

pytestmark = pytest.mark.skipif(not process_identity(), reason="the system does not say when a process was started")


def test_a_process_has_ended_when_it_was_killed() -> None:
    with subprocess.Popen([sys.executable, "-c", SAY], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as one:
        assert one.stdout is not None
        identity = one.stdout.readline().strip()
        assert has_ended(identity) is False
        one.kill()
        one.wait()
        assert has_ended(identity) is True


def test_another_process_with_its_number_is_not_it() -> None:
    boot, namespace, number, started = process_identity().split(" ")
    assert has_ended(f"{boot} {namespace} {number} {started}") is False
    assert has_ended(f"{boot} {namespace} {number} {int(started) - 1}") is True


@pytest.mark.parametrize("identity", ["", "elsewhere", "boot pid:[1] 1 1"])
def test_of_a_process_on_another_machine_it_is_not_known(identity: str) -> None:
    assert has_ended(identity) is None
