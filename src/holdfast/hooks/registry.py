"""The hooks of a store: which there are, and calling those that are meant."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from threading import Lock
from typing import Any, Final, NamedTuple

from holdfast.backends.runtime.fork_safety import reinit_after_fork
from holdfast.engine import trace_context
from holdfast.engine.engine import Engine
from holdfast.engine.events import BETWEEN, Event
from holdfast.engine.model.missing import MISSING
from holdfast.engine.patterns import matcher
from holdfast.engine.row_format import Line
from holdfast.engine.trace_context import Trace
from holdfast.errors import InvalidError, NotFoundError, VetoError
from holdfast.hooks import execution_log
from holdfast.hooks.after_queue import AfterQueue, QueuedHook
from holdfast.hooks.context import AFTER, BEFORE, HookContext, HookedChange, HookInfo, HookResult, ReplaceValue
from holdfast.hooks.hook import Hook, log
from holdfast.hooks.runner import HookRunner, answered, call_inline, context_of, finished, is_at_work, overrun

_REMEMBERED = 4096
"""For so many scopes it is remembered which hooks are meant."""

CLOSING = 5.0
"""For how many seconds a store that is closed waits for its after-hooks."""

_SKIPPED: Final = HookResult("skipped")


class MatchedHooks(NamedTuple):
    """The hooks of a point in a scope, and whether each is meant whatever the key."""

    before: tuple[Hook, ...]
    after: tuple[Hook, ...]
    all_keys: bool

    def of(self, key: str) -> tuple[Sequence[Hook], Sequence[Hook]]:
        """Those that are meant for a key."""
        return (self.before, self.after) if self.all_keys else (_of(self.before, key), _of(self.after, key))


class ActivePoints(NamedTuple):
    """The points at which any hooks are meant in a scope."""

    meant: Mapping[str, MatchedHooks]
    wants_old: bool
    """Whether any of them may look at the value that was there before."""


def _of(hooks: Sequence[Hook], key: str) -> list[Hook]:
    return [hook for hook in hooks if not hook.key or matcher(hook.key)(key)]


class HookRegistry:
    """The hooks of a store. `engine.hooks`, once there are any."""

    def __init__(self, engine: Engine, tenant: str) -> None:
        self.engine = engine
        self.tenant = tenant
        self._hooks: tuple[Hook, ...] = ()
        self.known: dict[str, ActivePoints] = {}
        """What was called for lately, by scope: for those who save the call of `points`."""
        self._lock = Lock()
        self._runner = HookRunner()
        self.later = AfterQueue(self._run_after, lambda events: execution_log.write(engine, tenant, events))
        reinit_after_fork(self)

    @staticmethod
    def of(engine: Engine) -> HookRegistry | None:
        """Return the registry of a store, if it has one."""
        assert engine.hooks is None or isinstance(engine.hooks, HookRegistry)  # noqa: S101 - nobody else sets it
        return engine.hooks

    # Which there are --------------------------------------------------------------------------------------------

    def add(self, hook: Hook) -> None:
        """Register a hook."""
        with self._lock:
            if any(each.name == hook.name for each in self._hooks):
                raise InvalidError(
                    f"there is a hook {hook.name!r} already", hint="Give this one another name, or remove that one"
                )
            self._hooks = tuple(sorted((*self._hooks, hook), key=lambda each: each.order))
            self.known = {}

    def remove(self, hook: str | Callable[..., Any]) -> None:
        """Take hooks away: the one of a name, or those that call a function."""
        with self._lock:
            left = tuple(each for each in self._hooks if hook not in (each.name, each.function))
            if len(left) == len(self._hooks):
                raise NotFoundError("there is no such hook", where=repr(hook)[:80], hint="See hooks.list()")
            self._hooks = left
            self.known = {}

    def infos(self) -> list[HookInfo]:
        """All hooks, in the order in which they are called."""
        return [hook.info() for hook in self._hooks]

    def status(self) -> dict[str, int | float | str]:
        """How they are doing, for `Store.status`."""
        if not self._hooks:
            return {}
        off = [hook.name for hook in self._hooks if hook.breaker.until]
        return {
            "hooks": len(self._hooks),
            "hooks_off": ", ".join(off),
            "hooks_waiting": self.later.waiting,
            "hooks_dropped": self.later.dropped,
        }

    def matching(self, point: str, scope: str, key: str = "") -> tuple[Sequence[Hook], Sequence[Hook]]:
        """The before-hooks and the after-hooks that are meant, in order."""
        found = self.points(scope).meant.get(point)
        return ((), ()) if found is None else found.of(key)

    def points(self, scope: str) -> ActivePoints:
        """What is called in a scope."""
        return self.known.get(scope) or self._match(scope)

    def _match(self, scope: str) -> ActivePoints:
        with self._lock:
            here = [hook for hook in self._hooks if not hook.scope or matcher(hook.scope)(scope)]
            points = frozenset[str]().union(*(hook.points for hook in here))
            meant = {point: _meant([hook for hook in here if point in hook.points]) for point in points}
            found = ActivePoints(meant, any(hook.wants_old for hook in here))
            if len(self.known) >= _REMEMBERED:
                self.known = {}
            self.known[scope] = found
            return found

    # Before -----------------------------------------------------------------------------------------------------

    async def before(self, hooks: Sequence[Hook], subject: HookedChange) -> None:
        """Call before-hooks one after another. `subject.stored` is then what they made of it. Raises `VetoError`; what
        is to be told of that has then been stored."""
        for hook in hooks:
            told, result = HookContext(subject), _SKIPPED
            if hook.pure and not hook.breaker.failures:
                looked = _look(hook, told)
                if isinstance(looked, int):
                    if told.notes:
                        subject.notes = {**subject.notes, **told.notes} if subject.notes else told.notes
                    subject.events.append(Event("hook", subject.actor, hook.name, subject.key, "ok", looked))
                    continue
                result = looked
            elif is_at_work(hook.name) or not hook.breaker.lets():
                pass
            elif hook.inline:
                result = _in_time(hook, call_inline(hook.name, subject.trace, hook.function, told))
            else:
                run = self._runner.on_loop if hook.is_async else self._runner.in_thread
                result = await run(hook.function, told, hook.budget, context_of(hook.name, subject.trace))
            veto = self._settle(hook, subject, told, result)
            if veto is not None:
                await self._refuse(subject, veto)

    def _settle(self, hook: Hook, subject: HookedChange, told: HookContext, result: HookResult) -> VetoError | None:
        """Have what a hook did count. Returns the veto, if it comes to one."""
        given = subject.stored
        outcome, changed = result.outcome, False
        if result.answered:
            if told.notes:
                subject.notes = {**subject.notes, **told.notes}
            if result.value is not None:
                try:
                    changed = _take(subject, result.value)
                except Exception as wrong:  # noqa: BLE001 - what can not be stored is the hook's failure
                    outcome = "error"
                    result = HookResult(outcome, None, wrong, result.duration)
                if changed:
                    subject.changed = True
                    outcome = "changed" if outcome == "ok" else outcome
        hook.ended(result)
        detail = b""
        if hook.record or outcome != "ok":
            detail = execution_log.detail(self.engine, hook.record, subject, BEFORE, given, changed, result.error)
        subject.events.append(Event("hook", subject.actor, hook.name, subject.key, outcome, result.duration, detail))
        if outcome == "veto":
            assert isinstance(result.error, VetoError)  # noqa: S101 - that is what makes it one
            return result.error
        if hook.fail_closed and not result.answered and not is_at_work(hook.name):
            what = "is off because it failed again and again" if outcome == "skipped" else "failed"
            refusal = VetoError(
                f"the hook {hook.name!r} {what}, and nothing is changed without it",
                hint="See store.hooks.list() for its last error",
                code="hook-failed",
            )
            refusal.__cause__ = result.error
            return refusal
        return None

    async def _refuse(self, subject: HookedChange, veto: VetoError) -> None:
        """Store that a change was refused, and refuse it."""
        try:
            await execution_log.refused(self.engine, self.tenant, subject)
        except Exception as failure:  # noqa: BLE001 - the veto counts, and tells of it
            veto.add_note(f"And that could not be stored: {failure}")
            log.error("a veto could not be stored", exc_info=failure)
        if not veto.where:
            veto.where = f"key {subject.key!r} of {subject.scope}" if subject.key else subject.scope
        raise veto

    # After ------------------------------------------------------------------------------------------------------

    def after(self, hooks: Sequence[Hook], subject: HookedChange) -> None:
        """Have after-hooks called: those that are known to be quick now, the others soon."""
        if subject.id:
            subject.trace = Trace(subject.trace.correlation, subject.id, subject.trace.artifacts)
        for hook in hooks:
            if hook.pure and not hook.breaker.failures:
                looked = _look(hook, HookContext(subject))
                if isinstance(looked, int):
                    self.later.tell(self._event(hook, subject, "ok", looked))
                else:
                    self.later.tell(self._told(hook, subject, looked))
            elif is_at_work(hook.name):
                self.later.tell(self._told(hook, subject, _SKIPPED))
            elif hook.inline:
                result = _SKIPPED
                if hook.breaker.lets():
                    result = _in_time(hook, call_inline(hook.name, subject.trace, hook.function, HookContext(subject)))
                self.later.tell(self._told(hook, subject, result))
            else:
                self.later.put(QueuedHook(hook, subject, context_of(hook.name, subject.trace)))

    def _run_after(self, job: QueuedHook) -> Event:
        """Run an after-hook, in a thread that does nothing else."""
        hook, result = job.hook, _SKIPPED
        if hook.breaker.lets():
            start = self._runner.on_loop if hook.is_async else self._runner.in_thread
            result = start(hook.function, HookContext(job.subject), hook.budget, job.context).wait()
        return self._told(hook, job.subject, result)

    def _told(self, hook: Hook, subject: HookedChange, result: HookResult) -> Event:
        """Count an execution of an after-hook. Returns what is to be told of it."""
        if result.outcome == "veto":
            result = result._replace(outcome="error")  # it is too late for one
        hook.ended(result)
        detail = b""
        if hook.record or result.outcome != "ok":
            detail = execution_log.detail(self.engine, hook.record, subject, AFTER, subject.stored, False, result.error)
        return self._event(hook, subject, result.outcome, result.duration, detail)

    def _event(self, hook: Hook, subject: HookedChange, outcome: str, duration: int, detail: bytes = b"") -> Event:
        target, now = f"{subject.scope}{BETWEEN}{subject.key}", self.engine.context.clock()
        return Event("hook", subject.actor, hook.name, target, outcome, duration, detail, now, subject.trace)

    def tell(self, subject: HookedChange) -> None:
        """Have it recorded what before-hooks did, where there is no step to tell it with."""
        target, now = f"{subject.scope}{BETWEEN}{subject.key}", self.engine.context.clock()
        for event in subject.events:
            self.later.tell(event._replace(target=target, time=now, trace=subject.trace))

    async def delete(self, line: Line, delete: Callable[[], Awaitable[bool]]) -> bool:
        """Delete a thread, and call the hooks of that. Raises `VetoError`."""
        point, trace = "checkpoint.delete", trace_context.current_or_new()
        subject = HookedChange(point, line.name, "", trace, time.perf_counter_ns())
        before, after = self.matching(point, line.name)
        if before:
            await self.before(before, subject)
            self.tell(subject)
        deleted = await delete()
        if after and deleted:
            self.after(after, subject)
        return deleted

    # Ending -----------------------------------------------------------------------------------------------------

    def drain(self, timeout: float) -> bool:
        """Wait until all after-hooks have run and are recorded. False if they have not by then."""
        return self.later.drain(timeout)

    def close(self, timeout: float = CLOSING) -> None:
        """The same, and end all threads."""
        if not self.later.drain(timeout):
            log.error("after-hooks were not done when the store was closed: %d were left", self.later.waiting)
        self.later.close()
        self._runner.close()

    def reinit_locks(self) -> None:
        """For a forked child: what waits is the parent's to do."""
        self._lock = Lock()
        self._runner.reinit_locks()
        self.later.reinit_locks()
        for hook in self._hooks:
            hook.breaker.reinit_locks()


def _meant(hooks: Sequence[Hook]) -> MatchedHooks:
    before, after = (tuple(hook for hook in hooks if hook.phase == phase) for phase in (BEFORE, AFTER))
    return MatchedHooks(before, after, not any(hook.key for hook in hooks))


def _look(hook: Hook, told: HookContext) -> int | HookResult:
    """Call a hook that does nothing but look, and did not fail lately. Mostly it has nothing to say: it is counted,
    and how long it took is all there is to know of it. Else its result."""
    start = time.perf_counter_ns()
    try:
        value = hook.function(told)
    except Exception as error:  # noqa: BLE001 - whatever a hook raises is its result
        return finished(start, error=error)
    duration = time.perf_counter_ns() - start
    if value is not None or duration > hook.budget * 1e9:
        return _in_time(hook, answered(start, value))
    hook.took(duration)
    return duration


def _in_time(hook: Hook, result: HookResult) -> HookResult:
    """The result of a hook that ran here. Nobody was spared the wait for one that was late, so its answer counts."""
    if result.outcome != "ok" or result.duration <= hook.budget * 1e9:
        return result
    return HookResult("late", result.value, overrun(hook.budget), result.duration, answered=True)


def _take(subject: HookedChange, value: Any) -> bool:
    """Have what a hook returned be the value. Returns whether it is another one."""
    if subject.stored is MISSING:
        raise InvalidError(
            "a hook returned a value where something is deleted", hint="Return nothing, or raise VetoError"
        )
    stored = subject.dump(subject.key, value.value if isinstance(value, ReplaceValue) else value)
    if execution_log.flat(stored) == execution_log.flat(subject.stored):
        return False
    subject.stored = stored
    return True
