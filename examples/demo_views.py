"""What the demo prints."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from langchain_core.messages import AIMessage, AnyMessage
from langgraph.types import StateSnapshot
from rich import box
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.panel import Panel
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from examples.demo_agent import THREAD
from examples.demo_measure import ROUNDS, Figures
from holdfast import Checkpoint, Store

WIDTH = 78


def title(modules: int, calls: int) -> RenderableType:
    text = (
        f"A LangGraph agent reads the source of Python's standard library and writes a guide to it: {modules} modules, "
        f"{calls} tool calls. A script stands in for the model. The rest is real, and every figure is measured."
    )
    return Panel(text, title="[bold]Holdfast[/bold]", box=box.ROUNDED, border_style="cyan", width=WIDTH)


def headline(console: Console, number: int, text: str) -> None:
    console.print(f"\n[bold cyan]{number}[/bold cyan]  [bold]{text}[/bold]\n")


def _facts(*rows: tuple[str, str]) -> RenderableType:
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", width=19)
    grid.add_column(overflow="fold", max_width=WIDTH - 24)
    for row in rows:
        grid.add_row(*row)
    return Padding(grid, (0, 0, 0, 3), expand=False)


def id_of(snapshot: StateSnapshot) -> str:
    return str(snapshot.config["configurable"]["checkpoint_id"])


def _at_a_glance(values: dict[str, Any]) -> str:
    return f"{len(values['messages'])} messages, {len(values['notes'])} modules described"


# Killed, and resumed ------------------------------------------------------------------------------------------


def saved_calls(snapshot: StateSnapshot) -> list[str]:
    """The tool calls of the step in progress that are done, and saved."""
    return [message.tool_call_id for task in snapshot.tasks if task.result for message in task.result["messages"]]


def killed(pid: int, code: int, snapshot: StateSnapshot) -> RenderableType:
    saved = saved_calls(snapshot)
    latest = [message for message in snapshot.values["messages"] if isinstance(message, AIMessage)][-1]
    asked = [str(call["id"]) for call in latest.tool_calls]
    how = "killed" if code > 0 else f"killed by signal {-code}"  # Windows has no signals
    return _facts(
        ("this process", f"{pid}, [bold red]{how}[/bold red]"),
        ("in the store", f"checkpoint {id_of(snapshot)}"),
        ("", _at_a_glance(snapshot.values)),
        ("it was in the call", ", ".join(f"[bold]{call}[/bold]" for call in asked if call not in saved)),
        ("done just before", ", ".join(saved)),
    )


def resumed(pid: int, started: Sequence[str], log: Counter[Any], snapshot: StateSnapshot) -> RenderableType:
    calls = {message.tool_call_id for message in snapshot.values["messages"] if message.type == "tool"}
    finished = {call: count for (what, call), count in log.items() if what == "finished"}
    twice = [call for call, count in finished.items() if count > 1]
    again = [call for (what, call), count in log.items() if what == "started" and count > 1]
    return _facts(
        ("another process", f"{pid}, [bold green]ended by itself[/bold green]"),
        ("in the store", _at_a_glance(snapshot.values)),
        ("it called first", f"[bold]{started[0]}[/bold]"),
        ("then", ", ".join(started[1:3]) + ", …"),
        ("tools that ran", f"{sum(finished.values())}, for {len(calls)} calls of the agent"),
        ("finished twice", ", ".join(twice) or "[bold green]none[/bold green]"),
        ("begun twice", ", ".join(again) + " (the kill cut it short)"),
    )


# Forked -------------------------------------------------------------------------------------------------------


def code() -> RenderableType:
    return Padding(
        Text(
            "past = ...  # one of graph.get_state_history(config), four modules ago\n"
            'other = graph.update_state(past.config, {"plan": shorter}, as_node="tools")\n'
            "graph.invoke(None, other)\n",
            style="green",
        ),
        (0, 0, 0, 3),
        expand=False,
    )


def tree(store: Store, killed_at: str) -> RenderableType:
    """The thread's checkpoints, with runs of them drawn as one."""
    log = list(store.thread(THREAD).log().all())[::-1]
    info = store.thread(THREAD).info()
    ends = {id: name for name, id in store.thread(THREAD).tags().items()}
    branches = store.thread(THREAD).branches()
    base = next(branch.base for branch in branches if branch.base is not None)
    place = {each.id: each for each in log}
    kill, split = place[killed_at].step, place[base].step
    root = Tree(f"[bold]{THREAD}[/bold]  {info.steps} checkpoints, {info.branches} branches", guide_style="cyan")
    root.add(f"0–{kill - 1}")
    root.add(f"{kill}  [red]the last one of the process that was killed[/red]")
    root.add(f"{kill + 1}–{split - 1}")
    here = root.add(f"{split}  [yellow]two ways from here[/yellow]")
    for branch in branches:
        line = [each for each in log if each.branch == branch.branch and each.step > split]
        here.add(f"{line[0].step}–{line[-1].step}  [bold]{ends[line[-1].id]}[/bold], branch {branch.branch}")
    return Padding(root, (0, 0, 0, 3), expand=False)


def graph(database: Path, command: Sequence[str]) -> RenderableType:
    """A command, and what it prints."""
    done = subprocess.run(
        [sys.executable, "-m", "holdfast", *command],
        env={**os.environ, "HOLDFAST_STORE": str(database), "PYTHONIOENCODING": "utf-8"},
        capture_output=True,
        encoding="utf-8",
        check=True,
    )
    lines = [line if len(line) < WIDTH - 3 else f"{line[: WIDTH - 4]}…" for line in done.stdout.splitlines()]
    text = Text(f"$ holdfast {shlex.join(command)}\n", style="green")
    return Padding(text.append("\n".join(lines), style="default"), (0, 0, 0, 3), expand=False)


def differences(ours: Checkpoint, theirs: Checkpoint) -> RenderableType:
    """What differs between two states, channel by channel."""
    a, b = ours.state, theirs.state
    table = Table("what differs", "as planned", "brief", box=box.SIMPLE_HEAD, width=WIDTH - 3, header_style="bold")
    common = _common(a["messages"], b["messages"])
    table.add_row("messages", *(f"{common}, and {_messages(state['messages'][common:])}" for state in (a, b)))
    for key in a["plan"]:
        if a["plan"][key] != b["plan"][key]:
            table.add_row(f"plan.{key}", *(_short(state["plan"][key]) for state in (a, b)))
    for key in a["notes"] | b["notes"]:
        if a["notes"].get(key) != b["notes"].get(key):
            table.add_row(f"notes.{key}", *(_short(state["notes"].get(key, "–")) for state in (a, b)))
    return Padding(table, (0, 0, 0, 2), expand=False)


def _common(a: Sequence[object], b: Sequence[object]) -> int:
    """How many items two lists have in common at their start."""
    return next((place for place, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def _messages(messages: Sequence[AnyMessage]) -> str:
    size = sum(len(str(message.content)) + len(str(getattr(message, "tool_calls", ""))) for message in messages)
    return f"{len(messages)} of {size / 1000:.1f} KB"


def _short(value: object) -> str:
    return f"{len(value)} modules" if isinstance(value, list) else str(value)


# Measured -----------------------------------------------------------------------------------------------------


def figures(bare: float, ours: Figures, theirs: Figures) -> RenderableType:
    table = Table(box=box.SIMPLE_HEAD, width=WIDTH - 3, header_style="bold")
    table.add_column("the same agent, not killed")
    for name in ("Holdfast", "SqliteSaver", "ratio"):
        table.add_column(name, justify="right", style="bold" if name == "ratio" else None)

    def row(what: str, unit: str, a: float, b: float, scale: float = 1) -> None:
        shown = (f"{each:,.{2 if abs(each) < 1 else 1}f} {unit}" for each in (a * scale, b * scale))
        table.add_row(what, *shown, f"{b / a:.1f} ×")

    row("size of the file", "MB", ours.size, theirs.size, 1e-6)
    row("time of the whole run", "s", ours.run, theirs.run)
    row("  of it, for saving", "s", ours.run - bare, theirs.run - bare)
    row("read the latest state, cold", "ms", ours.read, theirs.read, 1e3)
    note = Text(
        f'The best of {ROUNDS} runs each, in turn; durability="sync"; {ours.checkpoints} and {theirs.checkpoints} '
        f"checkpoints. A ratio over 1 is in favour of Holdfast. Without a saver the agent takes {bare:.1f} s.",
        style="dim",
    )
    return Group(Padding(table, (0, 0, 0, 2), expand=False), Padding(note, (0, 80 - WIDTH, 0, 3), expand=False))


def goodbye(database: Path, log: Path, seconds: float) -> RenderableType:
    text = Text.assemble(
        ("look at it\n", "bold"),
        f"  export HOLDFAST_STORE={database} PATH=.venv/bin:$PATH\n",
        "  holdfast ui\n",
        "  holdfast log guide --graph --all --oneline\n",
        "  holdfast diff guide 'as planned' brief\n",
        "  holdfast blame guide plan\n",
        "  holdfast verify\n",
        f"  {log} has a line for every tool that ran\n",
        (f"all of it took {seconds:.0f} s", "dim"),
    )
    return Padding(Panel(text, box=box.ROUNDED, border_style="cyan", width=WIDTH), (1, 0, 0, 0), expand=False)
