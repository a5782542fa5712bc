"""What each operation on a whole store takes, by the number of its threads: CPU time and peak memory.

    python -m benchmarks.scale [--sizes 1000,100000,1000000] [--select prune,backup] [--seconds 600] [--stores FOLDER]

Makes the stores with `benchmarks.bulk_threads`, and runs every operation in a process of its own, on a copy of the
store if it writes. Prints one table, and writes it into `docs/guides/benchmarks.md`, the figures into
`benchmarks/scale.json` and a plot of them into `docs/guides/scale.svg`. An operation that takes more CPU than
`--seconds` is stopped, and not tried with more threads. With `--select`, only operations with one of these texts in
their names are measured; the figures of the others stay as they were. `--stores` keeps the stores for the next run.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import pathlib
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, TypedDict

import holdfast
from benchmarks.bulk_threads import fill, thread_of
from holdfast.encryption import Encryption, LocalKeys, generate_key
from holdfast.schemas import Migration, Schema, SchemaSet, add

OUTPUT = pathlib.Path("benchmarks/scale.json")
PLOT = pathlib.Path("docs/guides/scale.svg")
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
    """An operation on a store, with a folder beside it."""

    call: Callable[[holdfast.Store, pathlib.Path], object]
    on: str = "threads"
    """The store: `threads` as it is; a `copy` of it; `encrypted`, a store of its own."""
    after: str = ""
    """The operation whose result it needs."""
    prepare: Callable[[holdfast.Store, pathlib.Path], object] | None = None
    """What is done before, and not measured."""


ENCRYPTED = 100_000
"""The most threads of an encrypted store: making one takes ten times as long."""


def _drop(_: object) -> None:
    """Called with what nobody wants to have in memory."""


def _new_store(path: pathlib.Path) -> holdfast.Store:
    for each in path.parent.glob(f"{path.name}*"):
        each.unlink()
    return holdfast.open(f"sqlite:///{path}")


def _copy(store: holdfast.Store, folder: pathlib.Path) -> None:
    with _new_store(folder / "target.db") as target:
        store.maintenance.copy_to(target)


def _import(_: holdfast.Store, folder: pathlib.Path) -> None:
    with _new_store(folder / "target.db") as target:
        target.maintenance.import_(folder / "threads.holdfast")


def _restore(_: holdfast.Store, folder: pathlib.Path) -> None:
    with _new_store(folder / "target.db") as target:
        target.backups(folder / "backups").restore()


def _back_up(store: holdfast.Store, folder: pathlib.Path) -> None:
    store.backups(folder / "backups").create(accept_loss=True)


def _clear_backups(_: holdfast.Store, folder: pathlib.Path) -> None:
    shutil.rmtree(folder / "backups", ignore_errors=True)


def _change(store: holdfast.Store, _: pathlib.Path) -> None:
    for number in range(100):
        store.thread(thread_of(number * 7)).update({"changed": time.time_ns()})


def _schemas() -> SchemaSet:
    class Chat(TypedDict):
        messages: list[dict[str, Any]]
        step: int

    class PlannedChat(Chat):
        plan: list[str]

    return SchemaSet(
        Schema("chat", "1.0.0", Chat),
        Schema("chat", "2.0.0", PlannedChat),
        Migration("chat", "1.0.0", "2.0.0", add("plan", default=[])),
    )


def _verify_in_parts(store: holdfast.Store, _: pathlib.Path) -> None:
    after: str | None = ""
    while after is not None:
        after = store.maintenance.verify(level="structure", after=after, limit=10_000).next


def _prune_in_parts(store: holdfast.Store, _: pathlib.Path) -> None:
    after: str | None = ""
    while after is not None:
        after = store.maintenance.prune(keep_last=5, dry_run=True, each=_drop, after=after, limit=10_000).next


WORK: dict[str, Work] = {
    "open, get one, list 20": Work(lambda store, _: (store.thread(thread_of(5)).get(), store.threads(limit=20))),
    "save a checkpoint": Work(lambda store, _: store.thread(thread_of(5)).put({"n": 1}), "copy"),
    "list 100 of a user": Work(lambda store, _: store.threads(where="meta.user=u7", limit=100)),
    "list the last updated": Work(lambda store, _: store.threads(order="updated", limit=20)),
    "status": Work(lambda store, _: store.status()),
    "metrics": Work(lambda store, _: store.maintenance.metrics()),
    "alerts": Work(lambda store, _: store.alerts.evaluate(), "copy"),
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
    "prune, a hundredth of the threads": Work(
        lambda store, _: store.maintenance.prune(keep_within="99d", each=_drop), "copy"
    ),
    "delete stale, plan": Work(lambda store, _: store.maintenance.delete_stale("updated<99d", dry_run=True)),
    "holds": Work(lambda store, _: store.maintenance.holds()),
    "heads": Work(lambda store, folder: store.maintenance.heads().save(folder / "heads.json")),
    "sweep orphans, plan": Work(lambda store, _: store.maintenance.sweep_orphans(dry_run=True)),
    "verify, structure": Work(lambda store, _: store.maintenance.verify(level="structure")),
    "verify, structure, in parts of 10,000": Work(_verify_in_parts),
    "verify, hashes": Work(lambda store, _: store.maintenance.verify(level="hashes")),
    "erasure of nobody, plan": Work(lambda store, _: store.erasure.erase("nobody", dry_run=True)),
    "erasure of one in 200, plan": Work(
        lambda store, _: store.erasure.erase("u7", metadata_keys=("user",), dry_run=True)
    ),
    "build the index of words": Work(lambda store, _: store.maintenance.build_index(), "copy"),
    "search for a word": Work(lambda store, _: store.search("word7", limit=20), "copy", "build the index of words"),
    "migration, plan": Work(lambda store, _: store.schemas.plan(_schemas())),
    "migration of all": Work(lambda store, _: store.schemas.up(_schemas()), "copy"),
    "copy": Work(_copy),
    "export": Work(lambda store, folder: store.maintenance.export(folder / "threads.holdfast")),
    "import": Work(_import, after="export"),
    "backup, the first": Work(_back_up, prepare=_clear_backups),
    "backup after no change": Work(_back_up, after="backup, the first"),
    "backup after 100 changes": Work(_back_up, after="backup, the first", prepare=_change),
    "restore all": Work(_restore, after="backup, the first"),
    "keys, check": Work(lambda store, _: store.encryption_keys.check(), "encrypted"),
    "keys, encrypt all anew": Work(
        lambda store, _: store.encryption_keys.reencrypt(),
        "encrypted",
        prepare=lambda store, _: store.encryption_keys.rotate(),
    ),
}


def _open(path: pathlib.Path) -> holdfast.Store:
    if path.stem != "encrypted":
        return holdfast.open(f"sqlite:///{path}")
    key = path.with_suffix(".key")
    if not key.exists():
        key.write_text(generate_key())
    return holdfast.open(f"sqlite:///{path}", encryption=Encryption(LocalKeys(key.read_text())))


def store_for(work: Work, folder: pathlib.Path, size: int) -> pathlib.Path:
    """Make the store that an operation needs, unless it is there. Returns where it is."""
    path = folder / f"{work.on}.db"
    made = folder / "threads.db" if work.on == "copy" else path
    if not made.exists():
        start = time.process_time()
        with _open(made) as store:
            fill(store, size)
        print(f"{size:,} threads made in {time.process_time() - start:.0f} s of CPU: {made.stem}", file=sys.stderr)
    if work.on == "copy" and not work.after:
        for each in folder.glob("copy.db*"):
            each.unlink()
        shutil.copy(made, path)
    return path


@contextlib.contextmanager
def prepared(work: Work, path: pathlib.Path) -> Iterator[holdfast.Store]:
    """Do what comes before an operation, and open the store for it."""
    if work.prepare is not None:
        with _open(path) as store:
            work.prepare(store, path.parent)
    with _open(path) as store:
        yield store


def measured(name: str, path: pathlib.Path) -> Cost:
    """Do an operation in this process."""
    work = WORK[name]
    with prepared(work, path) as store:
        pathlib.Path("/proc/self/clear_refs").write_text("5")  # forgets the peak so far
        start = time.process_time()
        work.call(store, path.parent)
        cpu = time.process_time() - start
    # Not getrusage: there, a process begins with the most that the one had which started it.
    status = pathlib.Path("/proc/self/status").read_text()
    found = re.search(r"VmHWM:\s*(\d+) kB", status)
    assert found
    return Cost(cpu, int(found[1]) * 1024 / 1e6)


def cost_of(name: str, folder: pathlib.Path, size: int, seconds: int) -> Cost:
    """Do an operation in a process of its own, with so much CPU time at most."""
    path = store_for(WORK[name], folder, size)

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 5))

    command = [sys.executable, "-m", "benchmarks.scale", "--one", name, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, preexec_fn=limit)
    if done.returncode < 0:
        return Cost(None, None)
    if done.returncode:
        raise RuntimeError(f"{name} failed:\n{done.stderr}")
    return Cost(*json.loads(done.stdout))


def measure(
    sizes: Sequence[int], names: Sequence[str], seconds: int, stores: pathlib.Path
) -> Iterator[tuple[str, int, Cost]]:
    """Measure operations on stores of all sizes. One that was stopped is not tried with more threads, nor is what needs
    its result."""
    stopped: set[str] = set()
    for size in sorted(sizes):
        folder = stores / str(size)
        folder.mkdir(parents=True, exist_ok=True)
        done = ""
        for name in names:
            work = WORK[name]
            if {name, work.after} & stopped or (work.on == "encrypted" and size > ENCRYPTED):
                continue
            if work.after and done != work.after and cost_of(work.after, folder, size, seconds).cpu is None:
                continue
            done = work.after or name
            cost = cost_of(name, folder, size, seconds)
            if cost.cpu is None:
                stopped.add(name)
            print(f"{size:,}: {name}: {_text(cost)}", file=sys.stderr)
            yield name, size, cost


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
        grows = len(done) > 1 and done[-1][1] > _GROWTH * done[0][1]
        rate = f"{done[-1][0] / done[-1][1]:,.0f}" if grows else ""
        lines.append(f"| {name} | {' | '.join(_text(costs.get(size)) for size in sizes)} | {rate} |")
    return "\n".join(lines)


_GROWTH = 3
"""How many times as long an operation takes with the most threads as with the fewest, if it looks at every thread."""


def draw(found: dict[str, dict[int, Cost]], path: pathlib.Path) -> None:
    """Draw the figures: CPU time beside memory, a line for each operation."""
    import matplotlib as mpl  # slow to import, and only needed here

    mpl.use("svg")
    mpl.rcParams |= {
        "svg.fonttype": "none",
        "svg.hashsalt": "scale",
    }  # text, and the same for the same figures
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
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)


def _earlier() -> dict[str, dict[int, Cost]]:
    if not OUTPUT.exists():
        return {}
    stored = json.loads(OUTPUT.read_text())
    return {name: {int(size): Cost(*cost) for size, cost in costs.items()} for name, costs in stored.items()}


def write(found: dict[str, dict[int, Cost]]) -> None:
    """Write the figures, the table in the documents, and the plot."""
    OUTPUT.write_text(json.dumps(found, indent=1) + "\n")
    draw(found, PLOT)
    before, begin, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise RuntimeError(f"{PAGE} has no place for the table: {BEGIN}")
    PAGE.write_text(f"{before}{begin}\n\n{table_of(found)}\n\n{end}{after}", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", default=",".join(map(str, SIZES)))
    parser.add_argument("--select", default="", help="only operations with one of these texts in their names")
    parser.add_argument("--seconds", type=int, default=600, help="the most CPU time of an operation")
    parser.add_argument("--stores", type=pathlib.Path, help="a folder for the stores, which stay there")
    parser.add_argument("--one", nargs=2, metavar=("NAME", "PATH"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(measured(options.one[0], pathlib.Path(options.one[1]))))
        return
    names = [name for name in WORK if any(each in name for each in options.select.split(","))]
    if not names:
        parser.error(f"no such operation; there are {', '.join(WORK)}")
    sizes = [int(size) for size in options.sizes.split(",")]
    found = _earlier()
    with tempfile.TemporaryDirectory(prefix="holdfast-scale-") as folder:
        for name, size, cost in measure(sizes, names, options.seconds, options.stores or pathlib.Path(folder)):
            found.setdefault(name, {})[size] = cost
            write({each: dict(sorted(found[each].items())) for each in WORK if each in found})
    print(table_of({name: found[name] for name in names if name in found}))


if __name__ == "__main__":
    main()
