"""The registry of a store's hooks: which there are, and calling those that match."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from functools import partial
from threading import Lock
from typing import Any, Final, NamedTuple

from msgspec.structs import replace

from holdfast.backends.interface import Change, Put
from holdfast.backends.runtime.drivers import run
from holdfast.backends.runtime.fork_safety import reinit_after_fork
from holdfast.backends.runtime.metrics import Sample
from holdfast.backends.runtime.threads import Ticker, WorkerThread
from holdfast.backends.tables import LINKS
from holdfast.engine import trace_context
from holdfast.engine.append import AppendRequest, Edit
from holdfast.engine.append_queue import OuterSave, outer_saves
from holdfast.engine.engine import Engine
from holdfast.engine.events import Event, event_contents, rows
from holdfast.engine.model.diff import diff_maps
from holdfast.engine.model.missing import MISSING
from holdfast.engine.model.operations import EditMap, apply_map
from holdfast.engine.model.packed_state import PackedMap, flatten, pack_state, unpack_state
from holdfast.engine.model.scopes import MARK
from holdfast.engine.namespaces import HOOKS
from holdfast.engine.patterns import matcher
from holdfast.engine.row_format import Line, StepRef
from holdfast.engine.state_loader import LoadedState
from holdfast.engine.step_info import StepInfo
from holdfast.engine.trace_context import Trace
from holdfast.errors import DeniedError, InvalidError, NotFoundError, VetoError
from holdfast.hooks import execution_log
from holdfast.hooks.context import (
    AFTER,
    BEFORE,
    HookContext,
    HookedChange,
    HookInfo,
    HookResult,
    Recording,
    ReplaceValue,
)
from holdfast.hooks.hook import (
    Hook,
    build_result,
    call_inline,
    check_result,
    hook_context,
    is_running,
    log,
    overrun_error,
)
from holdfast.hooks.outbox import (
    AfterQueue,
    OutboxCall,
    Outcome,
    QueuedHook,
    claim_calls,
    earlier_calls,
    end_owner,
    load_subject,
    new_calls,
    new_owner,
)

_MAX_CACHED = 4096
"""The number of scopes whose matching hooks are cached."""

CLOSE_TIMEOUT = 5.0
"""The seconds that closing a store waits for after-hooks."""

_LOOK_SECONDS, _TICK_SECONDS = 10.0, 1.0
"""How often the outbox is looked at for calls that are left, and how often at most."""

_HELD = 10**9
"""For how many nanoseconds a call is held before which there is another one."""

_SKIPPED: Final = HookResult("skipped")


class MatchedHooks(NamedTuple):
    """The hooks of a point in a scope, and whether all of them match every key."""

    before: tuple[Hook, ...]
    after: tuple[Hook, ...]
    all_keys: bool

    def for_key(self, key: str) -> tuple[Sequence[Hook], Sequence[Hook]]:
        """Return the hooks that match a key."""
        return (self.before, self.after) if self.all_keys else (_for_key(self.before, key), _for_key(self.after, key))


class ActivePoints(NamedTuple):
    """The points that have hooks in a scope."""

    matched: Mapping[str, MatchedHooks]
    wants_old: bool
    """Whether any of the hooks may read the previous value."""


def _for_key(hooks: Sequence[Hook], key: str) -> list[Hook]:
    return [hook for hook in hooks if not hook.key or matcher(hook.key)(key)]


class HookRegistry:
    """The hooks of a store: `engine.hooks`, once there are any."""

    def __init__(self, engine: Engine, tenant: str) -> None:
        self.engine = engine
        self.tenant = tenant
        self.recording: Recording = "outcome"
        """The recording of the calls of hooks that do not say it."""
        self.redact: execution_log.Redact | None = None
        """Removes sensitive data from details."""
        self._hooks: tuple[Hook, ...] = ()
        self.cache: dict[str, ActivePoints] = {}
        """The matching hooks by scope, for callers that save the call of `points`."""
        self._lock = Lock()
        self.after_queue: AfterQueue = AfterQueue(self._run_after, self._record)
        self.owner: str = new_owner()
        """Whose calls in the outbox are those of this store."""
        self._recovery: Ticker | None = None
        self._next_look = 0.0
        """When the outbox is looked at, by the monotonic clock."""
        engine.context.metrics.add_collector(self.samples)
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
                    f"a hook named {hook.name!r} already exists", hint="Give this one another name, or remove that one"
                )
            self._hooks = tuple(sorted((*self._hooks, hook), key=lambda each: each.order))
            self.cache = {}
            if hook.durable and self._recovery is None:
                self._recovery = Ticker("holdfast-hook-recovery", _TICK_SECONDS, self._tick)
        if hook.durable:
            WorkerThread("holdfast-hook-recovery", self._recover)

    def remove(self, hook: str | Callable[..., Any]) -> None:
        """Remove the hook of a name, or those of a function."""
        with self._lock:
            removed = [each for each in self._hooks if hook in (each.name, each.function)]
            if not removed:
                raise NotFoundError("there is no such hook", where=repr(hook)[:80], hint="See hooks.list()")
            self._hooks = tuple(each for each in self._hooks if each not in removed)
            self.cache = {}
        for each in removed:
            each.runner.close()

    def infos(self) -> list[HookInfo]:
        """Describe all hooks, in the order in which they are called."""
        return [hook.info() for hook in self._hooks]

    def functions(self) -> dict[str, Callable[[HookContext], Any]]:
        """Return the functions by the names of their hooks."""
        return {hook.name: hook.function for hook in self._hooks}

    def status(self) -> dict[str, int | float | str]:
        """Return the statistics for `Store.status`."""
        if not self._hooks:
            return {}
        off = [hook.name for hook in self._hooks if hook.breaker.until]
        return {
            "hooks": len(self._hooks),
            "hooks_off": ", ".join(off),
            "hooks_waiting": self.after_queue.waiting,
            "hooks_dropped": self.after_queue.dropped,
        }

    def samples(self) -> Iterator[Sample]:
        """Return the metrics of hooks."""
        refused = 0
        for hook in self._hooks:
            labels = hook.name, hook.phase
            refused += hook.vetoes if getattr(hook.function, "validates", False) else 0
            yield Sample("hook_calls_total", labels, hook.calls)
            yield Sample("hook_seconds_total", labels, hook.total / 1e9)
            yield Sample("hook_worst_seconds", labels, hook.worst / 1e9)
            yield Sample("hook_failures_total", labels, hook.failures)
            yield Sample("hook_vetoes_total", labels, hook.vetoes)
            yield Sample("hook_skipped_total", labels, hook.skipped)
            yield Sample("hook_dropped_total", labels, hook.dropped)
            for outcome, count in [*hook.bypassed.items()]:
                yield Sample("hook_bypassed_total", (hook.name, outcome), count)
            yield Sample("hook_off", labels, int(hook.breaker.state == "open"))
        yield Sample("validation_failures_total", ("hook",), refused)
        yield Sample("hooks_waiting", (), self.after_queue.waiting)

    def matching(self, point: str, scope: str, key: str = "") -> tuple[Sequence[Hook], Sequence[Hook]]:
        """Return the before-hooks and the after-hooks that match, in order."""
        found = self.points(scope).matched.get(point)
        return ((), ()) if found is None else found.for_key(key)

    def points(self, scope: str) -> ActivePoints:
        """Return the points that have hooks in a scope."""
        return self.cache.get(scope) or self._match(scope)

    def _match(self, scope: str) -> ActivePoints:
        with self._lock:
            here = [hook for hook in self._hooks if not hook.scope or matcher(hook.scope)(scope)]
            points = frozenset[str]().union(*(hook.points for hook in here))
            meant = {point: _by_phase([hook for hook in here if point in hook.points]) for point in points}
            found = ActivePoints(meant, any(hook.wants_old for hook in here))
            if len(self.cache) >= _MAX_CACHED:
                self.cache = {}
            self.cache[scope] = found
            return found

    # Before -----------------------------------------------------------------------------------------------------

    async def before(self, hooks: Sequence[Hook], subject: HookedChange) -> None:
        """Call before-hooks one after another, and set `subject.stored` to what they return. Raises `VetoError`, after
        the veto was recorded."""
        for hook in hooks:
            context, result = HookContext(subject), _SKIPPED
            if hook.pure and not hook.breaker.failures:
                pure_result = _call_pure(hook, context)
                if isinstance(pure_result, int):
                    if context.notes:
                        subject.notes = {**subject.notes, **context.notes} if subject.notes else context.notes
                    subject.events.append(Event("hook", subject.actor, hook.name, subject.key, "ok", pure_result))
                    continue
                result = pure_result
            elif not is_running(hook.name) and hook.breaker.allows():
                result = await _call_before(hook, subject, context)
            veto = self._apply_result(hook, subject, context, result)
            if veto is not None:
                await self._raise_veto(subject, veto)

    def _apply_result(
        self, hook: Hook, subject: HookedChange, context: HookContext, result: HookResult
    ) -> VetoError | None:
        """Apply the result of a before-hook. Returns the veto, if there is one."""
        given = subject.stored
        outcome, changed = result.outcome, False
        if result.returned:
            if context.notes:
                subject.notes = {**subject.notes, **context.notes}
            if result.value is not None:
                try:
                    changed = _replace_value(subject, result.value)
                except Exception as wrong:  # noqa: BLE001 - what can not be stored is the hook's failure
                    outcome = "error"
                    result = HookResult(outcome, None, wrong, result.duration)
                if changed:
                    subject.changed = True
                    outcome = "changed" if outcome == "ok" else outcome
        hook.count_result(result)
        detail = b""
        if hook.record != "outcome" or outcome != "ok":
            detail = execution_log.pack_detail(
                self.engine, hook.record, self.redact, subject, BEFORE, given, changed, result.error
            )
        subject.events.append(Event("hook", subject.actor, hook.name, subject.key, outcome, result.duration, detail))
        if outcome == "veto":
            assert isinstance(result.error, VetoError)  # noqa: S101 - that is what makes it one
            return result.error
        if result.returned or is_running(hook.name):
            return None
        if hook.fail_closed:
            what = "is off because it failed again and again" if outcome == "skipped" else "failed"
            refusal = VetoError(
                f"the hook {hook.name!r} {what}, and nothing is changed without it",
                hint="See store.hooks.list() for its last error",
                code="hook-failed",
            )
            refusal.__cause__ = result.error
            return refusal
        hook.bypassed[outcome] = hook.bypassed.get(outcome, 0) + 1
        if outcome == "late":
            log.error(
                "a change was made without waiting for the hook %s, which was late and could have refused it", hook.name
            )
        return None

    async def _raise_veto(self, subject: HookedChange, veto: VetoError) -> None:
        """Record that a change was refused, and refuse it."""
        try:
            await execution_log.record_veto(self.engine, self.tenant, subject)
        except Exception as failure:  # noqa: BLE001 - the veto counts, and tells of it
            veto.add_note(f"And that could not be stored: {failure}")
            log.error("a veto could not be stored", exc_info=failure)
        if not veto.where:
            veto.where = f"key {subject.key!r} of {subject.scope}" if subject.key else subject.scope
        if self.engine.protection is not None:  # a hook may say what it refused
            veto.what, veto.hint = map(self.engine.protection.redact_text, (veto.what, veto.hint))
            veto.args = (veto.what,)
        raise veto

    # After ------------------------------------------------------------------------------------------------------

    def has_outbox(self, hooks: Sequence[Hook]) -> bool:
        """Return whether the rows of pending calls of hooks can be stored: their line exists, or none is durable."""
        if self._recovery is None or not any(hook.durable for hook in hooks):
            return True
        return self.engine.lines.cached_tip(Line(self.tenant, HOOKS)) is not None

    async def create_outbox(self) -> None:
        """Create the line of the outbox, unless it exists."""
        await self.engine.lines.ensure_row(Line(self.tenant, HOOKS))

    def pending_rows(self, hooks: Sequence[Hook], subject: HookedChange, id: str) -> list[Change]:
        """Return the rows of the outbox for a change, to be stored with its step, which has this id."""
        if not any(hook.durable for hook in hooks):
            return []
        calls = new_calls(self.tenant, self.owner, hooks, subject, id, self.engine.context.clock())
        subject.calls = {call.hook: call for call in calls}
        return [Put(LINKS, call.row) for call in calls]

    async def recover(self) -> int:
        """Make the calls of durable hooks that are due: those that failed before, or that another process has left.
        Returns their number."""
        count, queue = 0, self.after_queue
        for hook in self._hooks:
            state = hook.breaker.state
            if not hook.durable or state == "open":
                continue
            most = min(queue.capacity, 1) if state == "trying" else queue.capacity
            for call in await claim_calls(self.engine, self.tenant, hook, self.owner, queue.is_waiting, most):
                count += 1
                subject = await load_subject(self.engine, self.tenant, call)
                if subject is not None:
                    queue.put(QueuedHook(hook, subject, hook_context(hook.name, subject.trace), call))
                    continue
                target, now = call.target, self.engine.context.clock()
                lost = HookedChange(
                    target.point, target.scope, target.key, Trace(target.correlation, call.id), 0, actor=target.actor
                )
                hook.skipped += 1
                given_up = call.given_up(NotFoundError.__name__, now, target.attempts)
                queue.record(Outcome(self._event(hook, lost, "skipped", 0), call, given_up))
        return count

    def _tick(self) -> bool:
        """Look at the outbox if it is time, in a thread. Returns whether to go on."""
        if time.monotonic() < self._next_look:
            return True
        self._next_look = time.monotonic() + _LOOK_SECONDS
        return self._recover()

    def _recover(self) -> bool:
        """Make what is due, in a thread. Returns whether to look again later."""
        try:
            count = run(self.recover())
        except DeniedError:
            return False  # the store is read-only
        except Exception as error:  # noqa: BLE001 - it is reported, and tried again
            log.warning("the outbox of hooks could not be read", exc_info=error)
            return True
        if count:
            log.info("%d hook calls that were left over or failed before are being made", count)
        return True

    def _record(self, outcomes: Sequence[Outcome]) -> None:
        """Record executions, and what becomes of durable calls."""
        for each in outcomes:
            if each.call is not None and each.next is not None:
                run(self.engine.context.backend.apply(each.call.change_to(each.next)))
                ahead = (each.next.time - self.engine.context.clock()) / 1e9
                self._next_look = min(self._next_look, time.monotonic() + ahead)
        events = [each.event for each in outcomes if each.event is not None]
        ended = [each.call.ended() for each in outcomes if each.call is not None and each.next is None]
        if events or ended:
            execution_log.record_executions(self.engine, self.tenant, events, ended)

    def after(self, hooks: Sequence[Hook], subject: HookedChange) -> None:
        """Call after-hooks: those that are known to be quick now, the others soon."""
        if subject.id:
            subject.trace = Trace(subject.trace.correlation, subject.id, subject.trace.artifacts)
        for hook in hooks:
            if hook.durable:
                call = subject.calls.get(hook.name)
                if is_running(hook.name):
                    self.after_queue.record(Outcome(self._finish_after(hook, subject, _SKIPPED), call))
                else:
                    self.after_queue.put(QueuedHook(hook, subject, hook_context(hook.name, subject.trace), call))
            elif hook.pure and not hook.breaker.failures:
                pure_result = _call_pure(hook, HookContext(subject, hook.name))
                if isinstance(pure_result, int):
                    self.after_queue.record(Outcome(self._event(hook, subject, "ok", pure_result)))
                else:
                    self.after_queue.record(Outcome(self._finish_after(hook, subject, pure_result)))
            elif is_running(hook.name):
                self.after_queue.record(Outcome(self._finish_after(hook, subject, _SKIPPED)))
            elif hook.inline:
                result = _SKIPPED
                if hook.breaker.allows():
                    result = _mark_late(
                        hook, call_inline(hook.name, subject.trace, hook.function, HookContext(subject, hook.name))
                    )
                self.after_queue.record(Outcome(self._finish_after(hook, subject, result)))
            else:
                self.after_queue.put(QueuedHook(hook, subject, hook_context(hook.name, subject.trace)))

    def _run_after(self, job: QueuedHook) -> Outcome:
        """Run an after-hook, in a thread that does nothing else."""
        hook, call, result = job.hook, job.call, _SKIPPED
        if call is not None and hook.ordered and self._is_behind(call):
            return Outcome(None, call, call.released(self.engine.context.clock() + _HELD))
        if hook.breaker.allows():
            start = hook.runner.on_loop if hook.is_async else hook.runner.in_thread
            result = start(hook.function, HookContext(job.subject, hook.name), hook.budget, job.context).wait()
        event = self._finish_after(hook, job.subject, result)
        if call is None or event.outcome == "ok":
            return Outcome(event, call)
        now = self.engine.context.clock()
        if event.outcome == "skipped":
            return Outcome(event, call, call.released(max(hook.breaker.until, now + _HELD)))
        following = call.after_failure(hook, type(result.error).__name__, now)
        if following.is_failed:
            log.error(
                "a call of the durable hook %s was given up after %d attempts", hook.name, following.target.attempts
            )
        return Outcome(event, call, following)

    def _is_behind(self, call: OutboxCall) -> bool:
        """Return whether a call for an earlier change of the same key is still to be made."""
        earlier = run(earlier_calls(self.engine, call))
        return not all(map(self.after_queue.is_delivered, earlier))

    def _finish_after(self, hook: Hook, subject: HookedChange, result: HookResult) -> Event:
        """Count an execution of an after-hook. Returns its event."""
        if result.outcome == "veto":
            result = result._replace(outcome="error")  # it is too late for one
        hook.count_result(result)
        detail = b""
        if hook.record != "outcome" or result.outcome != "ok":
            detail = execution_log.pack_detail(
                self.engine, hook.record, self.redact, subject, AFTER, subject.stored, False, result.error
            )
        return self._event(hook, subject, result.outcome, result.duration, detail)

    def _event(self, hook: Hook, subject: HookedChange, outcome: str, duration: int, detail: bytes = b"") -> Event:
        target, now = execution_log.target_of(subject), self.engine.context.clock()
        return Event("hook", subject.actor, hook.name, target, outcome, duration, detail, now, subject.trace)

    def record_before(self, subject: HookedChange) -> None:
        """Record executions of before-hooks for which there is no step to store them with."""
        target, now = execution_log.target_of(subject), self.engine.context.clock()
        for event in subject.events:
            self.after_queue.record(Outcome(event._replace(target=target, time=now, trace=subject.trace)))

    async def delete(self, line: Line, delete: Callable[[], Awaitable[bool]]) -> bool:
        """Delete a thread, and call the hooks of that. Raises `VetoError`."""
        point, trace = "checkpoint.delete", trace_context.current_or_new()
        subject = HookedChange(point, line.name, "", trace, time.perf_counter_ns())
        before, after = self.matching(point, line.name)
        if before:
            await self.before(before, subject)
            self.record_before(subject)
        deleted = await delete()
        if after and deleted:
            self.after(after, subject)
        return deleted

    # Ending -----------------------------------------------------------------------------------------------------

    def drain(self, timeout: float) -> bool:
        """Wait until all after-hooks have run and are recorded. False if they have not within the timeout."""
        return self.after_queue.drain(timeout)

    def close(self, timeout: float = CLOSE_TIMEOUT) -> None:
        """Drain the queue, and end all threads."""
        if self._recovery is not None:
            self._recovery.stop()
        if not self.after_queue.drain(timeout):
            log.error("the store was closed before all after-hooks were done: %d were left", self.after_queue.waiting)
        self.after_queue.close()
        end_owner(self.owner)
        for hook in self._hooks:
            hook.runner.close()

    def reinit_locks(self) -> None:
        """Reinitialize in a forked child. Waiting hooks are the parent's to run."""
        self._lock = Lock()
        self.owner = new_owner()
        self.after_queue.reinit_locks()
        for hook in self._hooks:
            hook.breaker.reinit_locks()
            hook.runner.reinit_locks()


def _by_phase(hooks: Sequence[Hook]) -> MatchedHooks:
    before, after = (tuple(hook for hook in hooks if hook.phase == phase) for phase in (BEFORE, AFTER))
    return MatchedHooks(before, after, not any(hook.key for hook in hooks))


def _call_pure(hook: Hook, context: HookContext) -> int | HookResult:
    """Call a pure hook that did not fail recently. Returns the duration if it returned nothing, else its result."""
    start = time.perf_counter_ns()
    try:
        value = hook.function(context)
    except Exception as error:  # noqa: BLE001 - whatever a hook raises is its result
        return build_result(start, error=error)
    duration = time.perf_counter_ns() - start
    if value is not None or duration > hook.budget * 1e9:
        return _mark_late(hook, check_result(start, value))
    hook.count_call(duration)
    return duration


async def _call_before(hook: Hook, subject: HookedChange, context: HookContext) -> HookResult:
    """Call a before-hook. Until it ends or is late, the save that is being made here waits for it."""
    save = (outer_saves.get() or (None,))[-1]
    if save is not None:
        save.waits = True
    try:
        if hook.inline:
            return _mark_late(hook, call_inline(hook.name, subject.trace, hook.function, context))
        start = hook.runner.on_loop if hook.is_async else hook.runner.in_thread
        return await start(hook.function, context, hook.budget, hook_context(hook.name, subject.trace))
    finally:
        if save is not None:
            save.waits = False


def _mark_late(hook: Hook, result: HookResult) -> HookResult:
    """Mark the result of an inline hook that exceeded its budget. It counts all the same, since the caller has waited
    for it."""
    if result.outcome != "ok" or result.duration <= hook.budget * 1e9:
        return result
    return HookResult("late", result.value, overrun_error(hook.budget), result.duration, returned=True)


def _replace_value(subject: HookedChange, value: Any) -> bool:
    """Replace the value by what a hook returned. Returns whether it differs."""
    if subject.stored is MISSING:
        raise InvalidError(
            "a hook returned a value where something is deleted", hint="Return nothing, or raise VetoError"
        )
    stored = subject.dump(subject.key, value.value if isinstance(value, ReplaceValue) else value)
    if flatten(stored) == flatten(subject.stored):
        return False
    subject.stored = stored
    return True


# Save hooks -----------------------------------------------------------------------------------------------------------
#
# Hooks around saves: those of checkpoints, called for every step of a thread, whatever saves it; and the refusal of
# saves that a before-hook makes where its own change is being made.

SAVE = "checkpoint.save"

Save = Callable[..., Awaitable[list[StepInfo]]]


class SaveHooks:
    """Wraps the saving of steps."""

    def __init__(self, registry: HookRegistry) -> None:
        self._registry = registry

    async def save(self, save: Save, requests: Sequence[AppendRequest]) -> list[StepInfo]:
        """Save steps, and call the hooks of those that are checkpoints. `VetoError` if a save of the same lines waits
        for the hook that makes this one: each would wait for the other."""
        engine, outer, lines = self._registry.engine, outer_saves.get(), frozenset(each.line for each in requests)
        for each in outer:
            if each.waits and each.owner is engine and not lines.isdisjoint(each.lines):
                raise _own_change_error(min(lines & each.lines).name)
        outer_saves.set((*outer, OuterSave(engine, lines)))
        try:
            return await self._save(save, requests)
        finally:
            outer_saves.set(outer)

    async def _save(self, save: Save, requests: Sequence[AppendRequest]) -> list[StepInfo]:
        hooked = [None if request.line.name.startswith(MARK) else self._hooks_for(request) for request in requests]
        if not any(hooked):
            return await save(*requests)
        given = [
            request if each is None else await each.begin() for request, each in zip(requests, hooked, strict=True)
        ]
        heads = await save(*given)
        for each, head in zip(hooked, heads, strict=True):
            if each is not None:
                each.end(head)
        return heads

    def _hooks_for(self, request: AppendRequest) -> _HookedSave | None:
        registry, thread = self._registry, request.line.name
        before, after = registry.matching(SAVE, thread)
        return _HookedSave(registry, request, before, after) if before or after else None


def _own_change_error(line: str) -> VetoError:
    return VetoError(
        "a before-hook cannot write where its own change is being made",
        where=f"scope {line.removeprefix(MARK)}" if line.startswith(MARK) else f"thread {line}",
        hint="Return the value to store instead, write to another scope or thread, or use an after-hook",
        code="hook-own-change",
    )


class _HookedSave:
    """A checkpoint that has hooks."""

    def __init__(
        self, registry: HookRegistry, request: AppendRequest, before: Sequence[Hook], after: Sequence[Hook]
    ) -> None:
        self._registry = registry
        self._request = request
        self._before = before
        self._after = after
        self._wants_value = any(hook.wants_value for hook in (*before, *after))
        codec = registry.engine.context.codec
        metadata = codec.unpack(request.metadata) if len(request.metadata) > 1 else {}
        self._subject = HookedChange(
            SAVE,
            request.line.name,
            "",
            trace_context.current_or_new(),
            time.perf_counter_ns(),
            load=partial(unpack_state, codec),
            dump=self._dump,
            metadata={**metadata, "kind": request.kind},
        )
        self._started = registry.engine.context.clock()
        self._called = False

    def _dump(self, key: str, value: Any) -> PackedMap:  # noqa: ARG002 - a checkpoint has none
        if not isinstance(value, Mapping):
            raise InvalidError(f"the state of a checkpoint must be a mapping, not {type(value).__name__}")
        return pack_state(self._registry.engine.context.codec, value)

    async def begin(self) -> AppendRequest:
        """Call the before-hooks, and return the request to save instead."""
        request, state = self._request, self._request.state
        if callable(state):
            state = self._edit(state) if self._wants_value or self._before else state
        else:
            state = await self._call(state)
        if not self._registry.has_outbox(self._after):
            await self._registry.create_outbox()
        return replace(request, state=state, attached_changes=self._attach)

    async def _call(self, state: PackedMap | None) -> Any:
        """Call the hooks, unless they were called for the same state already. Returns the state to save."""
        subject = self._subject
        stored = MISSING if state is None else state
        if not self._called or stored != subject.original:
            subject.reset(stored)
            await self._registry.before(self._before, subject)
            self._called = True
        return subject.stored

    def _edit(self, edit: Edit) -> Edit:
        """Wrap an edit, so that hooks see its result."""

        async def hooked(parent: StepRef | None, loaded: LoadedState | None) -> EditMap:
            found = await edit(parent, loaded)
            if not self._wants_value:
                await self._call(None)
                return found
            line, states = self._request.line, self._registry.engine.states
            old: PackedMap = {}
            if loaded is not None:
                old = await states.resolve_pointers(line, await states.whole(line, loaded))
            new = await self._call(apply_map(found, old))
            return diff_maps(old, new) if self._subject.changed else found

        return hooked

    def _attach(self, id: str) -> list[Change]:
        request, clock = self._request, self._registry.engine.context.clock
        own = [] if request.attached_changes is None else list(request.attached_changes(id))
        own += self._registry.pending_rows(self._after, self._subject, id)
        if not self._subject.events:
            return own
        now, protection = clock(), self._registry.engine.protection
        return [
            *own,
            *rows(
                request.line, id, event_contents(now, self._subject.trace, self._subject.events, protection), first=now
            ),
        ]

    def end(self, head: StepInfo) -> None:
        """Call the after-hooks; not if nothing was saved because nothing changed."""
        subject = self._subject
        if self._request.if_changed and head.point.time < self._started:
            return
        subject.version, subject.id = head.point.depth + 1, head.point.id
        if self._after:
            self._registry.after(self._after, subject)
