"""The processor time of single calls, beside that of the last commit on main, so that it does not grow unnoticed.

Both are measured by this module, in processes that take turns: each with the package of its own commit. A process
repeats every call, and reports the lower quartile in microseconds. Stores are files in memory, where the system has
such a folder: flushing would hide what a call costs.

It also counts the functions of Python that a call runs, each time that a coroutine goes on included: on a machine that
does other work, the times of two commits cannot be told apart, and these numbers can.
"""

from __future__ import annotations

import io
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from benchmarks.measure import Figure, Result, Table, missing, turns

IN_MEMORY = pathlib.Path("/dev/shm") if pathlib.Path("/dev/shm").is_dir() else None
_ROOT = pathlib.Path(__file__).resolve().parents[1]
_ROUNDS = 5
_REPEATS = 150
_CEILING = 1.25
"""How many times the CPU of the last commit a call may take: less would be noise."""


def calls_beside_main() -> Result:
    """CPU of ten calls, beside the last commit on main"""
    with tempfile.TemporaryDirectory() as folder:
        try:
            commit = _unpack_main(pathlib.Path(folder))
        except (OSError, subprocess.CalledProcessError) as error:
            return Result([missing("calls: CPU, this tree / the last commit on main", f"no such commit: {error}")])
        sources = {"now": _ROOT / "src", "before": pathlib.Path(folder) / "src"}
        taken: dict[str, list[dict[str, tuple[float, float]]]] = {name: [] for name in sources}
        for name in turns(sources, _ROUNDS):
            taken[name].append(_measure_apart(sources[name]))
    best = {name: {call: min(run[call][0] for run in runs) for call in runs[0]} for name, runs in taken.items()}
    functions = {name: {call: count for call, (_, count) in runs[0].items()} for name, runs in taken.items()}
    calls = [call for call in best["now"] if call in best["before"]]
    ratios = {call: best["now"][call] / best["before"][call] for call in calls}
    rows = [
        (call, [f"{each[call]:.0f}" for each in (*best.values(), *functions.values())] + [f"{ratio:.2f}"])
        for call, ratio in ratios.items()
    ]
    worst = max(ratios, key=ratios.__getitem__)
    figure = Figure(
        "calls: CPU, this tree / the last commit on main", ratios[worst], "x", ceiling=_CEILING, note=f"worst: {worst}"
    )
    columns = ["now", "before", "functions", "before", "CPU, now / before"]
    return Result([figure], tables=[Table(f"CPU of calls in µs, and functions, beside {commit}", columns, rows)])


def _unpack_main(folder: pathlib.Path) -> str:
    """Write the sources of the last commit on main into a folder: of the one before, if this is it, unchanged."""

    def git(*arguments: str) -> bytes:
        return subprocess.run(["git", *arguments], cwd=_ROOT, capture_output=True, check=True).stdout

    changed = git("status", "--porcelain", "--", "src").strip() or git("diff", "main", "HEAD", "--", "src")
    commit = git("rev-parse", "--short", "main" if changed else "main~1").decode().strip()
    with tarfile.open(fileobj=io.BytesIO(git("archive", commit, "src"))) as archive:
        archive.extractall(folder, filter="data")
    return commit


def _measure_apart(source: pathlib.Path) -> dict[str, tuple[float, float]]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(source), str(_ROOT)))}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    ran = subprocess.run(
        [sys.executable, "-m", "benchmarks.call_costs"],
        cwd=_ROOT,
        env=environment,
        capture_output=True,
        check=True,
        text=True,
    )
    found: dict[str, tuple[float, float]] = json.loads(ran.stdout)
    return found


# The calls ----------------------------------------------------------------------------------------------------


def _timed(job: Callable[[], Any]) -> tuple[Any, float]:
    """Return the result of a call, and its CPU in microseconds."""
    start = time.thread_time_ns()
    result = job()
    return result, (time.thread_time_ns() - start) / 1000


def _counted(job: Callable[[], Any]) -> tuple[Any, int]:
    """Return the result of a call, and how many functions of Python it ran."""
    count = 0

    def note(_frame: object, event: str, _argument: object) -> None:
        nonlocal count
        count += event == "call"

    sys.setprofile(note)
    try:
        return job(), count
    finally:
        sys.setprofile(None)


def _message(number: int) -> Any:
    from langchain_core.messages import HumanMessage

    return HumanMessage(f"message {number} of this chat, with some words", id=f"{number}")


class Chat:
    """A thread of a saver that has some messages, and gets one more with every put."""

    def __init__(self, saver: Any, name: str, count: int) -> None:
        self._saver = saver
        self._messages = list(map(_message, range(count)))
        self._config: dict[str, Any] = {"configurable": {"thread_id": name, "checkpoint_ns": ""}}
        self._latest = self._config
        self._step = 0
        self.spent: dict[str, list[float]] = {"put": [], "put_writes": [], "get_tuple": []}
        for _ in range(8):
            self.turn()
        for each in self.spent.values():
            each.clear()

    def functions(self) -> dict[str, float]:
        """Return how many functions of Python each call of a turn runs."""
        self.turn(_counted)
        return {call: spent.pop() for call, spent in self.spent.items()}

    def _run(self, measure: Callable[[Callable[[], Any]], tuple[Any, float]], call: str, job: Callable[[], Any]) -> Any:
        result, measured = measure(job)
        self.spent[call].append(measured)
        return result

    def turn(self, measure: Callable[[Callable[[], Any]], tuple[Any, float]] = _timed) -> None:
        """Read the latest checkpoint, save the next one, and what a task wrote after it."""
        from langgraph.checkpoint.base import empty_checkpoint

        self._step += 1
        message = _message(len(self._messages))
        kept = self._run(measure, "get_tuple", lambda: self._saver.get_tuple(self._config))
        held = self._messages if kept is None else kept.checkpoint["channel_values"]["messages"]
        self._messages = [*held[-len(self._messages) + 1 :], message] if self._step % 2 else [*held, message]
        checkpoint = empty_checkpoint()
        checkpoint["channel_values"] = {"messages": self._messages}
        checkpoint["channel_versions"] = {"messages": self._step}
        metadata = {"source": "loop", "step": self._step, "parents": {}}
        before, versions = self._latest, {"messages": self._step}
        self._latest = self._run(measure, "put", lambda: self._saver.put(before, checkpoint, metadata, versions))
        latest, writes = self._latest, [("messages", [message]), ("branch:to:a", None)]
        self._run(measure, "put_writes", lambda: self._saver.put_writes(latest, writes, f"{self._step}"))


def _repeat(job: Callable[[int], object], repeats: int = _REPEATS) -> tuple[float, float]:
    """The CPU of a call, by the number of which it is, and how many functions it runs."""
    spent = [_timed(partial(job, number))[1] for number in range(repeats + 20)]
    return quartile(spent[20:]), _counted(partial(job, repeats + 20))[1]


def quartile(spent: list[float]) -> float:
    """The lower quartile: what disturbs a call makes it slower, never faster."""
    return statistics.quantiles(spent, n=4)[0]


def _charge(order: int, idempotency_key: str) -> dict[str, Any]:
    return {"order": order, "by": idempotency_key}


def measure_calls(folder: str) -> dict[str, tuple[float, float]]:
    """The CPU of each call in microseconds, and how many functions of Python it runs. A call that a commit does not
    have yet is left out."""
    import holdfast
    from holdfast.agents import PersistentAgent
    from holdfast.langgraph import HoldfastSaver

    class Desk(PersistentAgent, name="benchmark-desk"):
        """An agent that does nothing but durable steps."""

    found: dict[str, tuple[float, float]] = {}
    with holdfast.open(f"{folder}/calls.db") as store:
        saver = HoldfastSaver(store)
        for count in (20, 300):
            chat = Chat(saver, f"{count} messages", count)
            for _ in range(_REPEATS // (1 if count < 100 else 3)):
                chat.turn()
            functions = chat.functions()
            for call, spent in chat.spent.items():
                if count < 100 or call == "get_tuple":
                    found[f"{call}, {count} messages"] = quartile(spent), functions[call]
        thread, state = store.thread("one key"), store.state(agent="researcher")
        found["put of one key"] = _repeat(lambda number: thread.put({"n": number}))
        found["get of one key"] = _repeat(lambda _: thread.get())
        found["set in a scope"] = _repeat(lambda number: state.set("plan", number))
        found["get in a scope"] = _repeat(lambda _: state.get("plan"))
        talk: Any = store.thread("talk")
        if hasattr(talk, "append"):
            talk.put({"messages": []})
            found["append to a thread"] = _repeat(
                lambda number: talk.append("messages", {"role": "user", "content": f"message {number}"})
            )
        desk = Desk().attach(store, "desk")
        desk.start()
        found["durable step"] = _repeat(lambda number: desk.once(f"charge-{number}", _charge, number), _REPEATS // 3)

    def open_and_close(_: int) -> None:
        holdfast.open(f"{folder}/calls.db").close()

    found["open and close"] = _repeat(open_and_close, _REPEATS // 3)
    return found


CASES = (calls_beside_main,)

if __name__ == "__main__":
    with tempfile.TemporaryDirectory(dir=IN_MEMORY) as place:
        print(json.dumps(measure_calls(place)))
