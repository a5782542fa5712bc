"""Replaying recorded threads and agents in another process: the host's side."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, TypeAlias

import msgspec

from holdfast._fields import computed
from holdfast.agents.storage.agent_line import AgentLine
from holdfast.backends.fsutil import open_private
from holdfast.backends.runtime.drivers import run as drive
from holdfast.codec import Codec
from holdfast.engine.checked_rows import clear_refused
from holdfast.engine.events import lines_of
from holdfast.engine.model.scopes import parse_place
from holdfast.engine.namespaces import CONTENT_KINDS, split_name
from holdfast.engine.row_format import Line
from holdfast.errors import ConflictError, DeniedError, InvalidError, NotFoundError, UnsupportedError
from holdfast.hooks.context import HookExecution
from holdfast.maintenance.erasure.store_copy import copy_lines
from holdfast.maintenance.jobs.types import JobResult, JobType, known_only
from holdfast.security.audit.thread_audit import record as record_action
from holdfast.store.opener import open as open_store
from holdfast.store.replay.process import TIMEOUT, ReplayProcess
from holdfast.store.replay.report import ReplayReport
from holdfast.store.store import Store
from holdfast.store.store_rows import pack_rows
from holdfast.time_parser import Time

_LISTED = 5
"""The number of threads that the summary of a job lists."""


def record(store: Store, thread: str, file: str | os.PathLike[str]) -> int:
    """Write a recorded thread to a file, to be replayed anywhere: it has what the thread said, in the clear.

    Returns the number of bytes."""
    lines = lines_to_export(store, thread)
    data = io.BytesIO()
    with copied(store, lines) as scratch:
        scratch.maintenance.export(data, kinds=CONTENT_KINDS)
    with open_private(Path(file), "wb") as out:
        return out.write(data.getvalue())


def lines_to_export(store: Store, thread: str) -> list[Line]:
    """Return the lines of a thread that is written to a file. `UnsupportedError` if nothing leaves the store in the
    clear."""
    lines = _lines_of(store, thread)
    if not store._handle.engine.context.rows.may_be_clear("export"):
        raise clear_refused("export")
    return lines


def run(
    source: Store | str | os.PathLike[str],
    graph: str,
    *,
    thread: str | None = None,
    since: str | None = None,
    until: str | None = None,
    changes: Mapping[str, Any] | None = None,
    env: Mapping[str, str] | None = None,
    timeout: float = TIMEOUT,
    only_open: bool = False,
) -> ReplayReport:
    """Replay a recorded thread with a graph of today's code, which is named as `module:name`, in another process.

    `source` is an open store, or a file that `record` wrote. No model and no tool is called; sockets, writes and
    further processes are blocked there. `since` and `until` name the checkpoints to replay from and up to, by id.
    `changes` replaces results of calls, by the names that reports give them: `{"2:act#0": "rain"}`. `env` is the
    environment of the process, beside `PATH` and the like: it gets no credentials. With `only_open`, nothing of
    a thread that is finished is replayed.
    """
    if isinstance(source, Store):
        if thread is None:
            raise InvalidError("a thread of the store is replayed", hint="Name it: replay.run(store, graph, thread=…)")
        since, until = (None if at is None else source.thread(thread).get(at=at).id for at in (since, until))
        recording = _copy_of(source, thread)
    else:
        recording = _read(source)
    order = {"thread": thread, "since": since, "until": until, "changes": dict(changes or {}), "only_open": only_open}
    return ask_for_graph(recording, graph, env, timeout, order)


def ask_for_graph(
    recording: bytes,
    graph: str,
    env: Mapping[str, str] | None,
    timeout: float,
    order: Mapping[str, Any] | None = None,
) -> ReplayReport:
    """Have another process replay a recording with a graph."""
    whole: dict[str, Any] = {"thread": None, "since": None, "changes": {}, "only_open": False}
    return _ask("threads", {**whole, **(order or {}), "graph": graph}, recording, env, timeout)


def run_agent(
    store: Store, agent: str, kind: str, *, env: Mapping[str, str] | None = None, timeout: float = TIMEOUT
) -> ReplayReport:
    """Replay the recorded transitions of an agent with today's code: of its class, which `kind` names as
    `module:Class`. It is as `run` is; the agent was attached with `record=True`."""
    line = AgentLine(require_owner(store)._handle, agent)
    drive(line.require_step())
    recording = copy_lines_of(store, [line.line])
    return _ask("agents", {"agent": agent, "kind": kind}, recording, env, timeout)


def run_open(
    store: Store,
    graph: str | None = None,
    *,
    agent: str | None = None,
    prefix: str = "",
    env: Mapping[str, str] | None = None,
    timeout: float = TIMEOUT,
) -> Iterator[ReplayReport]:
    """Replay what is not finished, one after the other, so that it is known before a release whether it can go on with
    the new code: threads of a `graph` that an interrupt or an error stopped, or whose process ended; and agents of the
    class that `agent` names as `module:Class`, whose machine is in no final state."""
    require_owner(store)
    if graph is None and agent is None:
        raise InvalidError("threads or agents are replayed", hint="Name their code: graph=…, or agent=…")
    for info in store.threads(prefix=prefix).all() if graph is not None else ():
        if split_name(info.thread)[1]:
            continue  # a subgraph's, which is replayed with its thread
        found = run(store, str(graph), thread=info.name, env=env, timeout=timeout, only_open=True)
        if found.is_open:
            yield found
    if agent is None:
        return
    others: set[str] = set()
    with ReplayProcess("agents", env, timeout) as process:
        for each in store.agents.list(prefix=prefix).all():
            if each.kind in others:
                continue
            order = {"agent": each.id, "kind": agent, "only_open": True}
            answer = process.ask(order, copy_lines_of(store, [AgentLine(store._handle, each.id).line]))
            if answer.get("skipped") == "other":
                others.add(each.kind)
            elif "skipped" not in answer:
                yield ReplayReport.of_json(answer)


def compare(
    a: Store | str | os.PathLike[str],
    b: Store | str | os.PathLike[str],
    *,
    thread: str | None = None,
    other: str | None = None,
) -> ReplayReport:
    """Compare two recordings, of one thread each: files, or threads of stores. The report has the first difference."""
    first = _copy_of(a, thread or "") if isinstance(a, Store) else _read(a)
    second = _copy_of(b, other or thread or "") if isinstance(b, Store) else _read(b)
    order = {"thread": thread, "other": other or thread, "size": len(first)}
    return _ask("threads", order, first + second, None, TIMEOUT)


def _ask(
    subject: str, order: Mapping[str, Any], recording: bytes, env: Mapping[str, str] | None, timeout: float
) -> ReplayReport:
    with ReplayProcess(subject, env, timeout) as process:
        return ReplayReport.of_json(process.ask(order, recording))


def _copy_of(store: Store, thread: str) -> bytes:
    """Return a thread with its namespaces, as the process gets it."""
    return copy_lines_of(store, _lines_of(store, thread))


def _lines_of(store: Store, thread: str) -> list[Line]:
    """Return the lines of a thread. `NotFoundError` if there is none."""
    handle = require_owner(store)._handle
    lines = drive(handle.engine.lines.of_threads(handle.tenant, [handle.thread_line(thread).name]))
    if not lines:
        raise NotFoundError("there is no such thread", where=f"thread {thread!r}"[:200], hint="See store.threads()")
    return lines


def copy_lines_of(store: Store, lines: Sequence[Line]) -> bytes:
    """Return lines as the process gets them, and record that. They are copied first: it has no key to read those of an
    encrypted store."""
    with copied(store, lines) as scratch:
        return pack_rows(scratch)


@contextmanager
def copied(store: Store, lines: Sequence[Line]) -> Iterator[Store]:
    """Copy lines to a store in memory for a replay, and record that."""
    handle = store._handle
    with suppress(DeniedError):  # the store is open for reading only: it records nothing
        drive(record_action(handle.engine, lines, "replay"))
    with open_store("memory://", tenant=store.tenant) as scratch:
        drive(copy_lines(handle.engine, scratch._handle.engine, {}, handle.tenant, None, lines))
        yield scratch


def require_owner(store: object) -> Store:
    """Return a store that can be replayed from: an open one, itself."""
    if not isinstance(store, Store) or "_handle" not in vars(store):  # a served one has none
        what = "a served store" if isinstance(store, Store) else type(store).__name__
        raise InvalidError(
            f"the owner of a store replays what it recorded, from the open store, not {what}",
            hint="Open the store itself with holdfast.open, where it is",
        )
    return store


def _read(file: str | os.PathLike[str]) -> bytes:
    """Return a recording that `record` wrote, as the process gets it."""
    given: object = file
    if not isinstance(given, str | os.PathLike):
        require_owner(given)
    try:
        data = Path(file).read_bytes()
    except OSError as error:
        raise NotFoundError(
            f"the recording cannot be read: {error.strerror}", where=str(file)[:200], hint="Make one with replay.record"
        ) from error
    with open_store("memory://") as scratch:
        scratch.maintenance.import_(io.BytesIO(data))
        return pack_rows(scratch)


def replay_job(graph: str) -> JobType:
    """Return a type of jobs that replays recorded threads with a graph, named as `module:name`:
    `JobTypes.add(replay_job("app.agent:graph"))`, or `holdfast jobs work --graph app.agent:graph`. Whoever runs the
    jobs names the code: who may store a job may not choose code."""

    def check(settings: Mapping[str, Any]) -> None:
        known_only(settings, thread=str, prefix=str)
        if len(settings) > 1:
            raise InvalidError("a job replays one thread, or those that are not finished", hint="Give thread or prefix")

    def work(job: Any) -> JobResult:
        thread = job.settings.get("thread")
        found = [run(job.store, graph, thread=thread)] if thread else run_open(job.store, graph, **job.settings)
        count, differing = 0, list[str]()
        for report in found:
            count += 1
            differing += [] if report.matches else [report.thread]
            job.progress(count, None, report.thread)
        summary = f"{count} threads replayed, {len(differing)} differ"
        if differing:
            summary += f": {', '.join(differing[:_LISTED])}"
        return JobResult(summary, not differing)

    settings = {
        "thread": "the name of a thread, if not all that are not finished",
        "prefix": "only threads whose names start with it",
    }
    return JobType("replay", "replay recorded threads, and compare them with the recording", work, check, settings)


_BATCH = 1000
"""How many calls one process replays."""

_CHANGEABLE = ("key", "value", "old", "actor", "metadata")

Changes: TypeAlias = Mapping[str, Any] | Callable[[HookExecution], Mapping[str, Any] | None]
"""Fields of calls that are replaced in a replay: for all calls, or for each."""

_NOT_REPLAYED = ("late", "skipped")
"""Nobody knows how a late call ended, and a skipped one was not made."""


class ReplayedCall(msgspec.Struct, frozen=True):
    """A replayed call of a hook beside the recorded one: outcomes, times in seconds, and the difference as a diff."""

    hook: str
    scope: str
    key: str
    recorded_outcome: str
    outcome: str
    recorded_seconds: float
    seconds: float
    diff: str = ""
    effect: str = ""
    """An effect that the code was stopped from: using the network, writing a file, starting a process."""

    @property
    @computed
    def matches(self) -> bool:
        """Whether it ended as the recorded one did."""
        return not self.diff and not self.effect and self.outcome == self.recorded_outcome


class HookReplay(msgspec.Struct, frozen=True):
    """The replay of some calls of hooks. `skipped` counts those that are not recorded in full, or were late."""

    calls: tuple[ReplayedCall, ...]
    skipped: int = 0

    @property
    def differing(self) -> list[ReplayedCall]:
        """The calls that ended otherwise."""
        return [call for call in self.calls if not call.matches]

    @property
    def summary(self) -> str:
        """Return a line for people."""
        before, now = sum(call.recorded_seconds for call in self.calls), sum(call.seconds for call in self.calls)
        skipped = f", {self.skipped} not recorded in full" if self.skipped else ""
        return f"{len(self.calls)} calls, {len(self.differing)} differ{skipped}; {before:.3f} s then, {now:.3f} s now"

    def check(self) -> HookReplay:
        """Raise `ConflictError` if a call differs."""
        for call in self.differing[:1]:
            raise ConflictError(
                f"the hook {call.hook} ends otherwise: {call.outcome}, and was {call.recorded_outcome}"
                + (f"\n{call.diff}" if call.diff else "")
                + (f"; it {call.effect}" if call.effect else ""),
                where=f"{call.scope} {call.key}",
                hint="See each call in the report",
                code="replay-diverged",
            )
        return self


def run_hooks(
    store: Store,
    register: str,
    *,
    hook: str | None = None,
    scope: str | None = None,
    key: str | None = None,
    since: Time | None = None,
    reference: str | None = None,
    limit: int = _BATCH,
    value: Any = None,
    changes: Changes | None = None,
    stop: Callable[[ReplayedCall], bool] | None = None,
    env: Mapping[str, str] | None = None,
    timeout: float = TIMEOUT,
) -> HookReplay:
    """Replay recorded calls of hooks, the oldest first, with the hooks that a function of today's code registers.

    `register` names it as `module:function`: it is called with a fork of the store, in another process, and whatever
    the hooks change there is thrown away. With a `reference`, only that call is replayed. `value` is given to them in
    place of the recorded one; `changes` are others of `key`, `value`, `old`, `actor` and `metadata`, for all calls, or
    a function that returns those of a recorded call. With `stop`, calls are replayed one by one, until it returns True.
    Only calls that were recorded in full are replayed. Replaying needs the store itself, not an identity's view of it,
    and is recorded in the audit.
    """
    require_owner(store)
    if reference is not None:
        found = [store.hooks.get(reference)]
        hook = found[0].hook
    else:
        history = store.hooks.history(hook, scope=scope, key=key, since=since, limit=min(limit, _BATCH))
        calls = (each for each in history.all() if each.outcome != "skipped")
        found = list(islice(calls, limit))[::-1]
    exact = [each for each in found if each.is_exact and each.outcome not in _NOT_REPLAYED]
    if found and not exact:
        raise UnsupportedError(
            "these calls are not recorded in full, and cannot be replayed",
            where="" if hook is None else f"hook {hook}",
            hint="Register the hook with record=True",
            code="replay-incomplete",
        )
    handle = store._handle
    lines = [Line(handle.tenant, name) for each in exact[:1] for name in lines_of(each.scope)[:1]]
    with suppress(DeniedError):  # the store is open for reading only: it records nothing
        drive(record_action(handle.engine, lines, "replay", {"hook": hook or "", "calls": len(exact)}))
    replayed: list[ReplayedCall] = []
    if not exact:
        return HookReplay((), 0)
    with ReplayProcess("hooks", env, timeout) as process:
        size = 1 if stop is not None else _BATCH
        for start in range(0, len(exact), size):
            order = {"register": register, "tenant": store.tenant}
            described = Codec().pack([_describe(each, value, changes) for each in exact[start : start + size]])
            answer = process.ask(order, described, partial(_copy_scope, store))  # if a hook reads the state of a scope
            replayed += [ReplayedCall(**each) for each in answer["calls"]]
            if stop is not None and stop(replayed[-1]):
                break
    return HookReplay(tuple(replayed), len(found) - len(exact))


def _copy_scope(store: Store, scope: str) -> bytes:
    """Return the state of a scope as a file; empty if there is none."""
    line = store._handle.line(parse_place(scope))
    if drive(store._handle.engine.lines.load_tip(line)) is None:
        return b""
    return copy_lines_of(store, [line])


def _describe(execution: HookExecution, value: Any, changes: Changes | None) -> dict[str, Any]:
    """Return a recorded call as the process gets it."""
    detail = dict(execution.detail)
    if value is not None:
        detail["value"] = value
    fields = {name: getattr(execution, name) for name in execution.__struct_fields__ if name != "detail"}
    changed = (changes(execution) if callable(changes) else changes) or {}
    for name in changed:
        if name not in _CHANGEABLE:
            raise InvalidError(
                f"a replay cannot change {str(name)[:40]!r} of a call", hint=f"It changes {', '.join(_CHANGEABLE)}"
            )
    return {**fields, **detail, **changed}


def hook_replay_job(register: str) -> JobType:
    """Return a type of jobs that replays calls of hooks: `JobTypes.add(hook_replay_job("app.hooks:register"))`. What is
    imported is named by the program, not by the job."""

    def check(settings: Mapping[str, Any]) -> None:
        known_only(settings, hook=str, scope=str, since=str, limit=int)

    def work(job: Any) -> JobResult:
        found = run_hooks(job.store, register, **job.settings)
        return JobResult(found.summary, not found.differing)

    settings = {
        "hook": "the name of a hook, if not all",
        "scope": "a scope, if not all",
        "since": "the oldest calls to replay, such as 1d",
        "limit": "how many calls to replay at most",
    }
    return JobType("replay-hooks", "replay recorded calls of hooks, and compare how they end", work, check, settings)
