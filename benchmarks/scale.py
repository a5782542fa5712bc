"""What each operation on a whole store takes, by the number of its threads: CPU time and peak memory.

    python -m benchmarks.scale [--sizes 1000,100000,1000000] [--select "heads;verify, hashes"] [--missing]
                               [--seconds 600] [--stores FOLDER]
    python -m benchmarks.scale --draw

Makes the stores with `benchmarks.bulk_threads`, and runs every operation in a process of its own, on a copy of the
store if it writes. Prints one table. Figures for the usual numbers of threads are written, each as soon as it is known,
into `benchmarks/scale.json`; the table of all of them into `docs/guides/benchmarks.md`, and a plot of them into
`docs/guides/scale.svg`. With `--draw`, only these two are written, of the figures that are there.

An operation that takes more CPU than `--seconds` is stopped, and not tried with more threads. With `--select`, only
some operations are measured, and the figures of the others stay as they were: `;` stands between names, or between
texts that are in names. With `--missing`, only what has no figure yet, so that a run that was stopped is continued.
`--stores` keeps the stores for the next run, together with what other operations need: backups, an export, an index.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import html
import json
import math
import os
import pathlib
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias, TypedDict

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


Figures: TypeAlias = dict[str, dict[int, Cost]]
"""What operations took, by the number of threads."""


class Work(NamedTuple):
    """An operation on a store, with a folder beside it."""

    call: Callable[[holdfast.Store, pathlib.Path], object]
    on: str = "threads"
    """The store: `threads` as it is; a `copy` of it; or one of its own: `encrypted`, or with one `long` thread."""
    after: str = ""
    """The operation whose result it needs."""
    prepare: Callable[[holdfast.Store, pathlib.Path], object] | None = None
    """What is done before, and not measured."""


MOST = {"encrypted": 100_000, "long": 100_000}
"""The most threads of an encrypted store, and checkpoints of a long thread: making them takes ten times as long."""


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


def _save_long(store: holdfast.Store, checkpoints: int) -> None:
    """Save a thread of many checkpoints."""
    for start in range(0, checkpoints, 500):
        with store.transaction() as together:
            for number in range(start, min(start + 500, checkpoints)):
                together.put("long", {"n": number, "text": f"word{number % 97} " * 20}, metadata={"n": number % 10})


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
    "prune plan by number, one thread of as many checkpoints": Work(
        lambda store, _: store.maintenance.prune("long", keep_last=100, dry_run=True, each=_drop), "long"
    ),
    "prune plan by metadata, one thread of as many checkpoints": Work(
        lambda store, _: store.maintenance.prune("long", keep_where="meta.n:7", dry_run=True, each=_drop), "long"
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
        part = folder / "part"  # what is stopped while it is made is not taken for a store
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir()
        with _open(part / made.name) as store:
            (_save_long if made.stem == "long" else fill)(store, size)
        for each in sorted(part.iterdir(), key=lambda each: each.suffix == ".db"):
            each.rename(folder / each.name)
        print(f"{size:,} threads made in {time.process_time() - start:.0f} s of CPU: {made.stem}", file=sys.stderr)
    if work.on == "copy" and not work.after:
        for each in (*folder.glob("copy.db*"), *(_result(name, folder) for name in WORK if WORK[name].on == "copy")):
            each.unlink(missing_ok=True)
        shutil.copy(made, path)
    return path


def _result(name: str, folder: pathlib.Path) -> pathlib.Path:
    """Return the file that says that the result of an operation is in a folder."""
    return folder / f"{name}.done"


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
    _result(name, folder).unlink(missing_ok=True)

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 5))

    command = [sys.executable, "-m", "benchmarks.scale", "--one", name, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, preexec_fn=limit)
    if done.returncode == -signal.SIGXCPU:
        return Cost(None, None)
    if done.returncode:
        raise RuntimeError(f"{name} failed with {done.returncode}:\n{done.stderr}")
    if any(each.after == name for each in WORK.values()):
        _result(name, folder).touch()
    return Cost(*json.loads(done.stdout))


def measure(
    sizes: Sequence[int], names: Sequence[str], seconds: int, stores: pathlib.Path, known: Figures | None = None
) -> Iterator[tuple[str, int, Cost]]:
    """Measure operations on stores of all sizes, but for what is known. One that was stopped is not tried with more
    threads, nor is what needs its result."""
    stopped: set[str] = set()
    for size in sorted(sizes):
        folder = stores / str(size)
        folder.mkdir(parents=True, exist_ok=True)
        for name in names:
            work, before = WORK[name], (known or {}).get(name, {})
            stopped |= {name} if any(each.cpu is None for of, each in before.items() if of <= size) else set()
            if {name, work.after} & stopped or size in before or size > MOST.get(work.on, size):
                continue
            if work.after and not _result(work.after, folder).exists():
                if cost_of(work.after, folder, size, seconds).cpu is None:
                    stopped.add(work.after)
                    continue
            cost = cost_of(name, folder, size, seconds)
            if cost.cpu is None:
                stopped.add(name)
            print(f"{size:,}: {name}: {_text(cost)}", file=sys.stderr)
            yield name, size, cost


def names_of(text: str) -> list[str]:
    """Return the operations that are selected by names, or texts in names, with `;` between them."""
    parts = [part.strip() for part in text.split(";")]
    return [name for name in WORK if any(part == name if part in WORK else part in name for part in parts)]


def _text(cost: Cost | None) -> str:
    if cost is None:
        return ""
    if cost.cpu is None or cost.peak is None:
        return "stopped"
    cpu = f"{cost.cpu * 1000:.1f} ms" if cost.cpu < 1 else f"{cost.cpu:.1f} s"
    return f"{cpu}, {cost.peak:.0f} MB"


def table_of(found: Figures) -> str:
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


_ROW, _NAMES, _WIDTH, _GAP, _TOP = 16, 340, 330, 40, 58
"""The places in the plot: the height of a row, the widths of names, of each of two parts and of margins; the top."""
_COLOURS = ("#9ecae1", "#4292c6", "#08306b")


def plot_of(found: Figures) -> str:
    """Return the figures as a picture in SVG: a row for each operation, a dot for each number of threads, the darkest
    for the most. CPU time is to the left, and memory to the right of it."""
    sizes = sorted({size for costs in found.values() for size in costs})
    colours = dict(zip(sizes, _COLOURS[-len(sizes) :], strict=True))
    done = [cost for costs in found.values() for cost in costs.values() if cost.cpu and cost.peak]
    seconds = [10.0**power for power in range(-3, math.ceil(math.log10(max(cost.cpu or 1 for cost in done))) + 1)]
    peaks = range(0, int(max(cost.peak or 1 for cost in done)) + 50, 50)
    second_part = _NAMES + _WIDTH + _GAP

    def at_cpu(value: float) -> float:
        part = math.log10(max(value, seconds[0]) / seconds[0]) / math.log10(seconds[-1] / seconds[0])
        return round(_NAMES + _WIDTH * part, 1)

    def at_peak(value: float) -> float:
        return round(second_part + _WIDTH * value / peaks[-1], 1)

    bottom = _TOP + _ROW * len(found)
    width = second_part + _WIDTH + _GAP
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {bottom + 10}" width="{width}" role="img"'
        ' font-family="sans-serif" font-size="11">',
        "<title>CPU time and peak memory of operations, by the number of threads</title>",
        '<rect width="100%" height="100%" fill="white"/>',
    ]
    for number, (size, colour) in enumerate(colours.items()):
        lines.append(f'<circle cx="{14 + 82 * number}" cy="16" r="4" fill="{colour}"/>')
        lines.append(f'<text x="{22 + 82 * number}" y="20">{size:,}</text>')
    titles = (_NAMES, "CPU time"), (second_part, "peak memory, MB")
    lines += [f'<text x="{x}" y="20" font-weight="bold">{title}</text>' for x, title in titles]
    marks = [(at_cpu(value), f"{value:g} s") for value in seconds] + [(at_peak(peak), f"{peak}") for peak in peaks]
    for x, text in marks:
        lines.append(f'<path d="M{x} {_TOP - 12}V{bottom}" stroke="#ddd"/>')
        lines.append(f'<text x="{x}" y="{_TOP - 18}" text-anchor="middle" fill="#555">{text}</text>')
    for row, (name, costs) in enumerate(found.items()):
        y = _TOP + _ROW * row
        lines.append(f'<text x="{_NAMES - 12}" y="{y + 4}" text-anchor="end">{html.escape(name)}</text>')
        dots = [(size, cost.cpu, cost.peak) for size, cost in costs.items() if cost.cpu and cost.peak]
        for places in ([at_cpu(cpu) for _, cpu, _ in dots], [at_peak(peak) for *_, peak in dots]):
            lines.append(f'<path d="M{min(places)} {y}H{max(places)}" stroke="#999"/>' if len(places) > 1 else "")
            for (size, *_), x in zip(dots, places, strict=True):
                lines.append(f'<circle cx="{x}" cy="{y}" r="4" fill="{colours[size]}"/>')
    return "\n".join([*filter(None, lines), "</svg>", ""])


def stored_figures() -> Figures:
    """Return the figures that were measured so far."""
    if not OUTPUT.exists():
        return {}
    stored = json.loads(OUTPUT.read_text(encoding="utf-8"))
    return {name: {int(size): Cost(*cost) for size, cost in costs.items()} for name, costs in stored.items()}


def page_of(found: Figures, page: str) -> str:
    """Return the page of the documents with the table of these figures."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise RuntimeError(f"{PAGE} has no place for the table: {BEGIN}")
    return f"{before}{begin}\n\n{table_of(found)}\n\n{end}{after}"


def record(name: str, size: int, cost: Cost) -> None:
    """Add a figure to those that are stored, to which another process may add at the same time."""
    lock = os.open(OUTPUT.parent, os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        found = stored_figures()
        found.setdefault(name, {})[size] = cost
        names = dict.fromkeys([*WORK, *found])  # also what another version measures
        ordered = {each: dict(sorted(found[each].items())) for each in names if each in found}
        _replace(OUTPUT, json.dumps(ordered, indent=1) + "\n")
        write_documents()
    finally:
        os.close(lock)


def write_documents() -> None:
    """Write the table in the documents, and the plot."""
    found = stored_figures()
    _replace(PLOT, plot_of(found))
    _replace(PAGE, page_of(found, PAGE.read_text(encoding="utf-8")))


def _replace(path: pathlib.Path, text: str) -> None:
    """Write a file, all of it or nothing."""
    new = path.with_name(f"{path.name}.new")
    new.write_text(text, encoding="utf-8")
    new.replace(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", default=",".join(map(str, SIZES)))
    parser.add_argument("--select", default="", help="only these operations: names, or texts in names, with ; between")
    parser.add_argument("--missing", action="store_true", help="only what has no figure yet")
    parser.add_argument("--seconds", type=int, default=600, help="the most CPU time of an operation")
    parser.add_argument("--stores", type=pathlib.Path, help="a folder for the stores, which stay there")
    parser.add_argument("--draw", action="store_true", help="measure nothing: only write the table and the plot")
    parser.add_argument("--one", nargs=2, metavar=("NAME", "PATH"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(measured(options.one[0], pathlib.Path(options.one[1]))))
        return
    if options.draw:
        write_documents()
        return
    names = names_of(options.select)
    if not names:
        parser.error(f"no such operation; there are {'; '.join(WORK)}")
    sizes = [int(size) for size in options.sizes.split(",")]
    found: Figures = {}
    with tempfile.TemporaryDirectory(prefix="holdfast-scale-") as folder:
        known = stored_figures() if options.missing else None
        for name, size, cost in measure(sizes, names, options.seconds, options.stores or pathlib.Path(folder), known):
            found.setdefault(name, {})[size] = cost
            if size in SIZES:
                record(name, size, cost)
    print(table_of(found))


if __name__ == "__main__":
    main()
