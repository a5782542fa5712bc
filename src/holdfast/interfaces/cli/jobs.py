"""`holdfast jobs`: scheduled jobs."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from holdfast.errors import CorruptError
from holdfast.interfaces.cli.base import CliContext, command, group, limit_option, pairs, yes_option
from holdfast.interfaces.cli.completion_types import JOB
from holdfast.interfaces.cli.exit_codes import ERROR, FINDINGS, INTERRUPTED
from holdfast.interfaces.cli.formatting import ago, in_words, local, safe

if TYPE_CHECKING:
    from holdfast.maintenance.jobs.api import Jobs
    from holdfast.maintenance.jobs.builtin import JobTypes
    from holdfast.maintenance.jobs.job import Job, JobRun
    from holdfast.store.store import Store

_COLORS = {"ok": "green", "failed": "red", "findings": "red", "killed": "red", "stopped": "yellow", "running": "cyan"}


class KindNameType(click.ParamType[str]):
    """The name of a kind of job."""

    name = "kind"

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[Any]:  # noqa: ARG002
        from click.shell_completion import CompletionItem

        from holdfast.maintenance.jobs.builtin import JobTypes

        return [CompletionItem(each) for each in JobTypes().names() if each.startswith(incomplete)]


def code_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that name the code of replays: it is named here, and not by what is stored."""
    for option in (
        click.option("--graph", metavar="MODULE:NAME", help="The graph of jobs of the kind replay."),
        click.option("--hooks", metavar="MODULE:FUNCTION", help="The hooks of jobs of the kind replay-hooks."),
    ):
        function = option(function)
    return function


def _jobs(store: Store, graph: str | None, hooks: str | None) -> tuple[Jobs, JobTypes | None]:
    """Return the jobs of a store, and their types if there is code for replays."""
    if graph is None and hooks is None:
        return store.jobs, None
    from holdfast.maintenance.jobs.api import Jobs
    from holdfast.maintenance.jobs.builtin import JobTypes
    from holdfast.store.replay.threads import hook_replay_job, replay_job

    types = JobTypes()
    if graph is not None:
        types.add(replay_job(graph))
    if hooks is not None:
        types.add(hook_replay_job(hooks))
    return Jobs(store, types), types


@group("jobs", default="list")
def jobs(session: CliContext) -> None:
    """List, add, run or pause scheduled jobs.

    Jobs are stored in the store. `holdfast jobs work` runs those that are due; any number of processes may do so, and
    each job is run by one of them.
    """


@command("list")
def list_(session: CliContext) -> None:
    """List the jobs: when each is due, and how its last run ended."""
    session.list(
        session.open().jobs.list(),
        none="There are no jobs. See `holdfast jobs kinds`, and add one with `holdfast jobs add`.",
        hidden=("paused", "failures"),
        schedule=lambda job: job.schedule or "by hand",
        due=_due,
        last_run=lambda job: "never" if job.last is None else ago(job.last.started),
        outcome=_last_outcome,
    )


def _due(job: Job) -> str:
    if job.paused:
        return "paused"
    if job.due is None:
        return ""
    seconds = int((job.due - datetime.now(UTC)).total_seconds())
    return "now" if seconds <= 0 else in_words(seconds)


def _last_outcome(job: Job) -> str:
    if job.last is None:
        return ""
    failed = f" ({job.failures} in a row)" if job.failures > 1 else ""
    summary = job.last.summary or job.last.error
    return f"{job.last.outcome}{failed}" + (f": {summary}" if summary else "")


@command("add", kind=KindNameType())
@click.option("--every", metavar="SPAN", help="The interval: 30m, 6h, 1d.")
@click.option("--schedule", metavar="WHEN", help="Or when: 'daily at 03:00', 'weekly on sun at 03:00', '0 3 * * *'.")
@click.option("--set", "settings", metavar="KEY=VALUE", multiple=True, help="A setting; the value is JSON or text.")
@click.option("--paused", is_flag=True, help="Add it paused.")
@click.option("--replace", is_flag=True, help="Replace the job of this name.")
@code_options
def add(
    session: CliContext,
    name: str,
    kind: str,
    every: str | None,
    schedule: str | None,
    settings: tuple[str, ...],
    graph: str | None,
    hooks: str | None,
    **options: Any,
) -> None:
    """Add a job. Without a schedule, only `holdfast jobs run NAME` runs it.

    Jobs of the kinds replay and replay-hooks need code, which is not stored: name it here, and where they are run.

    holdfast jobs add nightly prune --schedule 'daily at 03:00' --set keep_last=100
    holdfast jobs add check verify --every 7d
    holdfast jobs add before-release replay --graph shop.agent:graph --set prefix=orders-
    """
    if every is not None and schedule is not None:
        raise click.UsageError("give --every or --schedule, not both")
    when = schedule or (f"every {every}" if every is not None else "")
    store_jobs, _ = _jobs(session.open(write=True), graph, hooks)
    job = store_jobs.add(name, kind, schedule=when, settings=pairs(settings, "--set"), **options)
    session.tell(f"Added the job {name}{f', due {_due(job)}' if job.due else ''}.", job)


@command("remove", name=JOB)
@yes_option
def remove(session: CliContext, name: str) -> None:
    """Remove a job and its log. A run in progress continues to its end."""
    jobs = session.open(write=True).jobs
    with contextlib.suppress(CorruptError):  # a damaged job can be removed, too
        jobs.get(name)
    session.confirm(f"Remove the job {name}?")
    jobs.remove(name)
    session.tell(f"Removed the job {name}.", {"name": name, "removed": True})


@command("pause", name=JOB)
def pause(session: CliContext, name: str) -> None:
    """Pause a job until it is resumed."""
    job = session.open(write=True).jobs.pause(name)
    session.tell(f"Paused the job {name}.", job)


@command("resume", name=JOB)
def resume(session: CliContext, name: str) -> None:
    """Resume a paused job, at the next time of its schedule."""
    job = session.open(write=True).jobs.resume(name)
    session.tell(f"Resumed the job {name}{f', due {_due(job)}' if job.due else '; it runs by hand'}.", job)


@command("run", name=JOB)
@code_options
def run(session: CliContext, name: str, graph: str | None, hooks: str | None) -> None:
    """Run a job now, in this process.

    Ctrl-C stops it between two of its steps.

    holdfast jobs run before-release --graph shop.agent:graph
    """
    store_jobs, _ = _jobs(session.open(write=True), graph, hooks)
    with session.progress(name) as progress, stop_on_signal(session) as signals:
        done = store_jobs.run(name, progress=progress, stop=lambda: bool(signals))
    session.report(
        (f"{safe(name)}: {_outcome(session, done)} {safe(done.summary)}".rstrip(),), done, {"name": name}, page=False
    )
    session.exit_if(signals and done.outcome == "stopped", INTERRUPTED)
    session.exit_if(not done.ok, FINDINGS)


def _outcome(session: CliContext, done: JobRun) -> str:
    return session.out.style(done.outcome, _COLORS.get(done.outcome, "bold"))


@command("work")
@click.option("--once", is_flag=True, help="Run what is due now, and exit: for your own scheduler.")
@code_options
def work(session: CliContext, once: bool, graph: str | None, hooks: str | None) -> None:
    """Run jobs when they are due, until Ctrl-C.

    Ctrl-C or the signal TERM stops it between two steps of a job, which the next runner repeats. With --once, the exit
    code is not 0 if a job failed.
    """
    from holdfast.maintenance.jobs.runner import JobRunner

    store = session.open(write=True)
    _, types = _jobs(store, graph, hooks)
    outcomes: list[str] = []

    def on_run(job: Job, done: JobRun) -> None:
        outcomes.append(done.outcome)
        text = f"{safe(job.name)}: {_outcome(session, done)} {safe(done.summary or done.error)}"
        session.report((f"{local(done.started)}  {text}".rstrip(),), done, {"name": job.name}, page=False)
        session.out.flush()

    with session.progress("jobs") as progress:
        runner = JobRunner(store, types, on_run=on_run, progress=progress)
        with stop_on_signal(session, lambda: runner.stop(wait=False)) as signals:
            if once:
                runner.run_due()
            else:
                session.note("Waiting for jobs to be due. Ctrl-C stops.")
                runner.work()
    session.exit_if(signal.SIGINT in signals, INTERRUPTED)
    session.exit_if(once and "failed" in outcomes, ERROR)
    session.exit_if(once and "findings" in outcomes, FINDINGS)


@contextlib.contextmanager
def stop_on_signal(session: CliContext, on_stop: Callable[[], None] = lambda: None) -> Iterator[list[int]]:
    """Let a first Ctrl-C or TERM stop after the current step, and a second one at once. Yields the signals."""
    signals: list[int] = []

    def stop(number: int, frame: object) -> None:  # noqa: ARG001
        if signals:
            raise KeyboardInterrupt
        signals.append(number)
        on_stop()
        session.note("\nStopping after this step. Ctrl-C again stops at once.")

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield signals
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@command("log", name=JOB)
@limit_option()
def log(session: CliContext, name: str, limit: int | None) -> None:
    """Show the last runs of a job, the latest first."""
    runs = session.open().jobs.get(name).runs[:limit]
    session.list(
        runs,
        none=f"{name} has not run yet.",
        first=("started",),
        exact=True,
        took=lambda run: f"{(run.ended_ns - run.started_ns) / 1e9:.1f} s" if run.ended_ns else "",
    )


@command("kinds")
def kinds(session: CliContext) -> None:
    """List the kinds of jobs and their settings."""
    from holdfast.maintenance.jobs.builtin import JobTypes

    types = JobTypes()
    for each in map(types.get, types.names()):
        lines = [f"{session.out.style(safe(each.name), 'yellow')}: {safe(each.about)}"]
        lines += [f"    {safe(key)}: {safe(about)}" for key, about in each.settings.items()]
        session.report(lines, {"kind": each.name, "about": each.about, "settings": dict(each.settings)})


jobs.add(list_, add, remove, pause, resume, run, work, log, kinds)
