"""What somebody should look at: the list on the overview, the most urgent first."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from datetime import UTC, datetime, timedelta
from itertools import islice
from threading import Thread
from time import monotonic
from typing import NamedTuple, TypeVar
from weakref import WeakKeyDictionary

from holdfast.engine.thread_status import ThreadState
from holdfast.engine.types import ThreadStatus
from holdfast.errors import CorruptError, DeniedError, HoldfastError
from holdfast.interfaces.cli.formatting import plural
from holdfast.interfaces.http.problems import to_problem
from holdfast.interfaces.http.service import Call, Service
from holdfast.interfaces.http.values import preview_of
from holdfast.interfaces.web.answer_plan import question_text
from holdfast.interfaces.web.page_renderer import query_text, segment, shell_text, short_span
from holdfast.interfaces.web.subgraphs import thread_title
from holdfast.maintenance.jobs.job import Job
from holdfast.security.sensitive.credential_check import CredentialReport

T = TypeVar("T")

_EACH = 5
"""How many of a kind are listed."""

_RUNS = 100
"""Among so many of the latest runs, those that failed are looked for."""

_STEPS = 200
_SECONDS = 0.1
"""How long steps without an outcome are looked for in running agents."""

_LOOK_SECONDS = 0.3
"""How long one look for credentials begins with further threads; the next view of the overview goes on. A large thread
takes longer than a view waits."""

_WAIT_SECONDS = 0.6
"""How long a view waits for a look to end."""

_looks: WeakKeyDictionary[Service, Future[CredentialReport]] = WeakKeyDictionary()
"""The look for credentials of each server that is going on, or that nobody has seen the result of."""

_LATE = timedelta(minutes=15)
"""A job that was due so long ago is overdue."""

UNKNOWN_OUTCOME = "step-outcome-unknown"


class AttentionItem(NamedTuple):
    """Something that somebody should look at."""

    kind: str
    """Its state in a word, as in lists."""
    what: str
    why: str
    command: str = ""
    """What to do, in one line or several."""
    address: str = ""
    """The page that has more of it."""


class Reads:
    """Reads parts of the overview. A part that is damaged is left out, and said to be."""

    def __init__(self) -> None:
        self.damage: list[AttentionItem] = []

    def attempt(self, what: str, read: Callable[[], T]) -> T | None:
        """Read a part; None if it is damaged, or the store owner's."""
        try:
            return read()
        except CorruptError as error:
            problem = to_problem(error)
            why, command = f"{problem.detail}. {problem.hint}", f"holdfast explain {problem.code}"
            self.damage.append(AttentionItem("damaged", f"{what} cannot be read", why, command))
        except DeniedError:
            pass
        return None

    def items(self, what: str, read: Callable[[], Iterable[AttentionItem]]) -> list[AttentionItem]:
        """Read items; none if they are damaged, or the store owner's."""
        return self.attempt(what, lambda: list(read())) or []


def list_attention(call: Call, jobs: Iterable[Job], reads: Reads) -> list[AttentionItem]:
    """List what needs attention: what waits for a person, what failed, what nobody does."""
    jobs = list(jobs)
    return [
        *reads.items("Waiting threads", lambda: _threads(call, "waiting")),
        *reads.items("Failed threads", lambda: _threads(call, "failed")),
        *reads.items("Agents", lambda: _agents(call)),
        *reads.items("Durable steps", lambda: _steps(call)),
        *reads.items("Runs", lambda: _runs(call)),
        *reads.items("Calls of hooks", lambda: _deliveries(call)),
        *(_failing(each) for each in jobs if each.failures),
        *reads.items("Alerts", lambda: _alerts(call)),
        *(_overdue(each) for each in jobs if each.due and each.due < datetime.now(UTC) - _LATE),
        *reads.items("Credentials", lambda: _credentials(call)),
        *reads.damage,
    ]


def _threads(call: Call, status: ThreadState) -> Iterator[AttentionItem]:
    found = list(call.store.threads(status=status, limit=_EACH + 1))
    for each in found[:_EACH]:
        why = describe_status(call.store.thread(each.thread).status())
        yield AttentionItem(status, thread_title(each.thread), why, address=f"/threads/{segment(each.thread)}")
    if len(found) > _EACH:
        yield AttentionItem(status, "More threads", f"are {status}", address=f"/threads{query_text(status=status)}")


def describe_status(status: ThreadStatus) -> str:
    """Say in a line why a thread waits, or failed."""
    at = f"{status.node}: " if status.node else ""
    if status.questions:
        first = status.questions[0]
        more = len(status.questions) - 1
        asked = question_text(first.value) or preview_of(first.value)
        asked = f"{first.node}: {asked}" if first.node else asked
        return f"{asked} and {plural(more, 'other question')}" if more else asked
    return at + ": ".join(filter(None, (status.error, status.message)))


def _agents(call: Call) -> Iterator[AttentionItem]:
    try:
        for each in call.store.agents.list(status="failed", limit=_EACH):
            why = "its state cannot be read" if each.damaged else f"failed in the state {each.state or 'none'}"
            yield AttentionItem("failed", f"Agent {each.id}", why, address=f"/agents/{segment(each.id)}")
        for each in call.store.agents.list(pending=True, limit=_EACH):
            why, command = f"left something half-done: {each.pending}", f"holdfast agent resolve {shell_text(each.id)}"
            yield AttentionItem("half-done", f"Agent {each.id}", why, command, f"/agents/{segment(each.id)}")
    except CorruptError:
        raise
    except HoldfastError:
        return  # the agents of others are not shown


def _steps(call: Call) -> Iterator[AttentionItem]:
    """Yield agents with durable steps that may have no outcome. Looks for a moment, and in those that are running."""
    if call.caller.identity:
        return
    until = monotonic() + _SECONDS
    for agent in islice(call.store.agents.list(status="running", limit=_STEPS).all(), _STEPS):
        open_ = [each for each in call.store.agents.steps(agent.id).list(limit=_STEPS) if each.state == "running"]
        if open_:
            why = f"{plural(len(open_), 'step')} without an outcome: {open_[0].key}"
            yield AttentionItem(
                "unknown", f"Agent {agent.id}", why, address=f"/agents/{segment(agent.id)}?unresolved=1"
            )
        if monotonic() > until:
            return


def _runs(call: Call) -> Iterator[AttentionItem]:
    failed = [each for each in call.owned.runs.list(limit=_RUNS) if each.state == "failed"]
    for each in sorted(failed, key=lambda run: run.error_code != UNKNOWN_OUTCOME)[:_EACH]:
        kind = "unknown" if each.error_code == UNKNOWN_OUTCOME else "failed"
        yield AttentionItem(kind, f"Run of {each.graph}", each.error, address=f"/runs/{segment(each.id)}")
    if len(failed) > _EACH:
        yield AttentionItem("failed", "More runs", "failed", address="/runs?state=failed")


def _deliveries(call: Call) -> Iterator[AttentionItem]:
    given_up = call.owned.hooks.undelivered(state="failed", limit=_EACH + 1)
    if given_up:
        count = f"more than {_EACH} calls" if len(given_up) > _EACH else plural(len(given_up), "call")
        why = f"{count} of durable hooks were given up: {given_up[0].hook}, {given_up[0].error}"
        yield AttentionItem("failed", "Calls of hooks", why, address="/hooks/undelivered")


def _failing(job: Job) -> AttentionItem:
    last = job.runs[0].error or job.runs[0].summary if job.runs else ""
    why, command = f"failed {job.failures} times in a row. {last}", f"holdfast jobs log {shell_text(job.name)}"
    return AttentionItem("failed", f"Job {job.name}", why, command, f"/jobs/{segment(job.name)}")


def _overdue(job: Job) -> AttentionItem:
    late = short_span((datetime.now(UTC) - job.due).total_seconds()) if job.due else ""
    why = f"was due {late} ago: no process runs jobs"
    return AttentionItem("late", f"Job {job.name}", why, "holdfast jobs work", f"/jobs/{segment(job.name)}")


def _alerts(call: Call) -> Iterator[AttentionItem]:
    for each in call.owned.alerts.list():
        if each.state == "firing" and each.rule != "credentials":  # below, with the places
            yield AttentionItem("firing", f"Alert {each.rule}", each.message, f"holdfast explain {each.rule}", "/jobs")


def in_background(work: Callable[[], T]) -> Future[T]:
    """Start work that the end of the program does not wait for."""
    result: Future[T] = Future()

    def run() -> None:
        try:
            result.set_result(work())
        except Exception as error:  # noqa: BLE001 - whoever asks for the result gets it
            result.set_exception(error)

    Thread(target=run, name="holdfast-look", daemon=True).start()
    return result


def _credentials(call: Call) -> Iterator[AttentionItem]:
    look, redaction = _looks.get(call.service), call.owned.redaction
    if look is None:
        look = _looks[call.service] = in_background(lambda: redaction.credentials(seconds=_LOOK_SECONDS))
    try:
        found = look.result(_WAIT_SECONDS)
    except TimeoutError:
        return  # a later view has what it finds
    finally:
        if look.done():
            _looks.pop(call.service, None)
    if found.findings:
        yield AttentionItem("findings", "Credentials", found.describe(), "\n".join(found.remedies))
