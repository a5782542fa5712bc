"""Automatic checkpoints: every few steps, at an interval, after a change, on an event, or on request.

`AutoCheckpointer` saves a state when a policy says so. `CheckpointableMixin` saves the attributes of any plain Python
agent.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, Protocol, Self, TypeVar

from holdfast.backends.runtime.drivers import AsyncApi, SyncApi, declare, operation
from holdfast.engine.types import Checkpoint, Revision
from holdfast.errors import ConfigError, HoldfastError, InvalidError, NotFoundError
from holdfast.store.store import AsyncStore, Store, StoreOperations
from holdfast.store.thread import ThreadOperations
from holdfast.time_parser import Duration, parse_seconds

S = TypeVar("S", bound=StoreOperations)


@dataclass(frozen=True, slots=True)
class PolicyContext:
    """Steps and seconds since the last save, and the event, if there was one."""

    steps: int
    seconds: float
    event: str | None


class SavePolicy(Protocol):
    """Decides when to save."""

    @property
    def if_changed(self) -> bool:
        """Whether to save only if the state differs from the one saved last."""
        ...

    def due(self, context: PolicyContext) -> bool:
        """Return whether to save now. Called after every step and event."""
        ...


@dataclass(frozen=True, slots=True)
class EveryStep:
    """Save after every step, or every few steps."""

    steps: int = 1
    if_changed: bool = False

    def __post_init__(self) -> None:
        if type(self.steps) is not int or self.steps < 1:
            raise ConfigError(f"steps must be a whole number of at least 1, not {self.steps!r}")

    def due(self, context: PolicyContext) -> bool:
        """Return whether there were enough steps."""
        return context.event is None and context.steps >= self.steps


@dataclass(frozen=True, slots=True)
class Interval:
    """Save at the first step or event after a duration."""

    seconds: Duration
    if_changed: bool = True

    def __post_init__(self) -> None:
        parse_seconds(self.seconds, "interval")

    def due(self, context: PolicyContext) -> bool:
        """Return whether the interval is over."""
        return context.seconds >= parse_seconds(self.seconds)


@dataclass(frozen=True, slots=True)
class OnChange:
    """Save after a step that changed anything in the state."""

    if_changed: bool = True

    def due(self, context: PolicyContext) -> bool:
        """Return True: the comparison of states finds whether anything changed."""
        del context
        return True


class OnEvent:
    """Save on events with these names; without names, on any event."""

    if_changed = False

    def __init__(self, *names: str) -> None:
        if not all(isinstance(name, str) for name in names):
            raise ConfigError(f"the names of events must be strings, not {names!r}")
        self.names: frozenset[str] = frozenset(names)

    def due(self, context: PolicyContext) -> bool:
        """Return whether it is one of the events."""
        return context.event is not None and (not self.names or context.event in self.names)


@declare(local="It saves the object of a program.")
class _AutoSaver(Generic[S]):
    """Operations of an automatic checkpointer. `AutoCheckpointer` and `AsyncAutoCheckpointer` have these as methods."""

    def __init__(
        self,
        store: S,
        thread: str,
        state: Callable[[], Mapping[str, Any]],
        *policies: SavePolicy,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if not isinstance(store, StoreOperations):
            raise InvalidError(
                f"states are saved automatically to a store, not to {type(store).__name__}",
                hint="Give it the store itself; an identity saves by its own view: view.thread(name).put(state)",
            )
        if _is_sync(store) != _is_sync(self):
            raise ConfigError(f"{type(self).__name__} saves to {'a Store' if _is_sync(self) else 'an AsyncStore'}")
        if not callable(state):
            raise ConfigError("the state to save must be a function that returns it", hint="Write lambda: state")
        for policy in policies:
            if isinstance(policy, type) or not callable(getattr(policy, "due", None)):
                raise ConfigError(f"{policy!r} is not a policy", hint="Give an instance, such as EveryStep()")
        self.store = store
        self.thread = thread
        self.last: Checkpoint | None = None
        """The checkpoint that was saved last; None before the first."""
        self._state = state
        self._policies = policies or (EveryStep(),)
        self._clock = clock
        self._steps = 0
        self._since = clock()

    @operation(changes=True)
    async def step(self, metadata: Mapping[str, Any] | None = None) -> Checkpoint | None:
        """Record that a step is done. Returns the checkpoint, if one was saved."""
        self._steps += 1
        return await self._decide(None, metadata)

    @operation(changes=True)
    async def event(self, name: str, metadata: Mapping[str, Any] | None = None) -> Checkpoint | None:
        """Record an event. Returns the checkpoint, if one was saved."""
        return await self._decide(name, {"event": name, **(metadata or {})})

    @operation(changes=True)
    async def save(
        self, *, tag: str | None = None, labels: Iterable[str] = (), metadata: Mapping[str, Any] | None = None
    ) -> Checkpoint:
        """Save now, regardless of the policies."""
        return await self._save(tag=tag, labels=labels, metadata=metadata)

    @operation(changes=True)
    async def flush(self) -> Checkpoint | None:
        """Save now if the state differs from the one saved last. Returns the checkpoint, if one was saved."""
        return await self._save_changes(None)

    async def _decide(self, event: str | None, metadata: Mapping[str, Any] | None) -> Checkpoint | None:
        context = PolicyContext(self._steps, self._clock() - self._since, event)
        due = [policy for policy in self._policies if policy.due(context)]
        if not due:
            return None
        if all(policy.if_changed for policy in due):
            return await self._save_changes(metadata)
        return await self._save(metadata=metadata)

    async def _save_changes(self, metadata: Mapping[str, Any] | None) -> Checkpoint | None:
        before = await self._latest()
        saved = await self._save(metadata=metadata, if_changed=True)
        return None if saved.id == before else saved

    def _handle(self) -> ThreadOperations[Any]:
        return ThreadOperations(self.store._handle, self.thread)

    async def _latest(self) -> str | None:
        """Return the id of the checkpoint that `if_changed` compares with."""
        if self.last is not None:
            return self.last.id
        try:
            return (await ThreadOperations[Any].get(self._handle(), lazy=True)).id
        except NotFoundError:
            return None

    async def _save(self, **how: Any) -> Checkpoint:
        steps, since = self._steps, self._since
        # Reset before the save is done: steps recorded meanwhile are not in it.
        self._steps, self._since = 0, self._clock()
        try:
            self.last = await ThreadOperations[Any].put(self._handle(), self._state(), **how)
        except BaseException:
            self._steps, self._since = self._steps + steps, since
            raise
        return self.last


def _is_sync(thing: object) -> bool:
    return isinstance(thing, SyncApi)


class AutoCheckpointer(SyncApi, _AutoSaver[Store]):
    """Saves a state automatically: `with AutoCheckpointer(store, "t1", lambda: state, EveryStep())`.

    Leaving the block saves the state if it differs from the one saved last.
    """

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        try:
            self.flush()
        except HoldfastError as failure:
            _note(error, failure)


class AsyncAutoCheckpointer(AsyncApi, _AutoSaver[AsyncStore]):
    """Saves a state automatically on an `AsyncStore`: operations are awaited."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        try:
            await self.flush()
        except HoldfastError as failure:
            _note(error, failure)


def _note(error: BaseException | None, failure: HoldfastError) -> None:
    """Raise the failure of the last save, or add it to an error that is being raised."""
    if error is None:
        raise failure
    error.add_note(f"And what was not saved yet could not be saved: {failure}")


# Agents -------------------------------------------------------------------------------------------------------


@declare(local="It saves the object of a program.")
class _Checkpointable:
    """Operations of a checkpointable agent. `CheckpointableMixin` and its async form have these as methods."""

    _autosave: AutoCheckpointer | AsyncAutoCheckpointer | None = None

    def checkpoint_state(self) -> Mapping[str, Any]:
        """Return the state to save: the attributes without a leading underscore. Override it to choose others."""
        slots = [name for kind in type(self).__mro__ for name in _slots(kind) if hasattr(self, name)]
        names = [*slots, *vars(self)]
        return {name: getattr(self, name) for name in names if not name.startswith("_")}

    def restore_state(self, state: Mapping[str, Any]) -> None:
        """Set the attributes from a saved state: the counterpart of `checkpoint_state`."""
        for name in list(vars(self)):
            if not name.startswith("_") and name not in state:
                delattr(self, name)
        for name, value in state.items():
            setattr(self, name, value)

    @operation(changes=True)
    async def checkpoint(
        self, *, tag: str | None = None, labels: Iterable[str] = (), metadata: Mapping[str, Any] | None = None
    ) -> Checkpoint:
        """Save the agent's state now."""
        return await _AutoSaver.save(self._attached(), tag=tag, labels=labels, metadata=metadata)

    @operation(changes=True)
    async def step_done(self, metadata: Mapping[str, Any] | None = None) -> Checkpoint | None:
        """Record that a step is done; saves if a policy says so."""
        return await _AutoSaver.step(self._attached(), metadata)

    @operation(changes=True)
    async def record_event(self, event: str, metadata: Mapping[str, Any] | None = None) -> Checkpoint | None:
        """Record an event; saves if a policy says so."""
        return await _AutoSaver.event(self._attached(), event, metadata)

    @operation(changes=True)
    async def restore(self, at: Revision = "HEAD") -> Checkpoint:
        """Restore the state of a checkpoint: the latest, or another. Raises `NotFoundError`."""
        watch = self._attached()
        saved = await ThreadOperations[Any].get(watch._handle(), at)
        self.restore_state(saved.state)
        return saved

    def _attached(self) -> AutoCheckpointer | AsyncAutoCheckpointer:
        if self._autosave is None:
            raise InvalidError("the agent has no store to save to", hint='Call attach(store, "thread") first')
        return self._autosave


def _slots(kind: type) -> tuple[str, ...]:
    slots = kind.__dict__.get("__slots__", ())
    return (slots,) if isinstance(slots, str) else tuple(slots)


class CheckpointableMixin(SyncApi, _Checkpointable):
    """Makes a plain Python class checkpointable::

    class Researcher(CheckpointableMixin):
        def __init__(self):
            self.notes = []

    agent = Researcher()
    agent.attach(store, "research-1", EveryStep())
    agent.notes.append("found it")
    agent.step_done()
    """

    def attach(self, store: Store, thread: str, *policies: SavePolicy) -> Self:
        """Set the thread to save to, and the policies."""
        self._autosave = AutoCheckpointer(store, thread, self.checkpoint_state, *policies)
        return self


class AsyncCheckpointableMixin(AsyncApi, _Checkpointable):
    """Makes a plain Python class checkpointable on an `AsyncStore`: operations are awaited."""

    def attach(self, store: AsyncStore, thread: str, *policies: SavePolicy) -> Self:
        """Set the thread to save to, and the policies."""
        self._autosave = AsyncAutoCheckpointer(store, thread, self.checkpoint_state, *policies)
        return self
