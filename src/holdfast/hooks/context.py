"""What hooks are told, and what they may answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from holdfast.codec import Codec
from holdfast.engine.events import Event
from holdfast.engine.model.missing import MISSING
from holdfast.engine.trace_context import Trace

BEFORE, AFTER = "before", "after"
"""When a hook is called."""

_NOTHING: Mapping[str, Any] = {}


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def to_datetime(time: int) -> datetime:
    """A time in nanoseconds since 1970, for people."""
    return _EPOCH + timedelta(microseconds=time // 1000)


def to_time(moment: datetime) -> int:
    """The other way round."""
    return (moment - _EPOCH) // timedelta(microseconds=1) * 1000


class ReplaceValue(NamedTuple):
    """What a before-hook returns to change a value to one that may be None: `return Changed(None)`."""

    value: Any


def _load(stored: Any) -> Any:
    return stored


def _dump(key: str, value: Any) -> Any:  # noqa: ARG001 - as those that name it
    return value


class HookedChange:
    """What is about to be done, or was done; all hooks of a point are told of the same one. And what they did."""

    __slots__ = (
        "actor",
        "before",
        "changed",
        "dump",
        "events",
        "id",
        "key",
        "load",
        "metadata",
        "notes",
        "old",
        "original",
        "point",
        "scope",
        "started",
        "stored",
        "trace",
        "version",
    )

    def __init__(
        self,
        point: str,
        scope: str,
        key: str,
        trace: Trace,
        started: int,
        stored: Any = MISSING,
        load: Callable[[Any], Any] = _load,
        dump: Callable[[str, Any], Any] = _dump,
        actor: str = "",
        before: int | None = None,
        old: Any = MISSING,
        metadata: Mapping[str, Any] = _NOTHING,
    ) -> None:
        """`stored` is the value as it is going to be stored, `MISSING` if there is none, as where something is deleted;
        `load` makes the value of it, as fresh objects, and `dump` what is stored of a key's value. `old` is what was
        stored there before, if that is known. `started` is when it began, by `time.perf_counter_ns`."""
        self.point = point
        self.scope = scope
        self.key = key
        self.trace = trace
        self.started = started
        self.stored = self.original = stored
        self.load = load
        self.dump = dump
        self.actor = actor
        self.before = before
        self.old = old
        self.metadata = metadata
        self.version = 0
        self.id = ""
        self.events: list[Event] = []
        """Rows that tell what before-hooks did."""
        self.notes: Mapping[str, Any] = _NOTHING
        """Fields that they have for the audit row of the change."""
        self.changed = False
        """Whether they made the value another one."""

    def reset(self, stored: Any) -> None:
        """It is another value: what was done with the one before does not count."""
        self.stored = self.original = stored
        self.events, self.notes, self.changed = [], _NOTHING, False


class FixedFields(dict[str, Any]):
    """Fields that are always the same, and so are packed only once."""

    __slots__ = ("_known",)

    def packed(self, codec: Codec) -> bytes:
        """As they are stored."""
        known: tuple[Codec, bytes] | None = getattr(self, "_known", None)
        if known is None or known[0] is not codec:
            known = self._cached = codec, codec.pack(dict(self))
        return known[1]


def pack_notes(codec: Codec, notes: Mapping[str, Any]) -> bytes:
    """What hooks noted, as the details of an audit row."""
    return notes.packed(codec) if isinstance(notes, FixedFields) else codec.pack(dict(notes))


class HookContext:
    """What a hook is given: what is to be changed or was, by whom and why. Each hook has one of its own."""

    __slots__ = ("_stored", "_subject", "_value", "notes")

    def __init__(self, subject: HookedChange) -> None:
        self._subject = subject
        self._stored = subject.stored  # later hooks may change it, and this one may still be at work
        self._value: Any = None
        self.notes: Mapping[str, Any] = _NOTHING
        """What was noted."""

    def __repr__(self) -> str:
        return f"<Call {self.point} {self.scope} {self.key}>"

    @property
    def point(self) -> str:
        """Where it was called: `state.set`."""
        return self._subject.point

    @property
    def scope(self) -> str:
        """The scope as text, `agent:researcher`; of a checkpoint, the name of its thread."""
        return self._subject.scope

    @property
    def key(self) -> str:
        """The key; of a session or an artifact, its id; empty for a checkpoint."""
        return self._subject.key

    @property
    def value(self) -> Any:
        """The new value, as fresh objects: to change it, return another one. `MISSING` where something is deleted."""
        if self._stored is MISSING:
            return MISSING
        if self._value is None:
            self._value = (self._subject.load(self._stored),)
        return self._value[0]

    @property
    def value_size(self) -> int | None:
        """How many bytes the new value takes as it is stored; None where something is deleted."""
        stored = self._stored
        return len(stored) if type(stored) is bytes else None if stored is MISSING else _size(stored)

    @property
    def old(self) -> Any:
        """The value that was there before; `MISSING` if there was none, or it is not known."""
        old = self._subject.old
        return MISSING if old is MISSING else self._subject.load(old)

    @property
    def before(self) -> int | None:
        """The version before; 0 where it was not there, None where it is not known."""
        return self._subject.before

    @property
    def version(self) -> int:
        """The new version; 0 for before-hooks, which do not know it yet, and where something was deleted."""
        return self._subject.version

    @property
    def id(self) -> str:
        """The id of the step that made the change; empty for before-hooks."""
        return self._subject.id

    @property
    def actor(self) -> str:
        """Who acts; empty for the store's owner."""
        return self._subject.actor

    @property
    def correlation(self) -> str:
        """The correlation id of the change."""
        return self._subject.trace.correlation

    @property
    def cause(self) -> str:
        """The id of the event that the change was made in answer to; empty for none."""
        return self._subject.trace.cause

    @property
    def metadata(self) -> Mapping[str, Any]:
        """What else is known: of a checkpoint, its kind and metadata."""
        return self._subject.metadata

    @property
    def started(self) -> int:
        """When the change began, by `time.perf_counter_ns`."""
        return self._subject.started

    def note(self, **fields: Any) -> None:
        """Have a before-hook add fields to the audit row of the change."""
        self.notes = {**self.notes, **fields}


def _size(stored: Any) -> int:
    if isinstance(stored, dict):
        return sum(len(key) + _size(value) for key, value in stored.items())
    return sum(map(len, stored)) if isinstance(stored, list) else len(stored)


class HookResult(NamedTuple):
    """How an execution of a hook ended."""

    outcome: str
    """`ok`, `veto`, `error`, `late`, or `skipped`; and `changed`, where a hook changed the value."""
    value: Any = None
    error: BaseException | None = None
    duration: int = 0
    """In nanoseconds."""
    returned: bool = False
    """Whether it returned, with what is its value."""


class HookInfo(NamedTuple):
    """A hook that is registered, and how it is doing."""

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
    average: float
    """In seconds."""
    worst: float
    state: str
    """`on`; `off`, where it failed too often; `trying`, where it is about to be tried again."""
    off_until: datetime | None
    last_error: str


class HookExecution(NamedTuple):
    """One execution of a hook, from the history."""

    hook: str
    scope: str
    key: str
    outcome: str
    time: datetime
    duration: float
    """In seconds."""
    actor: str
    correlation: str
    cause: str
    id: str
    """The id of the step that its row was stored with: that of the change, for a before-hook."""
    detail: Mapping[str, Any]
    """What was recorded: of the value, a salted digest, or the value itself if the hook was registered so."""
