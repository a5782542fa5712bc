"""`holdfast jobs`: scheduled work."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from holdfast.errors import CorruptError
from holdfast.interfaces.cli.base import CliContext, command, group, pairs, yes_option
from holdfast.interfaces.cli.completion_types import ThreadNameType
from holdfast.interfaces.cli.exit_codes import ERROR, FINDINGS, INTERRUPTED
from holdfast.interfaces.cli.formatting import ago, in_words, local, safe

if TYPE_CHECKING:
    from holdfast.maintenance.jobs.api import Jobs
    from holdfast.maintenance.jobs.jobs import Job, JobRun
    from holdfast.store.store import Store

_HEADS = ("NAME", "KIND", "SCHEDULE", "DUE", "LAST RUN", "OUTCOME")
_LOG_HEADS = ("STARTED", "TOOK", "OUTCOME", "BY", "")
_COLORS = {"ok": "green", "failed": "red", "findings": "red", "killed": "red", "stopped": "yellow", "running": "cyan"}


class JobNameType(ThreadNameType):
    """The name of a job."""

    name = "job"

    def names(self, store: Store, thread: str, start: str) -> Iterable[str]:  # noqa: ARG002
        return [job.name for job in _jobs(store).list()]


class KindNameType(click.ParamType[str]):
    """The name of a kind of jobs."""

    name = "kind"

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[Any]:  # noqa: ARG002
        from click.shell_completion import CompletionItem

        from holdfast.maintenance.jobs.builtin import JobTypes

        return [CompletionItem(each) for each in JobTypes().names() if each.startswith(incomplete)]


JOB = JobNameType()


def _jobs(store: Store) -> Jobs:
    from holdfast.maintenance.jobs.api import Jobs

    return Jobs(store)


def job_record(job: Job) -> dict[str, Any]:
    """A job as a record."""
    return {
        "name": job.name,
        "kind": job.kind,
        "schedule": job.schedule,
        "settings": dict(job.settings),
        "paused": job.paused,
        "due": job.due,
        "failures": job.failures,
        "runs": [run_record(run) for run in job.runs],
    }


def run_record(run: JobRun) -> dict[str, Any]:
    """A run as a record."""
    return {
        "started": run.started,
        "ended": run.ended,
        "outcome": run.outcome,
        "summary": run.summary,
        "error": run.error,
        "code": run.code,
        "by": run.by,
    }


@group("jobs", invoke_without_command=True)
def jobs(session: CliContext) -> None:
    """List, add, run or pause scheduled work.

    Jobs are kept in the store. `holdfast jobs work` runs what is due, as long as it is left running; any number of
    them may work on one store, and each job is run by one.
    """
    if click.get_current_context().invoked_subcommand is None:
        _list(session)


@command("list")
def list_(session: CliContext) -> None:
    """List the jobs: when each is due, and how its last run ended."""
    _list(session)


def _list(session: CliContext) -> None:
    found = _jobs(session.open()).list()
    if session.json:
        session.emit_all(map(job_record, found))
        return
    if not found:
        session.note("There are no jobs. See `holdfast jobs kinds`, and add one with `holdfast jobs add`.")
        return
    now = datetime.now(UTC)
    rows = [(job.name, job.kind, job.schedule or "by hand", _due(job, now), *(_last(job, now))) for job in found]
    session.out.table(_HEADS, rows, shrink="OUTCOME", styles={"NAME": "yellow"})


def _due(job: Job, now: datetime) -> str:
    if job.paused:
        return "paused"
    if job.due is None:
        return ""
    seconds = int((job.due - now).total_seconds())
    return "now" if seconds <= 0 else in_words(seconds)


def _last(job: Job, now: datetime) -> tuple[str, str]:
    if job.last is None:
        return "never", ""
    failed = f" ({job.failures} in a row)" if job.failures > 1 else ""
    said = job.last.summary or job.last.error
    return ago(job.last.started, now), f"{job.last.outcome}{failed}" + (f": {said}" if said else "")


@command("add")
@click.argument("name")
@click.argument("kind", type=KindNameType())
@click.option("--every", metavar="SPAN", help="Run it again so long after the last time: 30m, 6h, 1d.")
@click.option("--schedule", metavar="WHEN", help="Or when: 'daily at 03:00', 'weekly on sun at 03:00', '0 3 * * *'.")
@click.option("--set", "settings", metavar="KEY=VALUE", multiple=True, help="A setting; the value is JSON, or text.")
@click.option("--paused", is_flag=True, help="Do not run it until it is resumed.")
@click.option("--replace", is_flag=True, help="Take the place of the job that has this name.")
def add(
    session: CliContext,
    name: str,
    kind: str,
    every: str | None,
    schedule: str | None,
    settings: tuple[str, ...],
    paused: bool,
    replace: bool,
) -> None:
    """Add a job. Without a schedule, it runs only when it is told to: `holdfast jobs run NAME`.

    \b
    holdfast jobs add nightly prune --schedule 'daily at 03:00' --set keep_last=100
    holdfast jobs add check verify --every 7d
    """
    if every is not None and schedule is not None:
        raise click.UsageError("--every and --schedule say the same: give one of them")
    when = schedule or (f"every {every}" if every is not None else "")
    store = session.open(write=True)
    made = _jobs(store).add(
        name, kind, schedule=when, settings=pairs(settings, "--set"), paused=paused, replace=replace
    )
    if session.json:
        session.emit(job_record(made))
        return
    due = f", due {_due(made, datetime.now(UTC))}" if made.due else ""
    session.note(f"Added the job {name}{due}.")


@command("remove")
@click.argument("name", type=JOB)
@yes_option
def remove(session: CliContext, name: str, yes: bool) -> None:
    """Forget a job, and its log. A run that is under way goes on to its end."""
    found = _jobs(session.open(write=True))
    with contextlib.suppress(CorruptError):  # it can be removed all the same
        found.get(name)
    session.confirm(f"Remove the job {name}?", yes=yes)
    found.remove(name)
    session.tell(f"Removed the job {name}.", {"name": name, "removed": True})


@command("pause")
@click.argument("name", type=JOB)
def pause(session: CliContext, name: str) -> None:
    """Have a job run no more, until it is resumed."""
    job = _jobs(session.open(write=True)).pause(name)
    session.tell(f"Paused the job {name}.", job_record(job))


@command("resume")
@click.argument("name", type=JOB)
def resume(session: CliContext, name: str) -> None:
    """Have a paused job run again, at the next time of its schedule."""
    job = _jobs(session.open(write=True)).resume(name)
    session.tell(f"Resumed the job {name}, due {_due(job, datetime.now(UTC)) or 'by hand'}.", job_record(job))


@command("run")
@click.argument("name", type=JOB)
def run(session: CliContext, name: str) -> None:
    """Run a job now, in this process, whether it is due or not.

    Ctrl-C ends it between two of its steps.
    """
    store = session.open(write=True)
    with session.progress(name) as progress, _asked_to_stop(session) as asked:
        done = _jobs(store).run(name, progress=progress, stop=lambda: bool(asked))
    if session.json:
        session.emit({"name": name, **run_record(done)})
    else:
        session.out.line(f"{safe(name)}: {_outcome(session, done)} {safe(done.summary)}".rstrip())
    if asked and done.outcome == "stopped":
        raise click.exceptions.Exit(INTERRUPTED)
    if not done.ok:
        raise click.exceptions.Exit(FINDINGS)


def _outcome(session: CliContext, done: JobRun) -> str:
    return session.out.style(done.outcome, _COLORS.get(done.outcome, "bold"))


@command("work")
@click.option("--once", is_flag=True, help="Run what is due now, and end: for a scheduler of your own.")
def work(session: CliContext, once: bool) -> None:
    """Run jobs when they are due, until it is stopped.

    Ctrl-C, or the signal TERM, ends it between two steps of a job; the job is run again by the next runner. With
    --once, the exit code tells whether all went well.
    """
    from holdfast.backends.runtime.drivers import run as driven
    from holdfast.maintenance.jobs.runner import JobRunner

    store = session.open(write=True)
    ended: list[str] = []

    def on_run(job: Job, done: JobRun) -> None:
        ended.append(done.outcome)
        if session.json:
            session.emit({"name": job.name, **run_record(done)})
        else:
            said = done.summary or done.error
            session.out.line(
                f"{local(done.started)}  {safe(job.name)}: {_outcome(session, done)} {safe(said)}".rstrip()
            )
        session.out.flush()

    with session.progress("jobs") as progress:
        runner = JobRunner(store, on_run=on_run, progress=progress)
        with _asked_to_stop(session, lambda: runner.stop(wait=False)) as asked:
            if once:
                driven(runner.round())
            else:
                session.note("Waiting for jobs to be due. Ctrl-C ends.")
                runner.work()
    if signal.SIGINT in asked:
        raise click.exceptions.Exit(INTERRUPTED)
    if once and "failed" in ended:
        raise click.exceptions.Exit(ERROR)
    if once and "findings" in ended:
        raise click.exceptions.Exit(FINDINGS)


@contextlib.contextmanager
def _asked_to_stop(session: CliContext, tell: Callable[[], None] = lambda: None) -> Iterator[list[int]]:
    """While this lasts, a first Ctrl-C or TERM only asks to stop; a second one breaks off."""
    asked: list[int] = []

    def stop(number: int, frame: object) -> None:  # noqa: ARG001
        if asked:
            raise KeyboardInterrupt
        asked.append(number)
        tell()
        session.note("\nEnding after this step. Ctrl-C again breaks off.")

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@command("log")
@click.argument("name", type=JOB)
@click.option("-n", "--limit", type=click.IntRange(1), metavar="N", help="Show so many runs at most.")
def log(session: CliContext, name: str, limit: int | None) -> None:
    """Show the last runs of a job, the latest first."""
    runs = _jobs(session.open()).get(name).runs[:limit]
    if session.json:
        session.emit_all(map(run_record, runs))
        return
    session.out.page()
    rows = [(local(run.started), _took(run), run.outcome, run.by, run.summary or run.error) for run in runs]
    if rows:
        session.out.table(_LOG_HEADS, rows, shrink="")
    else:
        session.note("It has not run yet.")


def _took(run: JobRun) -> str:
    return f"{(run.ended_ns - run.started_ns) / 1e9:.1f} s" if run.ended_ns else ""


@command("kinds")
def kinds(session: CliContext) -> None:
    """List the kinds of jobs, and their settings."""
    from holdfast.maintenance.jobs.builtin import JobTypes

    known = JobTypes()
    for each in map(known.get, known.names()):
        if session.json:
            session.emit({"kind": each.name, "about": each.about, "settings": dict(each.settings)})
            continue
        session.out.line(f"{session.out.style(safe(each.name), 'yellow')}: {safe(each.about)}")
        for key, about in each.settings.items():
            session.out.line(f"    {safe(key)}: {safe(about)}")


for _each in (list_, add, remove, pause, resume, run, work, log, kinds):
    jobs.add_command(_each)
