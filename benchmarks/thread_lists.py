"""Lists of many threads: the CPU time of a page, by metadata and by last update.

    python -m benchmarks.thread_lists [--threads 20000] [--url sqlite:////tmp/threads.db]

Fills a store with threads of 200 users in five teams, and asks for pages of 100 threads. A store that is there already
is not filled again.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import holdfast
from benchmarks.measure import Figure, Result

THREADS = 20_000
USERS, TEAMS = 200, 5
ROUNDS = 7
GOAL = 20
"""How many milliseconds of CPU a page is meant to take."""

_ROOM = 1.5
"""How much more a page may take on a busy machine."""

_LISTS: dict[str, dict[str, Any]] = {
    "by name": {},
    "of a user": {"where": "meta.user=u7"},
    "of a team": {"where": "meta.team=t3"},
    "of a user in a team": {"where": "meta.user=u8 meta.team=t3"},
    "of two users": {"where": "meta.user=u8 OR meta.user=u9"},
    "last updated": {"order": "updated"},
    "last updated of a user": {"order": "updated", "where": "meta.user=u7"},
    "last updated of a team": {"order": "updated", "where": "meta.team=t3"},
}


def fill(store: holdfast.Store, threads: int) -> None:
    """Save a checkpoint in each thread, in another order than that of the names."""
    for number in range(threads):
        metadata = {"user": f"u{number % USERS}", "team": f"t{number % TEAMS}"}
        store.thread(f"chat-{number * 7919 % threads:06}").put({"n": number}, metadata=metadata)


def least_cpu(work: Callable[[], object], rounds: int = ROUNDS) -> float:
    """Return the least milliseconds of CPU of some rounds."""
    took = []
    for _ in range(rounds):
        start = time.process_time()
        work()
        took.append((time.process_time() - start) * 1000)
    return min(took)


def listed(store: holdfast.Store, threads: int) -> Iterator[Figure]:
    """Measure a page of each list."""
    if not store.threads(limit=1):
        fill(store, threads)
    for name, options in _LISTS.items():
        page = store.threads(**options)
        value = least_cpu(lambda options=options: store.threads(**options))  # type: ignore[misc]
        note = f"{len(page)} threads"
        yield Figure(f"list of {threads:,} threads: {name}", value, "ms CPU", None, GOAL * _ROOM, note, GOAL)


def listing_many_threads() -> Result:
    """A page of 100 of 20,000 threads, by metadata and by last update, on SQLite"""
    with tempfile.TemporaryDirectory() as folder, holdfast.open(f"sqlite:///{Path(folder)}/threads.db") as store:
        return Result(list(listed(store, THREADS)))


CASES = (listing_many_threads,)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=THREADS)
    parser.add_argument("--url", default="")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        url = options.url or f"sqlite:///{Path(folder)}/threads.db"
        with holdfast.open(url) as store:
            for figure in listed(store, options.threads):
                print(f"{figure.name:50} {figure.value:8.1f} {figure.unit} ({figure.note})")


if __name__ == "__main__":
    main()
