"""Recording runs of agents: the calls of their tasks, how a replay answers them, and how it is isolated.

`holdfast.replay` is what programs import.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from holdfast.recording.code_lookup import code_error as code_error
    from holdfast.recording.code_lookup import find_code as find_code
    from holdfast.recording.comparison import difference as difference
    from holdfast.recording.comparison import plain as plain
    from holdfast.recording.errors import restore_error as restore_error
    from holdfast.recording.errors import store_error as store_error
    from holdfast.recording.isolation import isolate as isolate
    from holdfast.recording.isolation import place_of as place_of
    from holdfast.recording.journal import MODES as MODES
    from holdfast.recording.journal import RESULTS as RESULTS
    from holdfast.recording.journal import VERSION as VERSION
    from holdfast.recording.journal import Call as Call
    from holdfast.recording.journal import DivergedRun as DivergedRun
    from holdfast.recording.journal import Divergence as Divergence
    from holdfast.recording.journal import DivergenceKind as DivergenceKind
    from holdfast.recording.journal import EndOfRecording as EndOfRecording
    from holdfast.recording.journal import RecordMode as RecordMode
    from holdfast.recording.journal import ReplayJournal as ReplayJournal
    from holdfast.recording.journal import TaskJournal as TaskJournal
    from holdfast.recording.journal import answer as answer
    from holdfast.recording.journal import block_if_cancelled as block_if_cancelled
    from holdfast.recording.journal import current_journal as current_journal
    from holdfast.recording.journal import decode_items as decode_items
    from holdfast.recording.journal import encode_items as encode_items
    from holdfast.recording.journal import is_inside_call as is_inside_call
    from holdfast.recording.journal import snapshot as snapshot
    from holdfast.recording.journal import wait_if_cancelled as wait_if_cancelled
    from holdfast.recording.modes import digest_call as digest_call
    from holdfast.recording.modes import pack_recording as pack_recording
    from holdfast.recording.process import Host as Host
    from holdfast.recording.process import ReplayProcess as ReplayProcess
    from holdfast.recording.process import serve as serve
    from holdfast.recording.report import ReplayReport as ReplayReport
    from holdfast.recording.report import effects_of as effects_of
    from holdfast.recording.report import first_of as first_of
    from holdfast.recording.sources import now as now
    from holdfast.recording.sources import random as random
    from holdfast.recording.sources import recorded as recorded
    from holdfast.recording.sources import uuid4 as uuid4

_MODULES = {
    "holdfast.recording.code_lookup": (
        "code_error",
        "find_code",
    ),
    "holdfast.recording.comparison": (
        "difference",
        "plain",
    ),
    "holdfast.recording.errors": (
        "restore_error",
        "store_error",
    ),
    "holdfast.recording.isolation": (
        "isolate",
        "place_of",
    ),
    "holdfast.recording.journal": (
        "MODES",
        "RESULTS",
        "VERSION",
        "Call",
        "DivergedRun",
        "Divergence",
        "DivergenceKind",
        "EndOfRecording",
        "RecordMode",
        "ReplayJournal",
        "TaskJournal",
        "answer",
        "block_if_cancelled",
        "current_journal",
        "decode_items",
        "encode_items",
        "is_inside_call",
        "snapshot",
        "wait_if_cancelled",
    ),
    "holdfast.recording.modes": (
        "digest_call",
        "pack_recording",
    ),
    "holdfast.recording.process": (
        "Host",
        "ReplayProcess",
        "serve",
    ),
    "holdfast.recording.report": (
        "ReplayReport",
        "effects_of",
        "first_of",
    ),
    "holdfast.recording.sources": (
        "now",
        "random",
        "recorded",
        "uuid4",
    ),
}

if not TYPE_CHECKING:  # a type checker is to see the names above, and no others
    from holdfast._lazy import exports

    __all__, __getattr__, __dir__ = exports(__name__, _MODULES)
