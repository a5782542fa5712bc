"""Savers of other frameworks: checkpointers by thread id, checkpoints that are saved by themselves, and what a new
saver is built of."""

from __future__ import annotations

from holdfast.backends.runtime.drivers import make_both
from holdfast.store.auto_checkpoint import (
    AsyncAutoCheckpointer,
    AsyncCheckpointableMixin,
    AutoCheckpointer,
    CheckpointableMixin,
    EveryStep,
    Interval,
    OnChange,
    OnEvent,
)
from holdfast.store.checkpoint_store import CheckpointStore
from holdfast.store.checkpointer import AsyncCheckpointer, BaseCheckpointer, Checkpointer

__all__ = [
    "AsyncAutoCheckpointer",
    "AsyncCheckpointableMixin",
    "AsyncCheckpointer",
    "AutoCheckpointer",
    "BaseCheckpointer",
    "CheckpointStore",
    "CheckpointableMixin",
    "Checkpointer",
    "EveryStep",
    "Interval",
    "OnChange",
    "OnEvent",
    "make_both",
]
