"""Many asyncio sessions on one PostgreSQL server, through a small pool: failures, fairness, memory of each.

    python -m benchmarks.sessions [--sessions 10000] [--pool 20] [--turns 4] [--timeout 600]

All wait for their turn in one process. A call that waits for longer than the store's `timeout` fails, as if the server
could not be reached: so that is long here, and `slowest` says how long it has to be.

Each session is a task with a thread of its own that saves and reads in turns, all of them at once. It is fair if nobody
is far behind when the first one has finished.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import re
import time
from pathlib import Path
from typing import NamedTuple

import holdfast


class Sessions(NamedTuple):
    """What many sessions at a time took."""

    sessions: int
    turns: int
    failures: int
    """Calls that raised, or that read another state than was saved."""
    problem: str
    """What the first of them raised."""
    behind: int
    """How many turns the last session had not finished when the first one had finished all."""
    slowest: float
    """The longest turn, in seconds; and a typical one."""
    typical: float
    cpu: float
    """Milliseconds of CPU of this process for each turn."""
    memory: float
    """Kilobytes that the process grew by for each session."""


def _resident() -> int:
    found = re.search(r"VmRSS:\s*(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1])


async def run_sessions(url: str, sessions: int, pool: int, turns: int, timeout: float = 600) -> Sessions:
    """Let sessions save and read in turns, all at once."""
    finished = [0] * sessions
    behind: list[int] = []
    took: list[float] = []
    failures = 0
    problem = ""
    peak = 0

    async with holdfast.aopen(url, pool_size=pool, timeout=timeout) as store:
        await store.thread("first").put({"n": 0})  # opens connections, fills caches
        gc.collect()
        before = _resident()
        begin = asyncio.Event()

        async def session(number: int) -> None:
            nonlocal failures, problem, peak
            await begin.wait()
            thread = store.thread(f"session-{number}")
            for turn in range(turns):
                state = {"turn": turn, "messages": [f"message {each} of {number}" for each in range(turn + 1)]}
                start = time.perf_counter()
                try:
                    await thread.put(state)
                    failures += (await thread.get()).state != state
                except holdfast.errors.HoldfastError as error:
                    failures += 1
                    problem = problem or f"{type(error).__name__} after {time.perf_counter() - start:.0f} s: {error}"
                took.append(time.perf_counter() - start)
                finished[number] += 1
                if len(took) % 1000 == 0:
                    peak = max(peak, _resident())
            if not behind:
                behind.append(turns - min(finished))

        tasks = [asyncio.create_task(session(number)) for number in range(sessions)]
        cpu = time.process_time()
        begin.set()
        await asyncio.gather(*tasks)
        cpu = time.process_time() - cpu
        peak = max(peak, _resident())
    took.sort()
    done = sessions * turns
    return Sessions(
        sessions,
        turns,
        failures,
        problem,
        behind[0],
        took[-1],
        took[len(took) // 2],
        cpu * 1000 / done,
        (peak - before) / sessions,
    )


def main() -> None:
    from benchmarks import servers  # they are of the tests, and need their libraries

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sessions", type=int, default=10_000)
    parser.add_argument("--pool", type=int, default=20)
    parser.add_argument("--turns", type=int, default=4)
    parser.add_argument("--timeout", type=float, default=600, help="how many seconds a call waits at most")
    options = parser.parse_args()
    from holdfast.backends.postgres import setup

    url = servers.postgres().url
    setup(url)
    found = asyncio.run(run_sessions(url, options.sessions, options.pool, options.turns, options.timeout))
    for name, value in found._asdict().items():
        print(f"{name:10} {value:,.2f}" if isinstance(value, float) else f"{name:10} {value}")


if __name__ == "__main__":
    main()
