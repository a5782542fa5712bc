"""An agent is killed in the middle of its work, resumes in another process, and is forked into another ending.

Run it with `make demo`, or for a shorter one with `make demo DEMO_MODULES=20`. It leaves the store in build/demo.db.
"""

from __future__ import annotations

import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from langgraph.types import StateSnapshot
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # for the files beside this one, however it is run

import holdfast  # noqa: E402
from examples import demo_agent, demo_measure, demo_views  # noqa: E402
from examples.demo_agent import CONFIG, READINGS, THREAD, Graph, ToolLog  # noqa: E402
from holdfast.langgraph import HoldfastSaver  # noqa: E402

DATABASE, LOG = Path("build/demo.db"), Path("build/demo-tools.log")
MODULES = list(demo_agent.library())
CALLS = len(MODULES) * (READINGS + 1)
console = Console(highlight=False)


def main() -> None:
    begun = time.perf_counter()
    DATABASE.parent.mkdir(exist_ok=True)
    for file in DATABASE.parent.glob("demo[.-]*"):
        file.unlink()
    LOG.touch()
    console.print(demo_views.title(len(MODULES), CALLS))
    with holdfast.open(f"sqlite:///{DATABASE}") as store:
        graph = demo_agent.build(HoldfastSaver(store), ToolLog(LOG))
        killed = kill(graph)
        resume(graph)
        fork(graph, store, killed)
    compare()
    console.print(demo_views.goodbye(DATABASE, LOG, time.perf_counter() - begun))


# Killed, and resumed ------------------------------------------------------------------------------------------


def kill(graph: Graph) -> StateSnapshot:
    """Run the agent in a process of its own, and kill that during a tool call. Returns the state in the store."""
    demo_views.headline(console, 1, "An agent works, and its process is killed")
    module = random.choice(MODULES[len(MODULES) * 4 // 10 : len(MODULES) * 6 // 10])
    hangs = demo_agent.call_id(module, f"part-{random.randrange(READINGS)}")

    def is_in_call() -> bool:
        """Whether the tool runs, and those that started with it are done and saved."""
        return ("started", hangs) in tool_log() and len(demo_views.saved_calls(graph.get_state(CONFIG))) == READINGS - 1

    process = work("working", is_in_call, hangs)
    if not is_in_call():
        raise SystemExit(f"the agent failed, with code {process.returncode}")
    console.print(demo_views.killed(process.pid, process.returncode, graph.get_state(CONFIG)))
    return graph.get_state(CONFIG)


def resume(graph: Graph) -> None:
    """Resume in another process, to the end, and show which tools ran."""
    demo_views.headline(console, 2, "Another process resumes it")
    before = len(tool_log())
    process = work("resuming")
    if process.returncode != 0:
        raise SystemExit(f"the agent failed, with code {process.returncode}")
    started = [call for what, call in tool_log()[before:] if what == "started"]
    console.print(demo_views.resumed(process.pid, started, Counter(tool_log()), graph.get_state(CONFIG)))


def work(what: str, until: Callable[[], bool] = lambda: False, hangs: str = "") -> subprocess.Popen[bytes]:
    """Run the agent in a process until it ends, or until it is to be killed."""
    command = [sys.executable, str(ROOT / "examples" / "demo_agent.py"), str(DATABASE), str(LOG), hangs]
    with subprocess.Popen(command) as process, show_progress(what) as done:
        try:
            while process.poll() is None and not until():
                done(sum(entry.what == "finished" for entry in tool_log()))
                time.sleep(0.05)
            done(sum(entry.what == "finished" for entry in tool_log()))
            if process.returncode is None:
                time.sleep(random.uniform(0, 0.5))
        finally:
            process.kill()
    return process


@contextmanager
def show_progress(what: str) -> Iterator[Callable[[int], None]]:
    """Show the number of tool calls: as a bar on a terminal, in a pipe as a line for each fifth of them."""
    if console.is_terminal:
        columns = (TextColumn("  {task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("tool calls"))
        with Progress(*columns, console=console, transient=True) as bar:
            task = bar.add_task(what, total=CALLS)
            yield lambda count: bar.update(task, completed=count)
        return
    shown = -1

    def show(count: int) -> None:
        nonlocal shown
        if count * 5 // CALLS > shown:
            shown = count * 5 // CALLS
            console.print(f"  {what}: {count} of {CALLS} tool calls")

    yield show


class Entry(NamedTuple):
    """A line of the log of tools."""

    what: str
    call: str


def tool_log() -> list[Entry]:
    """Read the log of the tools, of all processes."""
    return [Entry(*line.split()[1:]) for line in LOG.read_text(encoding="utf-8").splitlines()]


# Forked -------------------------------------------------------------------------------------------------------


def fork(graph: Graph, store: holdfast.Store, killed: StateSnapshot) -> None:
    """Run another ending from an older checkpoint, and compare the two."""
    demo_views.headline(console, 3, "Forked from an older checkpoint")
    planned = graph.get_state(CONFIG)
    past = next(each for each in graph.get_state_history(CONFIG) if is_before_the_last_four(each))
    plan = past.values["plan"]
    shorter = {**plan, "style": "brief", "todo": plan["todo"][:2]}
    other = graph.update_state(past.config, {"plan": shorter}, as_node="tools")
    graph.invoke(None, other, durability="sync")
    brief = graph.get_state(CONFIG)

    for name, end in (("as planned", planned), ("brief", brief)):
        store.thread(THREAD).tag(name, demo_views.id_of(end))
    console.print(demo_views.code())
    console.print(demo_views.tree(store, demo_views.id_of(killed)))
    console.print()
    fork_step = store.thread(THREAD).get(at=demo_views.id_of(past)).step
    command = ["log", THREAD, "--graph", "--all", "--oneline", "--where", f"tag:* OR step:{fork_step}"]
    console.print(demo_views.graph(DATABASE, command))
    console.print()
    chat = store.thread(THREAD)
    console.print(demo_views.differences(chat.get(at="as planned"), chat.get(at="brief")))


def is_before_the_last_four(snapshot: StateSnapshot) -> bool:
    """Whether four modules are left, and the next one is not started."""
    return len(snapshot.values["plan"]["todo"]) == 4 and snapshot.values["messages"][-1].name == "write_entry"


# Measured -----------------------------------------------------------------------------------------------------


def compare() -> None:
    """Run the same agent with LangGraph's own saver."""
    demo_views.headline(console, 4, "Beside LangGraph's SqliteSaver")
    with console.status("running the same agent") as status:
        figures = demo_measure.measure(
            status.update if console.is_terminal else lambda what: console.print(f"  {what}")
        )
    console.print(demo_views.figures(*figures))


if __name__ == "__main__":
    main()
