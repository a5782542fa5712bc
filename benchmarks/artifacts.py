"""Artifacts: how long queries take among many, from an artifact to the changes made with it and from a key back.

    python -m benchmarks.artifacts [--artifacts 100000] [--url sqlite:////tmp/artifacts.db]

Registers artifacts of a few bytes, 1,000 at a time, and has every hundredth be used for a change. Then it asks, and
prints how long each question takes: the median, and the slowest, of many; the first of all by a process that has just
opened the store.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import holdfast
from holdfast.state.artifacts import Source

BATCH, EVERY, ROUNDS = 1_000, 100, 50


def build(store: holdfast.Store, count: int) -> None:
    """Fill a store."""
    for start in range(0, count, BATCH):
        store.artifacts.register_many(
            Source(f"content {number}".encode(), f"a{number:07}", f"type-{number % 10}", f"agent-{number % 1000}")
            for number in range(start, min(start + BATCH, count))
        )
    for number in range(0, count, EVERY):
        with store.artifacts.using(f"a{number:07}"):
            store.state(agent=f"agent-{number // EVERY % 10}").batch({f"key-{place}": number for place in range(5)})


def timed(ask: Callable[[int], object]) -> list[float]:
    """How long a question takes, in milliseconds, each time."""
    took = []
    for number in range(ROUNDS):
        start = time.perf_counter()
        ask(number)
        took.append((time.perf_counter() - start) * 1000)
    return took


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--artifacts", type=int, default=100_000)
    parser.add_argument("--url", default="")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        url = options.url or f"sqlite:///{Path(directory) / 'artifacts.db'}"
        with holdfast.open(url) as store:
            start = time.perf_counter()
            build(store, options.artifacts)
            print(f"{options.artifacts:,} artifacts in {time.perf_counter() - start:.0f} s")
        with holdfast.open(url) as store:
            found = store.artifacts
            questions: dict[str, Callable[[int], object]] = {
                "changes of an artifact": lambda n: found.changes(f"a{n * EVERY % options.artifacts:07}"),
                "artifacts of a key": lambda n: found.of(f"agent:agent-{n % 10}", f"key-{n % 5}"),
                "artifacts of a version": lambda n: found.of(f"agent:agent-{n % 10}", f"key-{n % 5}", version=n + 1),
                "artifacts of a scope": lambda n: found.of(f"agent:agent-{n % 10}"),
                "an artifact": lambda n: found.get(f"a{n * 7919 % options.artifacts:07}"),
                "a page of a producer's": lambda n: found.list(producer=f"agent-{n}"),
                "registering one": lambda n: found.register(f"another {n}".encode()),
            }
            for name, ask in questions.items():
                took = timed(ask)
                print(
                    f"{name:24} first {took[0]:7.2f} ms  median {statistics.median(took):7.2f}  most {max(took):7.2f}"
                )


if __name__ == "__main__":
    main()
