"""Scripts: what a call costs, how long a sandbox takes to start, and many of them side by side."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import holdfast
from benchmarks.measure import Figure, Job, turns
from holdfast.interfaces.scripting.process import Language
from holdfast.scripts import Sandbox

_CALLS, _ROUNDS, _STARTS, _MANY = 100, 20, 15, 50
_LANGUAGES: tuple[Language, ...] = ("lua", "javascript")

_GET = {
    "lua": "local s = store:state('agent:a') for i = 1, args.n do s:get('key') end",
    "javascript": "const s = store.state('agent:a'); for (let i = 0; i < args.n; i++) await s.get('key')",
}
_SET = {
    "lua": "local s = store:state('agent:a') for i = 1, args.n do s:set('key', {n = i}) end",
    "javascript": "const s = store.state('agent:a'); for (let i = 0; i < args.n; i++) await s.set('key', {n: i})",
}


def script_calls() -> list[Figure]:
    """Calls of scripts on a store in memory, and what they add to the same calls of Python. The limit is 5 ms."""
    figures = []
    with holdfast.open("memory://") as store, ExitStack() as stack:
        state = store.state("agent:a")
        state["key"] = {"n": 0}
        sandboxes = [stack.enter_context(Sandbox(language, store, timeout=300)) for language in _LANGUAGES]
        for what, sources, python in (
            ("get", _GET, lambda: state.get("key")),
            ("set", _SET, lambda: state.set("key", {"n": 1})),
        ):
            jobs: dict[str, Job] = {"python": partial(_repeat, python)}
            for each in sandboxes:
                jobs[each.language] = partial(each.run, sources[each.language], args={"n": _CALLS})
            best = _best(jobs)
            for language in _LANGUAGES:
                added = best[language] - best["python"]
                note = f"{best[language]:.3f} ms, and {best['python']:.3f} ms in Python"
                name = f"scripts: what {language} adds to state.{what}"
                figures.append(Figure(name, added, "ms", ceiling=5, goal=0.2, note=note))
    return figures


def _repeat(call: Job) -> None:
    for _ in range(_CALLS):
        call()


def _best(jobs: Mapping[str, Job]) -> dict[str, float]:
    """Milliseconds of a call, of the round that was disturbed least: two processes wait for each other, and for
    everything else that runs."""
    times: dict[str, list[float]] = {name: [] for name in jobs}
    for job in jobs.values():
        job()  # what the first calls load
    for name in turns(jobs, _ROUNDS):
        start = time.perf_counter()
        jobs[name]()
        times[name].append((time.perf_counter() - start) * 1000 / _CALLS)
    return {name: min(each) for name, each in times.items()}


def script_sandboxes() -> list[Figure]:
    """Starting a sandbox, with a first result; and fifty of them at once, each of which calls the store."""
    figures = []
    with holdfast.open("memory://") as store:
        for language in _LANGUAGES:
            times = [_start(language, store) for _ in range(_STARTS)]
            figures.append(
                Figure(f"scripts: start of a sandbox, {language}", statistics.median(times), "ms", ceiling=100)
            )
        start = time.perf_counter()
        made = [Sandbox(_LANGUAGES[number % 2], store, timeout=300) for number in range(_MANY)]
        with ThreadPoolExecutor(_MANY) as threads:
            list(threads.map(lambda each: each.run(_GET[each.language], args={"n": 20}), made))
        elapsed = time.perf_counter() - start
        memory = statistics.mean(_memory(each.pid) for each in made)
        for each in made:
            each.close()
    figures.append(Figure(f"scripts: {_MANY} sandboxes side by side, 20 calls each", elapsed, "s", ceiling=20))
    figures.append(Figure("scripts: memory of a sandbox", memory, "MB", ceiling=40))
    return figures


def _start(language: Language, store: holdfast.Store) -> float:
    start = time.perf_counter()
    with Sandbox(language, store) as sandbox:
        sandbox.run("return 1")
        return (time.perf_counter() - start) * 1000


def _memory(pid: int) -> float:
    """The megabytes that a process has of its own."""
    rollup = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii")
    private = [int(line.split()[1]) for line in rollup.splitlines() if line.startswith("Private")]
    return sum(private) / 1000


CASES = (script_calls, script_sandboxes)
