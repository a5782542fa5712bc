"""The API of hooks: `store.hooks`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any, Protocol, TypedDict, TypeVar, Unpack

from holdfast.backends.interface import BlockingCall as Blocking
from holdfast.backends.runtime.breaker import MAX_FAILURES, REST, CircuitBreaker
from holdfast.backends.runtime.drivers import AsyncApi, SyncApi, operation
from holdfast.engine import validation
from holdfast.engine.engine import Engine
from holdfast.engine.model.scopes import Scope, check_key
from holdfast.engine.pages import Page, paged
from holdfast.engine.patterns import matcher
from holdfast.errors import InvalidError
from holdfast.hooks import execution_log
from holdfast.hooks.context import AFTER, BEFORE, RECORDINGS, HookContext, HookExecution, HookInfo, Recording
from holdfast.hooks.execution_log import HookStatisticsList, summarize_executions
from holdfast.hooks.hook import Hook, check_signature, is_async, name_of
from holdfast.hooks.outbox import (
    MAX_AGE,
    UndeliveredCall,
    discard_call,
    list_undelivered,
    retry_call,
    retry_failed,
)
from holdfast.hooks.outbox import POINTS as DURABLE_POINTS
from holdfast.hooks.points import check_points
from holdfast.hooks.registry import SAVE, HookRegistry, SaveHooks
from holdfast.time_parser import Duration, Time, parse_nanoseconds, parse_seconds

_DURABLE = "Durable hooks are the host's."

F = TypeVar("F", bound=Callable[[HookContext], Any])

BEFORE_BUDGET, AFTER_BUDGET = 1.0, 30.0
"""The seconds that a hook may take, unless it is registered with another budget."""


class BuiltInHook(Protocol):
    """An object that is a hook and knows its phase, such as a `Validate`."""

    phase: str
    inline: bool
    wants_value: bool

    def __call__(self, call: HookContext, /) -> Any:
        """Handle a change."""
        ...


class HookOptions(TypedDict, total=False):
    """The options of a hook. See `Hooks.before`."""

    scope: Scope | str | None
    key: str | None
    order: int
    budget: Duration | None
    name: str | None
    record: Recording | bool | None
    inline: bool
    max_failures: int
    rest: Duration


class HookOperations:
    """Operations of `store.hooks`. `Hooks` and `AsyncHooks` have these as methods."""

    def __init__(self, engine: Engine, tenant: str, redact: execution_log.Redact | None = None) -> None:
        """`redact` removes sensitive data from values that are recorded as `redacted`."""
        self._engine = engine
        self._tenant = tenant
        self._redact = redact

    # Registering ------------------------------------------------------------------------------------------------

    def before(self, *points: str, fail_closed: bool = False, **options: Unpack[HookOptions]) -> Callable[[F], F]:
        """Call a function before changes: `@store.hooks.before("state.set", scope="agent:*", key="plan/**")`.

        `points` are names such as `state.set`, or `state.*`. `scope` and `key` are patterns. Hooks are called by their
        `order`, then in the order of registration. The function takes a `HookContext`, and nothing else that has no
        default: `InvalidError` if not. It may return another value (None as `ReplaceValue(None)`), or raise `VetoError`
        to refuse the change. If it raises anything else, or takes longer than its `budget` in seconds, the change
        proceeds with the value as it was; with `fail_closed`, it is refused. After `max_failures` failures in a row,
        the hook is off for `rest` seconds.

        A function runs in a thread of its own, an async one on the event loop; with `inline`, it runs where the change
        is made, which is for functions that are always quick.

        `record` says what is recorded of its calls: `full` (or True) the values that the function gets and returns,
        `redacted` the same without what looks like a credential or personal data, `digest` salted digests of them,
        `outcome` only how they ended. Only a `full` record can be replayed exactly. By default, it is that of
        `record_as`.
        """
        return self._register(BEFORE, points, fail_closed, options)

    def after(
        self,
        *points: str,
        durable: bool = False,
        attempts: int | None = None,
        max_age: Duration | None = None,
        ordered: bool = False,
        **options: Unpack[HookOptions],
    ) -> Callable[[F], F]:
        """Call a function soon after changes. Nobody waits for it, and it cannot affect the change.

        In each scope, it is called in the order of the changes. The rest is as in `before`.

        With `durable`, the call is stored with the change, until it was delivered: until the function has returned, and
        that is recorded. If it raises an error, takes too long, or is off, the call is made again, after a pause that
        grows to five minutes. If the process is killed, the call is made by one that has a hook of this name: soon on
        the same machine, else after ten minutes. So it is delivered at least once: `call.call_id` is the same each
        time, and `call.is_repeated` says that it may be another one. After so many `attempts`, if they are given, or a
        `max_age`, three days unless another one is given, it is kept as failed: see `undelivered` and `retry`. With
        `ordered`, the calls of one key are delivered in the order of its changes: one that fails holds up those that
        follow, until it is given up. Its points are those of keys and `checkpoint.save`.
        """
        if not durable and (ordered or attempts is not None or max_age is not None):
            raise InvalidError("attempts, max_age and ordered are for durable hooks", hint="Pass durable=True as well")
        if attempts is not None and validation.require_count(attempts, "number of attempts") < 1:
            raise InvalidError("attempts must be at least 1")
        age = parse_nanoseconds(MAX_AGE if max_age is None else max_age, "max_age", positive=True)
        delivery = {"durable": True, "max_attempts": attempts, "max_age": age, "ordered": bool(ordered)}
        return self._register(AFTER, points, False, options, delivery if durable else {})

    def add(
        self, hook: BuiltInHook, *points: str, fail_closed: bool | None = None, **options: Unpack[HookOptions]
    ) -> None:
        """Register a built-in hook: `store.hooks.add(Validate(max_bytes=10_000), "state.*", scope="agent:*")`."""
        phase = getattr(hook, "phase", None)
        if phase not in (BEFORE, AFTER):
            name = getattr(hook, "__qualname__", repr(hook))
            raise InvalidError(f"{name} is not a built-in hook", hint="Register functions with before() or after()")
        options.setdefault("inline", hook.inline)
        closed = bool(getattr(hook, "fail_closed", False)) if fail_closed is None else fail_closed
        self._register(phase, points, closed, options)(hook)

    def remove(self, hook: str | Callable[..., Any]) -> None:
        """Remove a hook, by its name or its function. Raises `NotFoundError`."""
        self._registry().remove(hook)

    def record_as(self, record: Recording) -> None:
        """Say what is recorded of the calls of hooks that are registered from now on, and that do not say it: `outcome`
        at first, `digest`, `redacted` or `full`. See `before`."""
        self._registry().recording = _check_record(record, "outcome")

    def list(self) -> list[HookInfo]:
        """List all hooks in the order in which they are called, with their statistics."""
        return [] if self._engine.hooks is None else self._registry().infos()

    # Durable calls ----------------------------------------------------------------------------------------------

    @operation(changes=True, local="Hooks are called where they were added.")
    async def recover(self) -> int:
        """Make the calls of durable hooks that are due: those that failed before, and those that processes which have
        ended did not make. Returns their number.

        This is also done when such a hook is registered, and from time to time.
        """
        return 0 if self._engine.hooks is None else await self._registry().recover()

    @operation(not_in_scripts=_DURABLE)
    @paged
    async def undelivered(
        self, hook: str | None = None, *, state: str | None = None, limit: int = 100, cursor: str | None = None
    ) -> Page[UndeliveredCall]:
        """List the calls of durable hooks that were not delivered, a page of them: those that were given up (`failed`),
        and those that are to be made (`pending`)."""
        count = validation.require_count(limit, "limit")
        return await list_undelivered(self._engine, self._tenant, hook, state, count, cursor)

    @operation(changes=True, not_in_scripts=_DURABLE)
    async def retry(self, reference: str) -> None:
        """Have a call made soon that was given up, or that waits, by the `reference` that it has in the listing. Its
        attempts and its age count anew. A process that has the hook makes it. Raises `NotFoundError`."""
        await retry_call(self._engine, self._tenant, reference)

    @operation(changes=True, not_in_scripts=_DURABLE)
    async def retry_failed(self, hook: str | None = None) -> int:
        """Have all calls made soon that were given up, or those of a hook. Returns their number."""
        return await retry_failed(self._engine, self._tenant, hook)

    @operation(changes=True, not_in_scripts=_DURABLE)
    async def discard(self, reference: str) -> None:
        """Remove a call that is not to be made, by its `reference`. Raises `NotFoundError`."""
        await discard_call(self._engine, self._tenant, reference)

    # What they did ----------------------------------------------------------------------------------------------

    @operation(not_remote="Hooks are called where they were added.")
    async def drain(self, timeout: Duration = 30.0) -> bool:
        """Wait until all after-hooks have run and are recorded. Returns False if they have not within the timeout."""
        if self._engine.hooks is None:
            return True
        registry = self._registry()
        done: bool = await Blocking(partial(registry.drain, parse_seconds(timeout, "timeout")))
        return done

    @operation
    async def history(
        self,
        hook: str | None = None,
        *,
        scope: Scope | str | None = None,
        key: str | None = None,
        point: str | None = None,
        failed: bool = False,
        slower_than: Duration | None = None,
        since: Time | None = None,
        limit: int = 100,
        cursor: str | None = None,
    ) -> Page[HookExecution]:
        """List executions of hooks, the latest first, a page of them: of one hook, in one scope, of one key, for one
        point such as `state.set`, those that failed, those that took at least so long, since a time. A call of which
        only the outcome is recorded has no point, unless it failed or replaced the value.

        Those of after-hooks are recorded once a second; `drain` waits for that.
        """
        where = None if scope is None else str(scope)
        filter_ = execution_log.ExecutionFilter.of(
            self._engine, hook, where, key, since, point=point, failed=failed, slower_than=slower_than
        )
        count = validation.require_count(limit, "limit")
        return await execution_log.list_executions(self._engine, self._tenant, filter_, count, cursor)

    @operation
    async def get(self, reference: str) -> HookExecution:
        """Return one execution, by the `reference` that it has in the history. Raises `NotFoundError`."""
        return await execution_log.get_execution(self._engine, self._tenant, reference)

    @operation
    async def statistics(
        self, hook: str | None = None, *, scope: Scope | str | None = None, since: Time | None = None
    ) -> HookStatisticsList:
        """Summarize the recorded executions by hook: how often each was called and failed, and how long it took. The
        result lists the slowest, those that fail most, and those called most often."""
        where = None if scope is None else str(scope)
        filter_ = execution_log.ExecutionFilter.of(self._engine, hook, where, None, since)
        return await summarize_executions(self._engine, self._tenant, filter_)

    # Inside -----------------------------------------------------------------------------------------------------

    def _registry(self) -> HookRegistry:
        registry = HookRegistry.of(self._engine)
        if registry is None:
            self._engine.hooks = registry = HookRegistry(self._engine, self._tenant)
        if self._redact is not None:
            registry.redact = self._redact
        return registry

    def _register(
        self,
        phase: str,
        points: tuple[str, ...],
        closed: bool,
        options: HookOptions,
        delivery: Mapping[str, Any] = MappingProxyType({}),
    ) -> Callable[[F], F]:
        """Return the decorator that registers a function. `delivery` are the fields of a durable `Hook`."""
        if any(map(callable, points)):
            raise InvalidError("a hook is registered for a point", hint='Write @store.hooks.before("state.set")')
        matched = check_points(points)
        fields, (failures, rest) = _check_options(phase, options)
        if delivery and not matched <= DURABLE_POINTS:
            raise InvalidError(
                f"a durable hook is not called for {min(matched - DURABLE_POINTS)}",
                hint=f"Its points are {', '.join(sorted(DURABLE_POINTS))}",
            )
        record = _check_record(options.get("record"), self._registry().recording)
        has_values = record != "outcome"

        def register(function: F) -> F:
            if not callable(function):
                raise InvalidError(f"a hook must be a function, not {type(function).__name__}")
            asynchronous, inline = is_async(function), fields["inline"]
            if inline and asynchronous:
                raise InvalidError("an async hook cannot run inline", hint="Leave inline out, or use a plain function")
            name = check_key(options.get("name") or name_of(function), "name of the hook")
            check_signature(function, name, "call: HookContext")
            self._registry().add(
                Hook(
                    name,
                    phase,
                    function,
                    matched,
                    fail_closed=closed,
                    record=record,
                    is_async=asynchronous,
                    wants_value=bool(getattr(function, "wants_value", True)) or has_values,
                    wants_old=bool(getattr(function, "wants_old", True)),
                    pure=inline and not has_values and bool(getattr(function, "pure", False)),
                    breaker=CircuitBreaker(self._engine.context.clock, failures, rest),
                    **fields,
                    **delivery,
                )
            )
            if SAVE in matched or phase == BEFORE:
                self._engine.writer.around = SaveHooks(self._registry()).save
            return function

        return register


def _check_pattern(name: str, pattern: object) -> str:
    if pattern is None:
        return ""
    text = str(pattern) if isinstance(pattern, Scope) else pattern
    if not isinstance(text, str):
        raise InvalidError(f"the {name} of a hook must be a pattern, not {type(pattern).__name__}")
    if text:
        matcher(text)
    return text


def _check_record(record: object, default: Recording) -> Recording:
    """Return what is recorded of calls."""
    if record is None or record is False:
        return default if record is None else "outcome"
    for each in RECORDINGS:
        if record == each:
            return each
    if record is True:
        return "full"
    raise InvalidError(f"calls of hooks are recorded as {', '.join(RECORDINGS)}, not as {ascii(record)[:40]}")


def _check_options(phase: str, options: HookOptions) -> tuple[dict[str, Any], tuple[int, int]]:
    """Return the fields of a `Hook` that options set, and after how many failures it is off for how many
    nanoseconds."""
    unknown = options.keys() - HookOptions.__annotations__.keys()
    if unknown:
        raise InvalidError(
            f"a hook has no option {min(unknown)!r}", hint=f"There are {', '.join(HookOptions.__annotations__)}"
        )
    scopes, keys = (_check_pattern(name, options.get(name)) for name in ("scope", "key"))
    budget = options.get("budget")
    if budget is None:
        budget = BEFORE_BUDGET if phase == BEFORE else AFTER_BUDGET
    order = options.get("order", 0)
    if type(order) is not int:
        raise InvalidError(f"the order of a hook must be a number, not {order!r}")
    failures = options.get("max_failures", MAX_FAILURES)
    if type(failures) is not int or failures < 1:
        raise InvalidError(f"max_failures must be at least 1, not {failures!r}")
    seconds, inline = parse_seconds(budget, "budget", positive=True), bool(options.get("inline", False))
    fields = {"scope": scopes, "key": keys, "order": order, "budget": seconds, "inline": inline}
    return fields, (failures, parse_nanoseconds(options.get("rest", REST / 1e9), "rest", positive=True))


class Hooks(SyncApi, HookOperations):
    """The hooks of a `Store`."""


class AsyncHooks(AsyncApi, HookOperations):
    """The hooks of an `AsyncStore`: `drain` and `history` are awaited."""
