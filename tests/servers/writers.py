"""Threads that save checkpoints while something goes wrong, and what must hold afterwards."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import holdfast
from holdfast.errors import NotFoundError, OutcomeUnknownError, TransientError

SHARED = "shared"
_PATIENCE = 200.0

Saved = tuple[str, str, int]
"""A thread of the store, a writer and its number."""


class Writers:
    """Threads that save to a thread of their own and to one that they share."""

    def __init__(self, store: holdfast.Store, count: int = 4) -> None:
        self.store = store
        self.acknowledged: list[Saved] = []
        self.failed: dict[Saved, Exception] = {}
        self.slowest = 0.0
        """How many seconds the longest call took."""
        self._stopping = threading.Event()
        self._names = [f"writer {number}" for number in range(count)]
        self._numbers = dict.fromkeys(self._names, 0)

    @contextmanager
    def at_work(self, at_least: int = 3) -> Iterator[None]:
        """Save while the block runs, and until each writer has saved so often after it."""
        threads = [threading.Thread(target=self._work, args=(name, at_least)) for name in self._names]
        self._stopping.clear()
        before = len(self.acknowledged)
        for thread in threads:
            thread.start()
        try:
            self.wait_for(before + len(threads))
            yield
        finally:
            self._stopping.set()
            for thread in threads:
                thread.join()

    def wait_for(self, count: int) -> None:
        """Until so many were saved, or one failed."""
        deadline = time.monotonic() + _PATIENCE
        while len(self.acknowledged) < count and not self.failed:
            assert time.monotonic() < deadline, "the writers make no headway"
            time.sleep(0.005)

    def wait_for_failures(self, count: int) -> None:
        """Until so many failed."""
        deadline = time.monotonic() + _PATIENCE
        while len(self.failed) < count:
            assert time.monotonic() < deadline, "no writer noticed"
            time.sleep(0.005)

    def check(self, url: str) -> None:
        """What was acknowledged is there, once; what failed for sure is not; nothing is there twice."""
        self._check(self.store)
        with holdfast.open(url) as anew:  # knows nothing but what is stored
            self._check(anew)
            findings = anew.maintenance.verify().findings
            assert not findings, findings

    def _work(self, name: str, at_least: int) -> None:
        left = at_least
        while left:
            left -= self._stopping.is_set()
            number = self._numbers[name] = self._numbers[name] + 1
            for thread in (name, SHARED):
                saved = (thread, name, number)
                begun = time.monotonic()
                try:
                    self.store.thread(thread).put(_state(name, number), metadata={"by": name, "number": number})
                except Exception as error:  # looked at by the test
                    self.failed[saved] = error
                else:
                    self.acknowledged.append(saved)
                self.slowest = max(self.slowest, time.monotonic() - begun)

    def _check(self, store: holdfast.Store) -> None:
        found: Counter[Saved] = Counter()
        for thread in (*self._names, SHARED):
            try:
                log = list(store.thread(thread).log().all())
            except NotFoundError:
                continue
            found.update((thread, each.metadata["by"], each.metadata["number"]) for each in log)
            newest = store.thread(thread).get(log[0].id)
            assert newest.state == _state(newest.metadata["by"], newest.metadata["number"])
        assert [each for each, times in found.items() if times > 1] == [], "saved twice"
        assert [each for each in self.acknowledged if each not in found] == [], "acknowledged and lost"
        for each, error in self.failed.items():
            assert isinstance(error, TransientError), f"{each}: {error!r}"
            if not isinstance(error, OutcomeUnknownError):
                assert each not in found, f"made, and yet: {error}"


def _state(by: str, number: int) -> dict[str, object]:
    return {"messages": [f"{by} says {n}" for n in range(max(0, number - 20), number)], "by": by, "number": number}
