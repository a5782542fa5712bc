"""The context of hooks, their results, and their descriptions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal, NamedTuple, TypeAlias

import msgspec

from holdfast._fields import Hidden
from holdfast.codec import Codec
from holdfast.engine.events import Event
from holdfast.engine.model.missing import MISSING
from holdfast.engine.trace_context import Trace

BEFORE, AFTER = "before", "after"
"""The phases of hooks."""

Recording: TypeAlias = Literal["outcome", "digest", "redacted", "full"]
"""The values that are recorded of the calls of a hook, besides when it was called and how it ended: none, unless it
failed or replaced the value; salted digests of the values; the values, without what looks like a credential or personal
data; or the values, as far as the policies of the store allow it. Only a `full` record can be replayed exactly."""

RECORDINGS: tuple[Recording, ...] = ("outcome", "digest", "redacted", "full")

_NOTHING: Mapping[str, Any] = {}


class ReplaceValue(NamedTuple):
    """Returned by a before-hook to replace a value by one that may be None: `return ReplaceValue(None)`."""

    value: Any


def _load(stored: Any) -> Any:
    return stored


def _dump(key: str, value: Any) -> Any:  # noqa: ARG001 - as those that name it
    return value


@dataclass(slots=True, eq=False)
class HookedChange:
    """A change and what before-hooks did with it. All hooks of a point share one."""

    point: str
    scope: str
    key: str
    trace: Trace
    started: int
    """When it began, by `time.perf_counter_ns`."""
    stored: Any = MISSING
    """The value as it is going to be stored; `MISSING` if there is none, as where something is deleted."""
    load: Callable[[Any], Any] = _load
    """Makes the value of what is stored, as fresh objects."""
    dump: Callable[[str, Any], Any] = _dump
    """Makes what is stored of a key's value."""
    actor: str = ""
    before: int | None = None
    old: Any = MISSING
    """The value that was stored there before, if that is known."""
    metadata: Mapping[str, Any] = field(default_factory=dict)
    original: Any = field(init=False)
    """The value as it was before hooks were called."""
    version: int = field(default=0, init=False)
    id: str = field(default="", init=False)
    events: list[Event] = field(default_factory=list, init=False)
    """The executions of before-hooks."""
    notes: Mapping[str, Any] = field(default_factory=dict, init=False)
    """Fields that before-hooks add to the audit row of the change."""
    changed: bool = field(default=False, init=False)
    """Whether before-hooks replaced the value."""
    calls: Mapping[str, Any] = field(default_factory=dict, init=False)
    """The calls of durable hooks in the outbox, by hook."""
    is_repeated: bool = field(default=False, init=False)
    """Whether the call may have been made before."""

    def __post_init__(self) -> None:
        self.original = self.stored

    def reset(self, stored: Any) -> None:
        """Start again with another value, and discard what hooks did with the previous one."""
        self.stored = self.original = stored
        self.events, self.notes, self.changed = [], _NOTHING, False


class FixedFields(dict[str, Any]):
    """Fields that are always the same, and so are packed only once."""

    __slots__ = ("_cached",)

    def packed(self, codec: Codec) -> bytes:
        """Return the packed fields."""
        known: tuple[Codec, bytes] | None = getattr(self, "_cached", None)
        if known is None or known[0] is not codec:
            known = self._cached = codec, codec.pack(dict(self))
        return known[1]


def pack_notes(codec: Codec, notes: Mapping[str, Any]) -> bytes:
    """Pack the notes of hooks, as the details of an audit row."""
    return notes.packed(codec) if isinstance(notes, FixedFields) else codec.pack(dict(notes))


class HookContext:
    """The change that a hook is called for. Each hook has a context of its own."""

    __slots__ = ("_hook", "_stored", "_subject", "_value", "notes")

    def __init__(self, subject: HookedChange, hook: str = "") -> None:
        self._subject = subject
        self._hook = hook
        self._stored = subject.stored  # later hooks may change it, and this one may still be at work
        self._value: Any = None
        self.notes: Mapping[str, Any] = _NOTHING
        """The fields that were noted."""

    def __repr__(self) -> str:
        return f"<Call {self.point} {self.scope} {self.key}>"

    @property
    def point(self) -> str:
        """The point: `state.set`."""
        return self._subject.point

    @property
    def scope(self) -> str:
        """The scope as text, `agent:researcher`; the name of the thread, for a checkpoint."""
        return self._subject.scope

    @property
    def key(self) -> str:
        """The key; the id, for a session or an artifact; empty for a checkpoint."""
        return self._subject.key

    @property
    def value(self) -> Any:
        """The new value, as new objects: to change it, return another one. `MISSING` for a deletion."""
        if self._stored is MISSING:
            return MISSING
        if self._value is None:
            self._value = (self._subject.load(self._stored),)
        return self._value[0]

    @property
    def value_size(self) -> int | None:
        """The size of the new value in bytes, as stored; None for a deletion."""
        stored = self._stored
        return len(stored) if type(stored) is bytes else None if stored is MISSING else _size(stored)

    @property
    def old(self) -> Any:
        """The previous value; `MISSING` if there was none, or it is not available."""
        old = self._subject.old
        return MISSING if old is MISSING else self._subject.load(old)

    @property
    def before(self) -> int | None:
        """The previous version; 0 if there was none, None if it is not available."""
        return self._subject.before

    @property
    def version(self) -> int:
        """The new version; 0 for before-hooks, and for deletions."""
        return self._subject.version

    @property
    def id(self) -> str:
        """The id of the step of the change; empty for before-hooks."""
        return self._subject.id

    @property
    def call_id(self) -> str:
        """The id of the call: the same if the call of a durable hook is made again; empty for before-hooks."""
        subject = self._subject
        return f"{subject.id}/{self._hook}/{subject.key}" if subject.id and self._hook else ""

    @property
    def is_repeated(self) -> bool:
        """Whether the call of a durable hook may have been made before: it failed, or its process was killed."""
        return self._subject.is_repeated

    @property
    def actor(self) -> str:
        """The identity that makes the change; empty for the store's owner."""
        return self._subject.actor

    @property
    def correlation(self) -> str:
        """The correlation id of the change."""
        return self._subject.trace.correlation

    @property
    def cause(self) -> str:
        """The id of the event that caused the change; empty for none."""
        return self._subject.trace.cause

    @property
    def metadata(self) -> Mapping[str, Any]:
        """Further details: the kind and metadata of a checkpoint."""
        return self._subject.metadata

    @property
    def started(self) -> int:
        """When the change began, by `time.perf_counter_ns`."""
        return self._subject.started

    def note(self, **fields: Any) -> None:
        """Add fields to the audit row of the change, in a before-hook."""
        self.notes = {**self.notes, **fields}


def _size(stored: Any) -> int:
    if isinstance(stored, dict):
        return sum(len(key) + _size(value) for key, value in stored.items())
    return sum(map(len, stored)) if isinstance(stored, list) else len(stored)


class HookResult(NamedTuple):
    """The result of an execution."""

    outcome: str
    """`ok`, `veto`, `error`, `late` or `skipped`; `changed`, if the hook replaced the value."""
    value: Any = None
    error: BaseException | None = None
    duration: int = 0
    """In nanoseconds."""
    returned: bool = False
    """Whether the hook returned, and `value` is what it returned."""


class HookInfo(msgspec.Struct, frozen=True):
    """A registered hook and its statistics."""

    name: str
    phase: str
    points: tuple[str, ...]
    scope: str
    key: str
    order: int
    budget: float
    fail_closed: bool
    calls: int
    failures: int
    vetoes: int
    skipped: int
    dropped: int
    bypassed: int
    """How many changes were made without a before-hook, since it failed, was late or off."""
    average: float
    """In seconds."""
    worst: float
    state: str
    """`on`; `off`, after too many failures; `trying`, when it is about to be tried again."""
    off_until: datetime | None
    last_error: str


class HookExecution(msgspec.Struct, frozen=True):
    """One execution of a hook, from the history."""

    hook: str
    scope: str
    key: str
    outcome: str
    time: datetime
    duration: float
    """In seconds."""
    actor: Hidden[str]
    correlation: Hidden[str]
    cause: Hidden[str]
    id: Hidden[str]
    """The id of the step that has its row: that of the change, for a before-hook."""
    detail: Hidden[Mapping[str, Any]]
    """The recorded details. `recording` says how values were recorded: as salted digests, `redacted` or in `full`."""
    reference: Hidden[str] = ""
    """Its name in the history: see `Hooks.get`."""

    @property
    def is_exact(self) -> bool:
        """Whether the values are recorded as they were, so that the call can be replayed exactly."""
        return self.detail.get("recording") == "full"
