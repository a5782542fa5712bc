"""Tests with other processes: several at once, and some that are killed."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from holdfast.backends.conformance.child import WIDTH
from holdfast.backends.conformance.kit import Driven, Stores, Suite, needs
from holdfast.backends.conformance.rows import column
from holdfast.backends.interface import Scan
from holdfast.backends.runtime.drivers import run
from holdfast.backends.tables import LINES, NODES, STEPS

KEYS = 60

KILLED = 1 if sys.platform == "win32" else -signal.SIGKILL
"""The exit code after `Popen.kill`. Windows has no signals."""


class Processes(Suite):
    """For stores that are `shared` and `durable`."""

    @needs("shared")
    def test_of_processes_that_create_one_key_one_wins(self, stores: Stores, plain: Driven) -> None:
        with ExitStack() as stack:
            children = {name: stack.enter_context(start_child(stores, "claim", name, KEYS)) for name in "abc"}
            for child in children.values():
                _send(child, "go")
            keys = {name: [int(line) for line in finish(child)] for name, child in children.items()}
        assert sorted(key for claimed in keys.values() for key in claimed) == list(range(KEYS))
        owners = {key: name for name, claimed in keys.items() for key in claimed}
        assert {row.key[3]: column(STEPS, row, "kind") for row in plain.scan(STEPS)} == owners

    @needs("shared", "fresh")
    def test_what_another_process_was_acknowledged_is_seen(self, stores: Stores, plain: Driven) -> None:
        with start_child(stores, "echo", "other") as child:
            for key in range(30):
                assert _ask(child, str(key)) == str(key)
                (last,) = plain.scan(STEPS, ("claims", "line", 0), reverse=True, limit=1)
                assert last.key[3] == key
            assert finish(child) == []

    @needs("shared")
    def test_writers_in_several_processes_write_all_they_say(self, stores: Stores, plain: Driven) -> None:
        with start_child(stores, "stream", "a", 40, 10) as a, start_child(stores, "stream", "b", 40, 10) as b:
            while a.poll() is None or b.poll() is None:
                _complete_batches(plain)
            assert finish(a) == finish(b) == [str(number) for number in range(40)]
        assert len(_complete_batches(plain)) == 80

    @needs("durable")
    def test_what_a_killed_process_was_acknowledged_is_there_and_whole(self, claimed: Stores) -> None:
        rng = random.Random(7)  # noqa: S311 - moments, not secrets
        expected: set[str] = set()
        for number in range(self.kills):
            writer = f"w{number}"
            with start_child(claimed, "stream", writer, 100_000, rng.choice([1, 50, 5000])) as child:
                reported = _read_lines(child, count=rng.randrange(1, 60))
                time.sleep(rng.random() * 0.003)
                child.kill()
                reported += finish(child, killed=True)
            expected |= {f"{writer}-{int(line):05}" for line in reported}
            store = Driven(run(claimed.open()), run)
            found = _complete_batches(store)
            assert expected <= found, f"acknowledged, and not there: {sorted(expected - found)[:5]}"
            # Of each writer, at most the batch in progress when it died is there without having been reported. A server
            # may commit it late.
            unreported = Counter(name.rpartition("-")[0] for name in found - expected)
            assert max(unreported.values(), default=0) <= 1
            expected = found
            assert run(store.backend.check()) == []
            store.close()


def _complete_batches(store: Driven) -> set[str]:
    """Return the names of the batches that streams have written so far, and check that each is complete."""
    lines: dict[str, list[bytes]] = {}
    for rows in store.read(Scan(NODES, ("stream",)), Scan(LINES, ())):
        for row in rows:
            lines.setdefault(str(row.key[1]), []).append(row.body)
    for line, bodies in lines.items():
        assert len(bodies) == 2 * WIDTH, f"half a batch: {line}"
        assert len(set(bodies)) == 1
        assert bodies[0].startswith(b"%d " % int(line.rpartition("-")[2]))
    return set(lines)


@contextmanager
def start_child(stores: Stores, task: str, *arguments: str | int) -> Iterator[subprocess.Popen[str]]:
    """Start a process that opens the store, and wait until it is ready. It is killed in the end."""
    command = [*stores.command, task, stores.url, json.dumps(stores.options), *map(str, arguments)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as child:  # noqa: S603 - our own
        try:
            assert child.stdout is not None
            reported = child.stdout.readline()
            if reported != "ready\n":
                child.kill()
                _, errors = child.communicate()
                raise AssertionError(f"a process could not open the store: {reported}{errors}")
            yield child
        finally:
            child.kill()


def _send(child: subprocess.Popen[str], line: str) -> None:
    assert child.stdin is not None
    child.stdin.write(line + "\n")
    child.stdin.flush()


def _ask(child: subprocess.Popen[str], line: str) -> str:
    _send(child, line)
    assert child.stdout is not None
    return child.stdout.readline().strip()


def _read_lines(child: subprocess.Popen[str], count: int) -> list[str]:
    assert child.stdout is not None
    return [child.stdout.readline().strip() for _ in range(count)]


def finish(child: subprocess.Popen[str], *, killed: bool = False) -> list[str]:
    """Wait for the end of a process, and return the rest of its output."""
    assert child.stdin is not None
    assert child.stdout is not None
    assert child.stderr is not None
    child.stdin.close()
    # Not communicate(): that would miss what readline() has buffered.
    lines, errors = child.stdout.read(), child.stderr.read()
    child.wait(timeout=60)
    assert child.returncode == (KILLED if killed else 0), errors
    # A killed process may have printed half a line.
    return lines[: lines.rfind("\n") + 1].split()
