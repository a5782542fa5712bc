"""`holdfast runs` and `holdfast work`: runs of graphs and workflows, and the workers that do them."""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from holdfast.interfaces.cli.base import CliContext, command, group, limit_option, yes_option
from holdfast.interfaces.cli.completion_types import RUN
from holdfast.interfaces.cli.exit_codes import FINDINGS, INTERRUPTED
from holdfast.interfaces.cli.formatting import ago, local, safe
from holdfast.interfaces.cli.jobs import stop_on_signal

if TYPE_CHECKING:
    from holdfast.agents.runs.record import Run

_COLORS = {"done": "green", "failed": "red", "waiting": "yellow", "running": "cyan", "cancelled": "yellow"}
_STATES = ("queued", "running", "waiting", "done", "failed", "cancelled")
_HINT = "Name it as MODULE:NAME or FILE.py:NAME, as in app.py:graph"


@group("runs", default="list")
def runs(session: CliContext) -> None:
    """List, follow, submit, cancel, retry, answer, resolve, delete or limit runs.

    A run is work on a thread or of an agent, which `holdfast work` does: a graph, a workflow or a class of agents, by
    its name.

    holdfast runs list --state failed
    holdfast runs follow RUN
    """


@command("list")
@click.option("--state", type=click.Choice(_STATES), help="Those in this state.")
@click.option("--thread", metavar="THREAD", help="Those of a thread.")
@click.option("--agent", metavar="AGENT", help="Those of an agent.")
@click.option("--graph", metavar="NAME", help="Those of a graph or a workflow.")
@limit_option()
def list_(session: CliContext, limit: int | None, **filters: str | None) -> None:
    """List the runs, the latest first.

    holdfast runs list --state failed
    """
    found = session.open().runs.list(limit=limit or 100, **filters)
    session.list(
        found if limit else found.all(),
        none="There are no such runs." if any(filters.values()) else "There are no runs.",
        created=lambda run: ago(run.created),
        ended=lambda run: "" if run.ended is None else ago(run.ended),
        error=lambda run: safe(run.error[:80]),
    )


@command("show", run=RUN)
def show(session: CliContext, run: str) -> None:
    """Show a run and its steps."""
    store = session.open()
    found = store.runs.get(run)
    session.report((_line(session, found),), found)
    session.list(store.runs.steps(run), none="")


@command("submit")
@click.option("--thread", metavar="THREAD", help="The thread that it works on; a new one, if none is given.")
@click.option("--agent", metavar="AGENT", help="The agent that works, instead of a graph.")
@click.option("--input", "given", metavar="JSON", help="The input of the graph, or the arguments of what runs.")
@click.option("--key", metavar="TEXT", help="An idempotency key: the same one submits no second run.")
@click.option("--when", metavar="TIME", help="When it is begun, such as 2h from now.")
@click.option(
    "--on-busy",
    type=click.Choice(("queue", "pass", "refuse", "replace", "branch")),
    default="queue",
    help="If the thread has a run.",
)
def submit(
    session: CliContext,
    graph: str | None,
    thread: str | None,
    agent: str | None,
    given: str | None,
    key: str | None,
    when: str | None,
    on_busy: Any,
) -> None:
    """Submit a run of a graph, a workflow or an agent.

    holdfast runs submit support --thread chat-1 --input '{"messages": [{"role": "user", "content": "hi"}]}'
    """
    if graph is None and agent is None:
        raise click.UsageError("name a graph or a workflow, or --agent")
    value = None if given is None else parse_json(given, "--input")
    store = session.open(write=True)
    found = store.runs.submit(thread, value, graph=graph, agent=agent, idempotency_key=key, when=when, on_busy=on_busy)
    session.report((found.id,), found, page=False)


@command("follow", run=RUN)
@click.option("--after", metavar="EVENT", default="", help="Continue after the event with this id.")
def follow(session: CliContext, run: str, after: str) -> None:
    """Print the events of a run as they come, until it is over or waits for an answer."""
    last = ""
    for event in session.open().runs.follow(run, after):
        last = event.kind
        text = f"{local(event.time)}  {event.kind:<10}  {safe(event.name or event.detail)}  {event.id}"
        session.report((text.rstrip(),), event, page=False)
        session.out.flush()
        if last == "waiting":
            break
    session.exit_if(last in ("failed", "cancelled"), FINDINGS)


@command("cancel", run=RUN)
@yes_option
def cancel(session: CliContext, run: str) -> None:
    """Cancel a run. Whoever has it stores nothing more."""
    store = session.open(write=True)
    session.confirm(f"Cancel the run {run}?")
    session.tell(f"The run {run} is {(found := store.runs.cancel(run)).state}.", found)


@command("retry", run=RUN)
def retry(session: CliContext, run: str) -> None:
    """Do a run that failed or was cancelled again, from where it stopped."""
    session.tell(f"The run {run} is queued.", session.open(write=True).runs.retry(run))


@command("answer", run=RUN)
@click.argument("value", metavar="[JSON]", required=False)
@click.option("--question", metavar="ID", help="The question that is answered, if several wait.")
def answer(session: CliContext, run: str, value: str | None, question: str | None) -> None:
    """Answer the question at which a run waits; without an answer, go on from a breakpoint.

    holdfast runs answer 18e9475ab10b04b954e1d872 '"yes"'
    """
    if value is None and question is not None:
        raise click.UsageError("a question is answered with a JSON value")
    given = None if value is None else parse_json(value, "the answer")
    found = session.open(write=True).runs.answer(run, given, question=question)
    session.tell(f"The run {run} is queued.", found)


@command("resolve", run=RUN)
@click.argument("step", metavar="STEP")
@click.option("--result", metavar="JSON", help="What the step returned.")
@click.option("--retry", "repeats", is_flag=True, help="Have the step run again.")
def resolve(session: CliContext, run: str, step: str, result: str | None, repeats: bool) -> None:
    """Say what became of a step whose outcome is unknown, or that failed. Then retry the run.

    holdfast runs resolve 18e9475ab10b04b954e1d872 '000001 charge' --result '"receipt 7"'
    """
    if (result is not None) == repeats:
        raise click.UsageError("pass --result or --retry")
    store = session.open(write=True)
    if result is None:
        store.runs.resolve(run, step, retry=True)
    else:
        store.runs.resolve(run, step, result=parse_json(result, "--result"))
    session.tell(f"The step {safe(step)} is resolved. Retry the run: holdfast runs retry {run}", {"step": step})


@command("delete", run=RUN)
@yes_option
def delete(session: CliContext, run: str) -> None:
    """Delete the record of a run that is over, with its steps and its idempotency key. Its thread stays."""
    store = session.open(write=True)
    session.confirm(f"Delete the run {run}?")
    is_deleted = store.runs.delete(run)
    session.tell(f"The run {run} is deleted." if is_deleted else f"There is no run {run}.", {"deleted": is_deleted})


@command("limits")
def limits(session: CliContext) -> None:
    """List the limits for all workers together, and how many runs are being done."""
    found = session.open().runs.limits()
    session.list(found, none="There are no limits.", graph=lambda each: each.graph or "all")


@command("limit")
@click.argument("most", type=click.IntRange(0), metavar="[NUMBER]", required=False)
@click.option("--graph", metavar="NAME", help="Of a graph or a workflow; otherwise of all together.")
@click.option("--remove", is_flag=True, help="Remove the limit.")
def limit(session: CliContext, most: int | None, graph: str | None, remove: bool) -> None:
    """Have workers do at most so many runs at a time, in all processes together. With 0, none is begun.

    holdfast runs limit 3 --graph sell
    holdfast runs limit --graph sell --remove
    """
    if (most is None) != remove:
        raise click.UsageError("pass a number or --remove")
    session.open(write=True).runs.limit(graph, most)
    what = f"Runs of {safe(graph)}" if graph else "All runs"
    text = f"{what} have no limit." if most is None else f"{what}: at most {most} at a time."
    session.tell(text, {"graph": graph or "", "most": most})


@command("work")
@click.argument("code", nargs=-1, required=True, metavar="FILE.py:NAME...")
@click.option("--concurrency", type=click.IntRange(1), default=4, show_default=True, help="How many runs at a time.")
@click.option("--lease", metavar="SPAN", default="30s", show_default=True, help="When others take a silent one over.")
@click.option("--code-version", default="", metavar="TEXT", help="The version of the code, which runs get.")
@click.option("--jobs", "with_jobs", is_flag=True, help="Run scheduled jobs and timers as well.")
@click.option("--once", is_flag=True, help="Do what is due now, and exit.")
def work(
    session: CliContext,
    code: tuple[str, ...],
    concurrency: int,
    lease: str,
    code_version: str,
    with_jobs: bool,
    once: bool,
) -> None:
    """Do the runs of graphs, workflows and agents, until Ctrl-C: those that are submitted, and those that dead
    workers left.

    Any number of workers may work on one store. Ctrl-C or the signal TERM hands what is being run over to others,
    before its next step; a second one stops at once. A graph is known by the name that it was compiled with, or by the
    one before a `=`.

    holdfast work app.py:graph app.py:sell app.py:Desk
    holdfast work support=shop.agents:graph --concurrency 16 --jobs
    """
    from holdfast.maintenance.jobs.runner import JobRunner

    unnamed: list[Any] = []
    named: dict[str, Any] = {}
    for each in code:
        name, equals, place = each.rpartition("=")
        found = find_target(place)
        if equals:
            named[name] = found
        else:
            unnamed.append(found)
    store = session.open(write=True)

    def on_end(run: Run) -> None:
        if run.state == "failed" or run.attempts > 1:
            store.alerts.report()  # who evaluates alerts may be another process
        session.report((_line(session, run),), run, page=False)
        session.out.flush()

    worker = store.worker(*unnamed, concurrency=concurrency, lease=lease, code=code_version, on_end=on_end, **named)
    runner = JobRunner(store) if with_jobs and not once else None
    with stop_on_signal(session, lambda: worker.stop(wait=False)) as signals:
        if once:
            worker.run_due()
        else:
            session.note(f"Waiting for runs of {', '.join(worker.names)}. Ctrl-C stops.")
            if runner is not None:
                runner.start()
            try:
                worker.work()
            finally:
                if runner is not None:
                    runner.stop()
    session.exit_if(signal.SIGINT in signals, INTERRUPTED)


def find_target(place: str) -> Any:
    """Return the graph, workflow or class of agents that is named as `FILE.py:NAME` or `MODULE:NAME`."""
    from holdfast.store.replay.code_lookup import find_code

    return find_code(importable(place), "graph", _HINT)


def importable(place: str) -> str:
    """Return the `MODULE:NAME` of code that is named as `FILE.py:NAME` or `MODULE:NAME`, after its folder is among
    those that modules are imported from."""
    module, _, name = place.partition(":")
    path = Path(module)
    folder = path.parent.resolve() if path.suffix == ".py" else Path.cwd()
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
    return f"{path.stem if path.suffix == '.py' else module}:{name}"


def parse_json(text: str, what: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        raise click.UsageError(f"{what} is JSON, such as '[1, \"a\"]', not {text[:40]!r}") from None


def _line(session: CliContext, run: Run) -> str:
    state = session.out.style(run.state, _COLORS.get(run.state, "bold"))
    text = f"{local(run.ended or run.created)}  {run.id}  {safe(run.graph)} on {safe(run.agent or run.thread)}: {state}"
    return f"{text} {safe(run.error)}".rstrip()


runs.add(list_, show, submit, follow, cancel, retry, answer, resolve, delete, limits, limit)
