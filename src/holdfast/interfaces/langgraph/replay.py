"""Replaying recorded threads of graphs: the host's side."""

from __future__ import annotations

import io
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from holdfast import errors
from holdfast.errors import HoldfastError, InvalidError
from holdfast.replay import ReplayProcess, ReplayReport
from holdfast.store import Store

WORKER = "holdfast.interfaces.langgraph.replay_worker"


def replay(
    source: Store | str | os.PathLike[str],
    graph: str,
    *,
    thread: str | None = None,
    since: str | None = None,
    until: str | None = None,
    changes: Mapping[str, Any] | None = None,
    env: Mapping[str, str] | None = None,
    timeout: float = 600.0,
) -> ReplayReport:
    """Replay a recorded thread with a graph of today's code, which is named as `module:name`, in another process.

    `source` is an open store, or a file that `holdfast replay record` wrote. No model and no tool is called; sockets,
    writes and further processes are blocked there. `since` and `until` name the checkpoints to replay from and up to,
    by id. `changes` replaces results of calls, by the names that a report gives them. `env` is the environment of the
    process, beside `PATH` and the like: it gets no credentials.
    """
    if isinstance(source, Store):
        if thread is None:
            raise InvalidError("a thread of the store is replayed", hint="Name it: replay(store, graph, thread=…)")
        recording = _export(source, thread)
    else:
        recording = Path(source).read_bytes()
    order = {"graph": graph, "thread": thread, "since": since, "until": until, "changes": dict(changes or {})}
    answer = ReplayProcess(WORKER, env=env, timeout=timeout).run(order, recording)
    if "error" in answer:
        raise _restored(answer["error"])
    return ReplayReport.of_json(answer)


def _export(store: Store, thread: str) -> bytes:
    file = io.BytesIO()
    store.export(file, threads=[thread])
    return file.getvalue()


def _restored(found: Mapping[str, str]) -> HoldfastError:
    """Return an error of the process."""
    kinds = [getattr(errors, name) for name in errors.__all__]
    kind = next((each for each in kinds if each.code == found["code"]), HoldfastError)
    return kind(found["what"], where=found["where"], hint=found["hint"], code=found["code"])
