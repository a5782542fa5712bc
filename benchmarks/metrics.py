"""What metrics cost: saves with and without them, in turns, by processor time. `python -m benchmarks.metrics`."""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from msgspec.structs import force_setattr

import holdfast
from holdfast.backends.runtime.metrics import MetricsRegistry

_TURNS, _SAVES = 40, 100


class _Off(MetricsRegistry):
    """A registry that measures nothing."""

    def observe(self, family: str, value: float, *labels: str) -> None:
        pass

    def observe_request(self, request: str, seconds: float, size: int) -> None:
        pass

    def end_operation(self, operation: str, start: float, error: BaseException | None = None) -> None:
        pass


def _turn(store: holdfast.Store, name: str) -> float:
    thread, messages = store.thread(name), list[dict[str, Any]]()
    start = time.process_time()
    for n in range(_SAVES):
        messages.append({"role": "user", "content": f"message {n}"})
        thread.put({"messages": messages, "n": n})
    return time.process_time() - start


def measure(directory: Path) -> tuple[float, float]:
    """Return the seconds of processor time of a save without metrics, and the median ratio of those with them."""
    with holdfast.open(directory / "on.db") as on, holdfast.open(directory / "off.db") as off:
        context = off._handle.engine.context
        registry = _Off()
        force_setattr(context, "metrics", registry)
        context.backend.metrics = registry  # type: ignore[attr-defined] # a CheckedBackend
        _turn(on, "warm")
        _turn(off, "warm")
        ratios, times = [], []
        for turn in range(_TURNS):
            first, second = (on, off) if turn % 2 else (off, on)
            taken = {first: _turn(first, f"t{turn}"), second: _turn(second, f"t{turn}")}
            ratios.append(taken[on] / taken[off])
            times.append(taken[off] / _SAVES)
    return statistics.median(times), statistics.median(ratios)


def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        seconds, ratio = measure(Path(directory))
    sys.stdout.write(f"a save without metrics: {seconds * 1e6:.0f} µs of processor time; with: {ratio:.3f} of that\n")


if __name__ == "__main__":
    main()
