"""Replay: running a recorded run again without its models and tools, and finding where it differs.

The code of nodes and agents takes its clock, chance and ids from here, so that they are recorded, too; `recorded` wraps
any function.
"""

from __future__ import annotations

from holdfast.recording import Divergence, RecordMode, ReplayReport, now, random, recorded, uuid4
from holdfast.store.hook_replays import HookReplay, ReplayedCall, hook_replay_job, run_hooks
from holdfast.store.replay_export import export
from holdfast.store.replay_jobs import replay_job
from holdfast.store.replays import compare, record, run, run_agent, run_open

__all__ = [
    "Divergence",
    "HookReplay",
    "RecordMode",
    "ReplayReport",
    "ReplayedCall",
    "compare",
    "export",
    "hook_replay_job",
    "now",
    "random",
    "record",
    "recorded",
    "replay_job",
    "run",
    "run_agent",
    "run_hooks",
    "run_open",
    "uuid4",
]
