"""What a thread takes by the size and the number of its messages: the table and the plot of the guide on sizing.

    python -m benchmarks.sizing

Writes both into `docs/guides`. Bytes do not depend on the load of the machine; CPU time hardly does.
"""

from __future__ import annotations

import pathlib
import re
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import holdfast
from benchmarks.langgraph_prose import prose

_GUIDE = pathlib.Path(__file__).resolve().parents[1] / "docs" / "guides" / "sizing.md"
_PLOT = _GUIDE.with_suffix(".svg")
_SIZES = (200, 1000, 4000, 16000)
_STEPS = (50, 200, 800)
_THREADS = 1000
_TABLE = re.compile(r"(?<=<!-- measured -->\n\n).*?(?=\n\n<!-- end -->)", re.DOTALL)


class Measured(NamedTuple):
    """A chat in which each step appends a message."""

    size: int
    steps: int
    disk: int
    """Bytes of the file, without those of an empty store."""
    append: float
    """Milliseconds of CPU, the median."""
    read: float
    """Milliseconds of CPU, at the end, the median."""


def empty_store() -> tuple[int, float]:
    """The bytes of a store with nothing in it, and those that a thread of one short checkpoint adds."""
    with tempfile.TemporaryDirectory() as name:
        path = pathlib.Path(name) / "agents.db"
        holdfast.open(path).close()
        empty = path.stat().st_size
        with holdfast.open(path) as store:
            for number in range(_THREADS):
                store.thread(f"thread-{number:06}").put({"messages": ["hello"]}, metadata={"user": f"user-{number}"})
        return empty, (path.stat().st_size - empty) / _THREADS


def chat(size: int, steps: int, empty: int) -> Measured:
    """Append messages of a size to one thread, and read it at the end."""
    texts = [prose(size, seed) for seed in range(steps)]
    with tempfile.TemporaryDirectory() as name:
        path = pathlib.Path(name) / "agents.db"
        with holdfast.open(path) as store:
            thread = store.thread("chat")
            thread.put({"messages": []})
            appends = [_cpu(partial(thread.append, "messages", {"role": "user", "content": text})) for text in texts]
            reads = [_cpu(thread.get) for _ in range(20)]
        disk = path.stat().st_size - empty
    return Measured(size, steps, disk, statistics.median(appends), statistics.median(reads))


def _cpu(call: Callable[[], object]) -> float:
    before = time.process_time()
    call()
    return 1000 * (time.process_time() - before)


def table(found: list[Measured], empty: int, thread: float) -> str:
    """The measured figures as Markdown."""
    lines = [
        f"An empty store has {empty / 1000:.0f} KB, and a thread of one short checkpoint adds {thread / 1000:.1f} KB.",
        "",
        "| message | steps | on disk | a step | of its text | CPU of an append | CPU of a read |",
        "|---|---|---|---|---|---|---|",
    ]
    for each in found:
        step = each.disk / each.steps
        lines.append(
            f"| {each.size / 1000:g} KB | {each.steps} | {each.disk / 1e6:.2f} MB | {step:,.0f} B | "
            f"{step / each.size:.2f} | {each.append:.2f} ms | {each.read:.2f} ms |"
        )
    return "\n".join(lines)


def draw(found: list[Measured]) -> None:
    """Draw what a thread takes on disk, beside the text that is in it."""
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams.update({"svg.hashsalt": "holdfast", "svg.fonttype": "none", "font.size": 9})
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(6.4, 3.6))
    for size in _SIZES:
        chosen = [each for each in found if each.size == size]
        steps = [each.steps for each in chosen]
        (line,) = axes.plot(steps, [each.disk / 1e6 for each in chosen], "o-", label=f"{size / 1000:g} KB a message")
        axes.plot(steps, [each * size / 1e6 for each in steps], ":", color=line.get_color())
    axes.set(xscale="log", yscale="log", xlabel="steps", ylabel="MB on disk (SQLite); dotted: the text alone")
    axes.legend()
    axes.grid(alpha=0.3)
    figure.tight_layout()
    figure.savefig(_PLOT, metadata={"Date": None})


def main() -> None:
    """Measure, print the table, and write it and the plot into the guide."""
    empty, thread = empty_store()
    found = [chat(size, steps, empty) for size in _SIZES for steps in _STEPS]
    text = table(found, empty, thread)
    print(text)
    page = _GUIDE.read_text(encoding="utf-8")
    assert _TABLE.search(page), "the guide has no place for the table"
    _GUIDE.write_text(_TABLE.sub(lambda _: text, page), encoding="utf-8")
    draw(found)


if __name__ == "__main__":
    main()
