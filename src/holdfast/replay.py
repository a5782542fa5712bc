"""Replay: running a recorded run again without its models and tools, and finding where it differs.

The code of nodes and agents takes its clock, chance and ids from here, so that they are recorded, too; `recorded` wraps
any function.
"""

from __future__ import annotations

from holdfast.recording.sources import now, random, recorded, uuid4
from holdfast.store.replay.export import export
from holdfast.store.replay.threads import compare, record, run, run_agent, run_hooks, run_open

__all__ = [
    "compare",
    "export",
    "now",
    "random",
    "record",
    "recorded",
    "run",
    "run_agent",
    "run_hooks",
    "run_open",
    "uuid4",
]
