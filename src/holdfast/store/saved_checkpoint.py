"""The values that `CheckpointStore` takes and returns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import msgspec

from holdfast.engine.types import PendingWrite


@dataclass(frozen=True, slots=True)
class FromParent:
    """The value of a channel that is the same as in the parent. `make` returns it if the parent does not have it.

    `entry` names an entry of the bookkeeping that has to be equal in the parent, such as the version of the channel;
    if it is not, `make` is called, too.
    """

    make: Callable[[], Any]
    entry: str | None = None


class SavedCheckpoint(msgspec.Struct, frozen=True):
    """A checkpoint as its framework saved it.

    `stamp` is the framework's text for the time, empty if the checkpoint was not saved by one. `parent` is the id that
    the framework named, whether or not there is such a checkpoint.
    """

    thread: str
    id: str
    parent: str | None
    stamp: str
    time: datetime
    step: int
    metadata: dict[str, Any]
    state: dict[str, Any]
    bookkeeping: dict[str, Any]
    writes: list[PendingWrite]
    recorded: list[dict[str, Any]]
    """The calls of the tasks that followed it, if the run was recorded."""


class ChannelWrites(msgspec.Struct, frozen=True):
    """The stored value of a channel before a checkpoint, if there is one, and what was written since, oldest first."""

    writes: list[PendingWrite]
    seed: Any
    has_seed: bool
