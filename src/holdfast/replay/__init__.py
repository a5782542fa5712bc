"""Replay: running a recorded run again without its models and tools, and finding where it differs.

Node code takes its clock, chance and ids from here, so that they are recorded, too; `recorded` wraps any function.
"""

from holdfast.replay.comparison import difference, plain
from holdfast.replay.errors import restore_error, store_error
from holdfast.replay.isolation import isolate
from holdfast.replay.journal import (
    MODES,
    VERSION,
    Call,
    DivergedRun,
    Divergence,
    DivergenceKind,
    EndOfRecording,
    RecordMode,
    ReplayJournal,
    TaskJournal,
    answer,
    current_journal,
    decode_items,
    encode_items,
)
from holdfast.replay.process import ReplayProcess
from holdfast.replay.report import ReplayReport
from holdfast.replay.sources import now, random, recorded, uuid4

__all__ = [
    "MODES",
    "VERSION",
    "Call",
    "DivergedRun",
    "Divergence",
    "DivergenceKind",
    "EndOfRecording",
    "RecordMode",
    "ReplayJournal",
    "ReplayProcess",
    "ReplayReport",
    "TaskJournal",
    "answer",
    "current_journal",
    "decode_items",
    "difference",
    "encode_items",
    "isolate",
    "now",
    "plain",
    "random",
    "recorded",
    "restore_error",
    "store_error",
    "uuid4",
]
