"""The types that a store returns: checkpoints, threads, branches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from holdfast.codec import Codec
    from holdfast.engine.row_format import Line
    from holdfast.engine.step_info import StepInfo

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def to_datetime(time: int) -> datetime:
    """Convert nanoseconds since 1970 to a date and time in UTC."""
    return _EPOCH + timedelta(microseconds=time // 1000)


def to_time(moment: datetime) -> int:
    """Convert a date and time to nanoseconds since 1970, at the end of its microsecond. The default zone is local."""
    return (moment.astimezone(UTC) - _EPOCH) // timedelta(microseconds=1) * 1000 + 999


class Checkpoint(NamedTuple):
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
    hash: str
    metadata: Mapping[str, Any]
    stamp: str = ""
    schema: str = ""
    merged: str | None = None
    state: Any = None

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
        )


@dataclass(frozen=True, slots=True)
class ThreadInfo:
    """A thread at a glance. `bytes` counts what its steps, nodes and large values take in the store."""

    thread: str
    created: datetime
    updated: datetime
    steps: int
    branches: int
    bytes: int
    latest: str | None


@dataclass(frozen=True, slots=True)
class BranchInfo:
    """A branch of a thread: its name, if it has one, and the checkpoint it starts from.

    `head` is its last checkpoint, which is the one it starts from while it has none of its own; `ahead` is how many of
    its own it has. The `current` one is that of the thread's latest checkpoint.
    """

    branch: int
    name: str
    base: str | None
    created: datetime
    head: str | None = None
    ahead: int = 0
    current: bool = False


@dataclass(frozen=True, slots=True)
class StoreStats:
    """A store in figures."""

    url: str
    bytes: int
    threads: int
    cache_bytes: int
    cache_limit: int
    cache_hits: int
    cache_misses: int
