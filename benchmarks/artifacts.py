"""Artifacts: how long queries take among many, from an artifact to the changes made with it and from a key back."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import holdfast
from benchmarks.measure import Figure
from holdfast.state.artifacts.api import ArtifactSource

ARTIFACTS = 100_000
_BATCH, _EVERY, _ROUNDS = 2_000, 100, 50


def artifact_queries() -> list[Figure]:
    """Queries among 100,000 artifacts of which every hundredth was used for a change, by a process that just opened."""
    with tempfile.TemporaryDirectory() as directory:
        url = f"sqlite:///{Path(directory) / 'artifacts.db'}?synchronous=normal"
        with holdfast.open(url) as store:
            _fill(store)
        with holdfast.open(url) as store:
            found = store.artifacts
            questions: dict[str, Callable[[int], object]] = {
                "changes of an artifact": lambda n: found.changes(f"a{n * _EVERY:07}"),
                "artifacts of a key": lambda n: found.of(f"agent:agent-{n % 10}", f"key-{n % 5}"),
                "artifacts of a version": lambda n: found.of(f"agent:agent-{n % 10}", f"key-{n % 5}", version=n + 1),
                "artifacts of a scope": lambda n: found.of(f"agent:agent-{n % 10}"),
                "a page of a producer's": lambda n: found.list(producer=f"agent-{n}"),
            }
            took = {name: _timed(ask) for name, ask in questions.items()}
    return [
        Figure(
            f"{ARTIFACTS:,} artifacts: {name}, slowest of {_ROUNDS}",
            max(each),
            "ms",
            ceiling=50,
            note=f"median {statistics.median(each):.2f} ms",
        )
        for name, each in took.items()
    ]


def _fill(store: holdfast.Store) -> None:
    for start in range(0, ARTIFACTS, _BATCH):
        store.artifacts.register_many(
            ArtifactSource(
                f"content {number}".encode(), f"a{number:07}", f"type-{number % 10}", f"agent-{number % 1000}"
            )
            for number in range(start, start + _BATCH)
        )
    for number in range(0, ARTIFACTS, _EVERY):
        with store.artifacts.using(f"a{number:07}"):
            store.state(agent=f"agent-{number // _EVERY % 10}").batch({f"key-{place}": number for place in range(5)})


def _timed(ask: Callable[[int], object]) -> list[float]:
    """How long a question takes, in milliseconds, each time."""
    took = []
    for number in range(_ROUNDS):
        start = time.perf_counter()
        found = ask(number)
        took.append((time.perf_counter() - start) * 1000)
        assert found, number
    return took


CASES = (artifact_queries,)
