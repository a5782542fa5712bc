"""Recording runs of agents: the calls of their tasks, how a replay answers them, and how it is isolated.

`holdfast.replay` is what programs import.
"""

from holdfast.recording.comparison import difference, plain
from holdfast.recording.errors import restore_error, store_error
from holdfast.recording.isolation import isolate
from holdfast.recording.journal import (
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
from holdfast.recording.process import ReplayProcess, answer_host, read_order
from holdfast.recording.report import ReplayReport, first_of
from holdfast.recording.sources import now, random, recorded, uuid4

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
    "answer_host",
    "current_journal",
    "decode_items",
    "difference",
    "encode_items",
    "first_of",
    "isolate",
    "now",
    "plain",
    "random",
    "read_order",
    "recorded",
    "restore_error",
    "store_error",
    "uuid4",
]
