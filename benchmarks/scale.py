"""What each operation on a whole store takes, by the number of its threads: CPU time and peak memory.

    python -m benchmarks.scale [--sizes 1000,100000,1000000] [--select prune] [--seconds 600]

Makes the stores with `benchmarks.bulk_threads`, and runs every operation in a process of its own, on a copy of the
store if it writes. Prints one table, and writes it into `docs/guides/benchmarks.md`, the figures into
`build/scale.json` and a plot of them into `build/scale.png`. An operation that takes more CPU than `--seconds` is
stopped, and not tried with more threads. With `--select`, only some operations are measured; the figures of the others
stay as they were.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import holdfast
from benchmarks.bulk_threads import fill, thread_of

OUTPUT = pathlib.Path("build/scale.json")
PAGE = pathlib.Path("docs/guides/benchmarks.md")
BEGIN, END = "<!-- from here on by make scale -->", "<!-- until here -->"
SIZES = (1_000, 100_000, 1_000_000)


class Cost(NamedTuple):
    """What an operation took; nothing, if it was stopped."""

    cpu: float | None
    """Seconds, of all threads of the process, without what it takes to start and to open the store."""
    peak: float | None
    """The most memory of the process, in MB."""


class Work(NamedTuple):
    """An operation: what it does with a store and an empty folder, and whether it changes the store."""

    call: Callable[[holdfast.Store, pathlib.Path], object]
    writes: bool = False


def _drop(_: object) -> None:
    """Called with what nobody wants to have in memory."""


def _copy(store: holdfast.Store, folder: pathlib.Path) -> None:
    with holdfast.open(f"sqlite:///{folder}/copy.db") as target:
        store.maintenance.copy_to(target)


def _prune_in_parts(store: holdfast.Store, _: pathlib.Path) -> None:
    after: str | None = ""
    while after is not None:
        after = store.maintenance.prune(keep_last=5, dry_run=True, each=_drop, after=after, limit=10_000).next


WORK: dict[str, Work] = {
    "open, get one, list 20": Work(lambda store, _: (store.thread(thread_of(5)).get(), store.threads(limit=20))),
    "save a checkpoint": Work(lambda store, _: store.thread(thread_of(5)).put({"n": 1}), writes=True),
    "list 100 of a user": Work(lambda store, _: store.threads(where="meta.user=u7", limit=100)),
    "list the last updated": Work(lambda store, _: store.threads(order="updated", limit=20)),
    "status": Work(lambda store, _: store.status()),
    "metrics": Work(lambda store, _: store.maintenance.metrics()),
    "alerts": Work(lambda store, _: store.alerts.evaluate(), writes=True),
    "doctor": Work(lambda store, _: store.maintenance.doctor()),
    "timeline, last 100": Work(lambda store, _: store.timeline.query(limit=100)),
    "prune plan by age, nothing to remove": Work(
        lambda store, _: store.maintenance.prune(keep_within="200d", dry_run=True, each=_drop)
    ),
    "prune plan by number, nothing to remove": Work(
        lambda store, _: store.maintenance.prune(keep_last=5, dry_run=True, each=_drop)
    ),
    "the same in parts of 10,000": Work(_prune_in_parts),
    "prune plan, a hundredth of the threads": Work(
        lambda store, _: store.maintenance.prune(keep_within="99d", dry_run=True, each=_drop)
    ),
    "delete stale, plan": Work(lambda store, _: store.maintenance.delete_stale("updated>99d", dry_run=True)),
    "holds": Work(lambda store, _: store.maintenance.holds()),
    "heads": Work(lambda store, _: store.maintenance.heads()),
    "sweep orphans, plan": Work(lambda store, _: store.maintenance.sweep_orphans(dry_run=True)),
    "verify, structure": Work(lambda store, _: store.maintenance.verify(level="structure")),
    "verify, hashes": Work(lambda store, _: store.maintenance.verify(level="hashes")),
    "erasure, plan": Work(lambda store, _: store.erasure.erase("nobody", dry_run=True)),
    "build the index of words": Work(lambda store, _: store.maintenance.build_index(), writes=True),
    "copy": Work(_copy),
    "export": Work(lambda store, folder: store.maintenance.export(folder / "threads.holdfast")),
}


def measured(name: str, path: pathlib.Path) -> Cost:
    """Do an operation in this process."""
    with tempfile.TemporaryDirectory(dir=path.parent) as folder, holdfast.open(f"sqlite:///{path}") as store:
        start = time.process_time()
        WORK[name].call(store, pathlib.Path(folder))
        cpu = time.process_time() - start
    # Not getrusage: there, a process begins with the most that the one had which started it.
    status = pathlib.Path("/proc/self/status").read_text()
    found = re.search(r"VmHWM:\s*(\d+) kB", status)
    peak = int(found[1]) * 1024 if found else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return Cost(cpu, peak / 1e6)


def cost_of(name: str, path: pathlib.Path, seconds: int) -> Cost:
    """Do an operation in a process of its own, with so much CPU time at most."""
    if WORK[name].writes:
        copied = path.with_name("written.db")
        shutil.copy(path, copied)
        path = copied

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 5))

    command = [sys.executable, "-m", "benchmarks.scale", "--one", name, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, preexec_fn=limit)
    if done.returncode < 0:
        return Cost(None, None)
    if done.returncode:
        raise RuntimeError(f"{name} failed:\n{done.stderr}")
    return Cost(*json.loads(done.stdout))


def measure(sizes: Sequence[int], names: Sequence[str], seconds: int) -> dict[str, dict[int, Cost]]:
    """Measure operations on stores of all sizes."""
    found: dict[str, dict[int, Cost]] = {name: {} for name in names}
    for size in sorted(sizes):
        with tempfile.TemporaryDirectory(prefix="holdfast-scale-") as folder:
            path = pathlib.Path(folder) / "threads.db"
            start = time.process_time()
            with holdfast.open(f"sqlite:///{path}") as store:
                fill(store, size)
            print(f"{size:,} threads made in {time.process_time() - start:.0f} s of CPU", file=sys.stderr)
            for name in names:
                if any(each.cpu is None for each in found[name].values()):
                    continue  # it took too long with fewer
                found[name][size] = cost_of(name, path, seconds)
                print(f"{size:,}: {name}: {_text(found[name][size])}", file=sys.stderr)
    return found


def _text(cost: Cost | None) -> str:
    if cost is None:
        return ""
    if cost.cpu is None or cost.peak is None:
        return "stopped"
    cpu = f"{cost.cpu * 1000:.1f} ms" if cost.cpu < 1 else f"{cost.cpu:.1f} s"
    return f"{cpu}, {cost.peak:.0f} MB"


def table_of(found: dict[str, dict[int, Cost]]) -> str:
    """Return the figures as a table in Markdown. The rate is that of the most threads that were measured."""
    sizes = sorted({size for costs in found.values() for size in costs})
    lines = [f"| operation | {' | '.join(f'{size:,} threads' for size in sizes)} | threads a second |"]
    lines.append("|---|" + "---:|" * (len(sizes) + 1))
    for name, costs in found.items():
        done = [(size, cost.cpu) for size, cost in costs.items() if cost.cpu]
        rate = f"{done[-1][0] / done[-1][1]:,.0f}" if done and done[-1][1] > _WALKS else ""
        lines.append(f"| {name} | {' | '.join(_text(costs.get(size)) for size in sizes)} | {rate} |")
    return "\n".join(lines)


_WALKS = 0.2
"""The seconds from which on an operation has a rate: others do not look at every thread."""


def draw(found: dict[str, dict[int, Cost]], path: pathlib.Path) -> None:
    """Draw the figures: CPU time beside memory, a line for each operation."""
    import matplotlib as mpl  # slow to import, and only needed here

    mpl.use("agg")
    import matplotlib.pyplot as plt

    figure, plots = plt.subplots(1, 2, figsize=(15, 7), layout="constrained")
    for plot, title, field in ((plots[0], "CPU time, s", "cpu"), (plots[1], "peak memory, MB", "peak")):
        for number, (name, costs) in enumerate(found.items()):
            points = [(size, getattr(cost, field)) for size, cost in costs.items() if cost.cpu is not None]
            style: dict[str, Any] = {"color": f"C{number % 10}", "linestyle": ("-", "--", ":")[number // 10 % 3]}
            plot.plot(*zip(*points, strict=True), marker=".", label=name, **style) if points else None
        plot.set_title(title)
        plot.set_xlabel("threads")
        plot.set_xscale("log")
        plot.grid(visible=True, alpha=0.3)
    plots[0].set_yscale("log")
    plots[1].set_ylim(bottom=0)
    plots[1].legend(fontsize="small", loc="center left", bbox_to_anchor=(1, 0.5))
    figure.savefig(path, dpi=120)
    plt.close(figure)


def _earlier() -> dict[str, dict[int, Cost]]:
    if not OUTPUT.exists():
        return {}
    stored = json.loads(OUTPUT.read_text())
    return {name: {int(size): Cost(*cost) for size, cost in costs.items()} for name, costs in stored.items()}


def write(found: dict[str, dict[int, Cost]]) -> None:
    """Write the figures, the table in the documents, and the plot."""
    OUTPUT.parent.mkdir(exist_ok=True)
    OUTPUT.write_text(json.dumps(found, indent=1) + "\n")
    draw(found, OUTPUT.with_suffix(".png"))
    before, begin, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise RuntimeError(f"{PAGE} has no place for the table: {BEGIN}")
    PAGE.write_text(f"{before}{begin}\n\n{table_of(found)}\n\n{end}{after}", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", default=",".join(map(str, SIZES)))
    parser.add_argument("--select", default="", help="only operations with this in their name")
    parser.add_argument("--seconds", type=int, default=600, help="the most CPU time of an operation")
    parser.add_argument("--one", nargs=2, metavar=("NAME", "PATH"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(measured(options.one[0], pathlib.Path(options.one[1]))))
        return
    names = [name for name in WORK if options.select in name]
    if not names:
        parser.error(f"no such operation; there are {', '.join(WORK)}")
    earlier = _earlier() if options.select else {}
    found = {**earlier, **measure([int(size) for size in options.sizes.split(",")], names, options.seconds)}
    write({name: found[name] for name in WORK if name in found})
    print(table_of(found))


if __name__ == "__main__":
    main()
