"""Replaying recorded calls of hooks in another process, against a fork of the state: the host's side."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from itertools import islice
from typing import Any, TypeAlias

import msgspec

from holdfast._fields import computed
from holdfast.backends.runtime.drivers import run as drive
from holdfast.codec import Codec
from holdfast.engine.events import lines_of
from holdfast.engine.model.scopes import parse_place
from holdfast.engine.row_format import Line
from holdfast.errors import ConflictError, DeniedError, InvalidError, UnsupportedError
from holdfast.hooks.context import HookExecution
from holdfast.maintenance.jobs.types import JobResult, JobType, known_only
from holdfast.security.audit.thread_audit import record as record_action
from holdfast.store.replay.process import TIMEOUT, ReplayProcess
from holdfast.store.replay.threads import copy_lines_of, require_owner
from holdfast.store.store import Store
from holdfast.time_parser import Time

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
