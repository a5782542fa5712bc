"""The hooks of a store: which there are, and calling those that are meant."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from threading import Lock
from typing import Any, Final, NamedTuple

from holdfast.backends.forks import renew_after_fork
from holdfast.engine.core import Engine
from holdfast.errors import Invalid, NotFound, Veto
from holdfast.hooks import recorded
from holdfast.hooks.calls import AFTER, BEFORE, Call, Changed, HookInfo, Result, Subject
from holdfast.hooks.hook import Hook, log
from holdfast.hooks.later import Job, Later
from holdfast.hooks.running import Runner, call, call_inline, context_of, is_at_work, overrun
from holdfast.model.missing import MISSING
from holdfast.security.events import BETWEEN, Event
from holdfast.security.patterns import matcher

_REMEMBERED = 4096
"""For so many points and scopes it is remembered which hooks are meant."""

CLOSING = 5.0
"""For how many seconds a store that is closed waits for its after-hooks."""

_SKIPPED: Final = Result("skipped")


@dataclass(slots=True)
class Ran:
    """What before-hooks did with a subject: rows that tell of it, and fields for the audit row of the change."""

    subject: Subject
    events: list[Event] = field(default_factory=list)
    notes: dict[str, Any] = field(default_factory=dict)
    changed: bool = False


class _Matching(NamedTuple):
    """The hooks of a point and a scope, and whether each is meant whatever the key."""

    before: tuple[Hook, ...]
    after: tuple[Hook, ...]
    all_keys: bool


def _of(hooks: Sequence[Hook], key: str) -> list[Hook]:
    return [hook for hook in hooks if not hook.key or matcher(hook.key)(key)]


class Registry:
    """The hooks of a store. `engine.hooks`, once there are any."""

    def __init__(self, engine: Engine, tenant: str) -> None:
        self.engine = engine
        self.tenant = tenant
        self._hooks: tuple[Hook, ...] = ()
        self._matching: dict[tuple[str, str], _Matching] = {}
        self._lock = Lock()
        self._runner = Runner()
        self.later = Later(self._run_after, lambda events: recorded.write(engine, tenant, events))
        renew_after_fork(self)

    # Which there are --------------------------------------------------------------------------------------------

    def add(self, hook: Hook) -> None:
        """Register a hook."""
        with self._lock:
            if any(each.name == hook.name for each in self._hooks):
                raise Invalid(
                    f"there is a hook {hook.name!r} already", hint="Give this one another name, or remove that one"
                )
            self._hooks = tuple(sorted((*self._hooks, hook), key=lambda each: each.order))
            self._matching = {}

    def remove(self, hook: str | Callable[..., Any]) -> None:
        """Take hooks away: the one of a name, or those that call a function."""
        with self._lock:
            left = tuple(each for each in self._hooks if hook not in (each.name, each.function))
            if len(left) == len(self._hooks):
                raise NotFound("there is no such hook", where=repr(hook)[:80], hint="See hooks.list()")
            self._hooks = left
            self._matching = {}

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
        found = self._matching.get((point, scope))
        if found is None:
            found = self._match(point, scope)
        return (found.before, found.after) if found.all_keys else (_of(found.before, key), _of(found.after, key))

    def _match(self, point: str, scope: str) -> _Matching:
        with self._lock:
            meant = [
                hook for hook in self._hooks if point in hook.points and (not hook.scope or matcher(hook.scope)(scope))
            ]
            before, after = (tuple(hook for hook in meant if hook.phase == phase) for phase in (BEFORE, AFTER))
            found = _Matching(before, after, not any(hook.key for hook in meant))
            if len(self._matching) >= _REMEMBERED:
                self._matching = {}
            self._matching[point, scope] = found
            return found

    # Before -----------------------------------------------------------------------------------------------------

    async def before(self, hooks: Sequence[Hook], subject: Subject) -> Ran:
        """Call before-hooks one after another. `subject.stored` is then what they made of it. Raises `Veto`; what is
        to be told of that has then been stored."""
        ran = Ran(subject)
        for hook in hooks:
            told = Call(subject)
            if is_at_work(hook.name) or not hook.breaker.lets():
                result = _SKIPPED
            elif hook.inline:
                result = _inline(hook, subject, told)
            else:
                run = self._runner.on_loop if hook.is_async else self._runner.in_thread
                result = await run(hook.function, told, hook.budget, context_of(hook.name, subject.trace))
            veto = self._settle(hook, ran, told, result)
            if veto is not None:
                await self._refuse(ran, veto)
        return ran

    def _settle(self, hook: Hook, ran: Ran, told: Call, result: Result) -> Veto | None:
        """Have what a hook did count. Returns the veto, if it comes to one."""
        subject, given = ran.subject, ran.subject.stored
        outcome, changed = result.outcome, False
        if result.answered:
            if told.notes:
                ran.notes.update(told.notes)
            if result.value is not None:
                try:
                    changed = _take(subject, result.value)
                except Exception as wrong:  # noqa: BLE001 - what can not be stored is the hook's failure
                    outcome = "error"
                    result = Result(outcome, None, wrong, result.duration)
                if changed:
                    ran.changed = True
                    outcome = "changed" if outcome == "ok" else outcome
        hook.ended(result)
        detail = b""
        if hook.record or outcome != "ok":
            detail = recorded.detail(self.engine, hook.record, subject, BEFORE, given, changed, result.error)
        ran.events.append(Event("hook", subject.actor, hook.name, subject.key, outcome, result.duration, detail))
        if outcome == "veto":
            assert isinstance(result.error, Veto)  # noqa: S101 - that is what makes it one
            return result.error
        if hook.fail_closed and not result.answered and not is_at_work(hook.name):
            what = "is off because it failed again and again" if outcome == "skipped" else "failed"
            refusal = Veto(
                f"the hook {hook.name!r} {what}, and nothing is changed without it",
                hint="See store.hooks.list() for its last error",
                code="hook-failed",
            )
            refusal.__cause__ = result.error
            return refusal
        return None

    async def _refuse(self, ran: Ran, veto: Veto) -> None:
        """Store that a change was refused, and refuse it."""
        subject = ran.subject
        try:
            await recorded.refused(self.engine, self.tenant, subject, ran.events)
        except Exception as failure:  # noqa: BLE001 - the veto counts, and tells of it
            veto.add_note(f"And that could not be stored: {failure}")
            log.error("a veto could not be stored", exc_info=failure)
        if not veto.where:
            veto.where = f"key {subject.key!r} of {subject.scope}" if subject.key else subject.scope
        raise veto

    # After ------------------------------------------------------------------------------------------------------

    def after(self, hooks: Sequence[Hook], subject: Subject) -> None:
        """Have after-hooks called: those that are known to be quick now, the others soon."""
        if subject.id:
            subject.trace = subject.trace._replace(cause=subject.id)
        for hook in hooks:
            if is_at_work(hook.name):
                self.later.tell(self._told(hook, subject, _SKIPPED))
            elif hook.inline:
                result = _SKIPPED
                if hook.breaker.lets():
                    result = _inline(hook, subject, Call(subject))
                self.later.tell(self._told(hook, subject, result))
            else:
                self.later.put(Job(hook, subject, context_of(hook.name, subject.trace)))

    def _run_after(self, job: Job) -> Event:
        """Run an after-hook, in a thread that does nothing else."""
        hook, result = job.hook, _SKIPPED
        if hook.breaker.lets():
            start = self._runner.on_loop if hook.is_async else self._runner.in_thread
            result = start(hook.function, Call(job.subject), hook.budget, job.context).wait()
        return self._told(hook, job.subject, result)

    def _told(self, hook: Hook, subject: Subject, result: Result) -> Event:
        """Count an execution of an after-hook. Returns what is to be told of it."""
        if result.outcome == "veto":
            result = result._replace(outcome="error")  # it is too late for one
        hook.ended(result)
        detail = b""
        if hook.record or result.outcome != "ok":
            detail = recorded.detail(self.engine, hook.record, subject, AFTER, subject.stored, False, result.error)
        return Event(
            "hook",
            subject.actor,
            hook.name,
            f"{subject.scope}{BETWEEN}{subject.key}",
            result.outcome,
            result.duration,
            detail,
            self.engine.ground.clock(),
            subject.trace,
        )

    def tell(self, ran: Ran) -> None:
        """Have it recorded what before-hooks did, where there is no step to tell it with."""
        subject, now = ran.subject, self.engine.ground.clock()
        target = f"{subject.scope}{BETWEEN}{subject.key}"
        for event in ran.events:
            self.later.tell(event._replace(target=target, time=now, trace=subject.trace))

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

    def renew_locks(self) -> None:
        """For a forked child: what waits is the parent's to do."""
        self._lock = Lock()
        self._runner.renew_locks()
        self.later.renew_locks()
        for hook in self._hooks:
            hook.breaker.renew_locks()


def _inline(hook: Hook, subject: Subject, told: Call) -> Result:
    """Run a hook here. Nobody was spared the wait for one that was late, so its answer counts."""
    if hook.pure:
        result = call(hook.function, told, time.perf_counter_ns())
    else:
        result = call_inline(hook.name, subject.trace, hook.function, told)
    if result.outcome != "ok" or result.duration <= hook.budget * 1e9:
        return result
    return Result("late", result.value, overrun(hook.budget), result.duration, answered=True)


def _take(subject: Subject, value: Any) -> bool:
    """Have what a hook returned be the value. Returns whether it is another one."""
    if subject.stored is MISSING:
        raise Invalid("a hook returned a value where something is deleted", hint="Return nothing, or raise Veto")
    stored = subject.dump(value.value if isinstance(value, Changed) else value)
    if recorded.flat(stored) == recorded.flat(subject.stored):
        return False
    subject.stored = stored
    return True
