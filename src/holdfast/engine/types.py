"""The types that a store returns: checkpoints, threads, branches."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any, Generic, Self, TypeAlias, cast

import msgspec

from holdfast._fields import Hidden, Internal, Label, computed
from holdfast._lazy import unknown_attribute
from holdfast.backends.interface import Capabilities
from holdfast.engine.namespaces import LineKind, line_kind, short_name
from holdfast.engine.thread_status import ThreadState

if TYPE_CHECKING:
    from typing_extensions import TypeVar  # with a default, which `typing` has from Python 3.13 on

    from holdfast.codec import Codec
    from holdfast.engine.row_format import Line, LineSummary
    from holdfast.engine.step_info import StepInfo

    S = TypeVar("S", default=Any)
else:
    from typing import TypeVar

    S = TypeVar("S")

Progress: TypeAlias = "Callable[[int, int | None, str], None]"
"""Called from time to time with how much is done, the total if it is known, and what was done last."""

SCAN_LIMIT = 10_000
"""How many checkpoints a search without an index reads by default."""

_FRAMEWORK = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,39}")
"""The name of a framework: no sentence, which would be content."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def to_datetime(time: int) -> datetime:
    """Convert nanoseconds since 1970 to a date and time in UTC."""
    return _EPOCH + timedelta(microseconds=time // 1000)


def to_time(moment: datetime) -> int:
    """Convert a date and time to nanoseconds since 1970, at the end of its microsecond. The default zone is local."""
    return (moment.astimezone(UTC) - _EPOCH) // timedelta(microseconds=1) * 1000 + 999


class Checkpoint(msgspec.Struct, Generic[S], frozen=True):
    """A saved step of a thread.

    `id` names it in its thread; `parent` is the id of the one it followed, and `merged`, if it is a merge, that of the
    one whose changes it brought in. `branch` and `step` are its position, `hash` its commit hash: it covers this step
    and everything before it. `time` never decreases from parent to child. `state` is set where it was read, as by
    `get`: a dict, or a lazy one (`holdfast.store.lazy_state`) on request.
    """

    thread: str
    id: str
    parent: str | None
    branch: int
    step: int
    time: datetime
    kind: str
    hash: Hidden[str]
    metadata: Mapping[str, Any]
    stamp: Hidden[str] = ""
    schema: str = ""
    merged: str | None = None
    state: Internal[S] = None  # type: ignore[assignment]  # where it was not read
    actor: str = ""
    """The identity that saved it; empty for the store's owner."""
    correlation: Hidden[str] = ""
    """The correlation id that it was saved with; empty for none."""
    cause: Hidden[str] = ""
    """The id of the event that caused it; empty for none."""

    if not TYPE_CHECKING:  # a type checker knows better
        __getattr__ = unknown_attribute("CHECKPOINT_WORDS")

    @classmethod
    def from_step(cls, line: Line, info: StepInfo, codec: Codec, state: Any = None) -> Checkpoint:
        """Return the checkpoint that a step of a thread's line is."""
        point, header = info.point, info.header
        metadata = codec.unpack(header.metadata) if len(header.metadata) > 1 else {}
        return cls(
            thread=line.name,
            id=point.id,
            parent=info.parent,
            branch=point.branch,
            step=point.depth,
            time=to_datetime(point.time),
            kind=point.kind,
            hash=point.hash.hex(),
            metadata=metadata,
            stamp=header.stamp,
            schema=header.schema,
            merged=metadata.get("merged") if len(header.parents) > 1 else None,
            state=state,
            actor=header.origin.actor,
            correlation=header.origin.correlation,
            cause=header.origin.cause,
        )

    def __repr__(self) -> str:
        from holdfast._views import format_time

        return f"<Checkpoint {self.id} of {self.thread!r}, step {self.step}, {self.kind}, {format_time(self.time)}>"

    def _repr_html_(self) -> str:
        from holdfast._views import html_record

        state = ", ".join(map(str, self.state)) if isinstance(self.state, dict) else type(self.state).__name__
        return html_record(self, state=state)


Revision: TypeAlias = str | int | datetime | Checkpoint
"""Names a checkpoint of a thread: a revision as in git, the number of a step, a time, or the checkpoint itself."""


_OF_LANGGRAPH = frozenset({"source", "step", "parents"})
"""The entries that the metadata of each of LangGraph's checkpoints have."""


def framework_of(metadata: object) -> str:
    """Return the agent framework that saved a checkpoint, by its metadata; empty if none did. Adapters say it under
    `framework`."""
    if not isinstance(metadata, Mapping):
        return ""
    named = metadata.get("framework")
    if isinstance(named, str) and _FRAMEWORK.fullmatch(named):
        return named
    return "langgraph" if metadata.keys() >= _OF_LANGGRAPH else ""


class ThreadInfo(msgspec.Struct, frozen=True):
    """A thread at a glance. `bytes` counts what its steps, nodes and large values take in the store.

    `kind` distinguishes agents, scopes, sessions and system lines from threads, where all are listed; `thread` is the
    name of the line, and `name` the one that people know. Of a `damaged` one, nothing else is known: `verify` says what
    is wrong with it. Damage that does not keep a thread from being listed, only `verify` finds.
    """

    thread: Hidden[str]
    created: Hidden[datetime]
    updated: datetime
    steps: int
    branches: int
    bytes: Annotated[int, Label("size")]
    latest: Hidden[str | None]
    kind: LineKind = "thread"
    damaged: bool = False
    status: ThreadState = "idle"
    message: Hidden[str] = ""
    """The last message that its latest steps added, or what they changed; only in a list with `preview`."""
    user: Hidden[str] = ""
    """Whose thread it is, as the metadata of its latest step says; only in a list with `preview`."""
    framework: str = ""
    """The agent framework that saved its latest step, as the metadata of that say: `langgraph`, `openai-agents`; empty
    for none. With `preview`, that of an earlier one if the store itself saved the latest."""

    @property
    @computed
    def name(self) -> str:
        """The name of the thread, the id of the agent, or the scope."""
        return short_name(self.thread)

    @classmethod
    def of(cls, summary: LineSummary) -> Self:
        """Describe a line as a thread."""
        latest = None if summary.latest is None else summary.latest.id
        created, updated = to_datetime(summary.created), to_datetime(summary.updated)
        name = summary.line.name
        kind, damaged, status = line_kind(name), summary.damaged, cast("ThreadState", summary.status or "idle")
        counts, framework = (summary.steps, summary.branches, summary.size), ""
        if kind == "thread" and summary.latest is not None and summary.latest.metadata:
            with suppress(msgspec.DecodeError):  # it is for people, and may be no JSON
                framework = framework_of(msgspec.json.decode(summary.latest.metadata))
        return cls(name, created, updated, *counts, latest, kind, damaged, status, framework=framework)


class Question(msgspec.Struct, frozen=True):
    """A question of a thread that waits for an answer: an interrupt of a graph."""

    id: str
    """The id of the interrupt, to answer it among several."""
    node: str
    """The node that asks."""
    value: Any
    """What it asks."""
    schema: Hidden[Any] = None
    """The JSON Schema of the answer, if the graph gave one."""


class ThreadStatus(msgspec.Struct, frozen=True):
    """What a thread does, or why it does nothing.

    It is *running* while a process works on it under a lease, *waiting* for the answers to its `questions`, *failed*
    with an error of a node, or *done*. It is *unfinished* if there is more to do and nobody is known to do it: the
    process died, was interrupted or stopped at a breakpoint or a limit. Everything else is *idle*.
    """

    status: ThreadState
    since: datetime | None = None
    """When it became that, if it is stored."""
    checkpoint: str | None = None
    """The checkpoint that it is about: HEAD."""
    questions: list[Question] = []
    node: str = ""
    """The node that failed."""
    error: str = ""
    """The class of the error."""
    message: str = ""
    """The message of the error."""


class BranchInfo(msgspec.Struct, frozen=True):
    """A branch of a thread: its name, if it has one, and the checkpoint it starts from.

    `head` is its last checkpoint, which is the one it starts from while it has none of its own; `ahead` is how many of
    its own it has. HEAD is on the `current` one.
    """

    branch: Hidden[int]
    name: Annotated[str, Label("branch")]
    base: Annotated[str | None, Label("starts from")]
    created: Hidden[datetime]
    head: str | None = None
    ahead: Annotated[int, Label("own")] = 0
    current: bool = False


class PendingWrite(msgspec.Struct, frozen=True):
    """A value that a task wrote to a channel after a checkpoint, before the next checkpoint includes it."""

    task_id: str
    channel: str
    value: Any


class StoreStatus(msgspec.Struct, frozen=True):
    """The status of a store: its size, how many lines of each kind the tenant has (those of sessions are scopes), and
    how its backend, backups and hooks are.

    If the store was not counted to the end, `complete` is False, and there are more than these. `damaged` says how many
    of them a store of files or objects found damaged while it counted.
    """

    url: str
    bytes: int
    threads: int
    agents: int
    scopes: int
    system: int
    damaged: int
    complete: bool
    cache_bytes: int
    cache_limit: int
    cache_hits: int
    cache_misses: int
    capabilities: Capabilities
    """What the backend guarantees, and its limits."""
    details: dict[str, int | float | str]
    """Copies that are pending, repairs, hooks that are off, the time of the last backup and of the last drill, by name.
    Which names there are depends on the backend; a plain one may have none."""
