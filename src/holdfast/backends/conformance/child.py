"""The program of the suite for other processes: `python -m holdfast.backends.conformance.child TASK URL OPTIONS …`.

A process prints "ready" once the store is open, and then one line for each batch, after it was acknowledged.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TextIO

from holdfast.backends.conformance.rows import row_of
from holdfast.backends.interface import Backend, Create
from holdfast.backends.registry import backend_for
from holdfast.backends.runtime.drivers import run
from holdfast.backends.tables import LINES, NODES, STEPS

WIDTH = 5
"""How many rows a batch of the stream has in each table."""

Open = Callable[[str, dict[str, Any]], Coroutine[Any, Any, Backend]]


async def open_by_url(url: str, options: dict[str, Any]) -> Backend:
    return await backend_for(url).open(url, **options)


def batch(writer: str, number: int, weight: int) -> list[Create]:
    """Return a batch of a stream: rows in two tables, with the number of the batch in their bodies."""
    body = b"%d " % number * weight
    line = f"{writer}-{number:05}"
    nodes = [Create(NODES, row_of(NODES, "stream", line, 0, bytes([n]), body=body)) for n in range(WIDTH)]
    return [*nodes, *(Create(LINES, row_of(LINES, f"stream {n}", line, body=body)) for n in range(WIDTH))]


def claim(key: int, worker: str) -> Create:
    """Return the change by which a worker claims a key."""
    return Create(STEPS, row_of(STEPS, "claims", "line", 0, key, kind=worker))


def main(
    arguments: Sequence[str],
    input_lines: TextIO = sys.stdin,
    report: Callable[[str], object] | None = None,
    *,
    opened: Open = open_by_url,
) -> None:
    """Run the task of the arguments, with a store that `opened` opens."""
    task, url, options, *rest = arguments
    report = report or (lambda line: print(line, flush=True))  # noqa: T201 - this is a program
    run(TASKS[task](run(opened(url, json.loads(options))), rest, input_lines, report))


async def _stream(backend: Backend, rest: list[str], _: TextIO, report: Callable[[str], object]) -> None:
    """Write batch after batch, as fast as possible."""
    writer, count, weight = rest
    report("ready")
    for number in range(int(count)):
        if await backend.apply(batch(writer, number, int(weight))) is not None:
            raise AssertionError("a batch without competing writers was refused")
        report(str(number))
    await backend.close()


async def _claim(backend: Backend, rest: list[str], input_lines: TextIO, report: Callable[[str], object]) -> None:
    """Claim keys after a line of input, and print those that were won."""
    worker, count = rest
    report("ready")
    input_lines.readline()
    for key in range(int(count)):
        if await backend.apply([claim(key, worker)]) is None:
            report(str(key))
    await backend.close()


async def _echo(backend: Backend, rest: list[str], input_lines: TextIO, report: Callable[[str], object]) -> None:
    """Claim each key of the input, and print it."""
    (worker,) = rest
    report("ready")
    for line in input_lines:
        if await backend.apply([claim(int(line), worker)]) is not None:
            raise AssertionError("a key without competing claims was already taken")
        report(line.strip())
    await backend.close()


TASKS: dict[str, Callable[[Backend, list[str], TextIO, Callable[[str], object]], Coroutine[Any, Any, None]]] = {
    "stream": _stream,
    "claim": _claim,
    "echo": _echo,
}

if __name__ == "__main__":
    main(sys.argv[1:])
