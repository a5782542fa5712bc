"""The process of a replay: gets a recording, and replays it with the application's code, isolated.

The host starts it with `python -m`. It has the recording, and no way to reach the store.
"""

from __future__ import annotations

import asyncio
import io
import os
from typing import Any

from holdfast._lazy import import_declared
from holdfast.errors import ConfigError, HoldfastError
from holdfast.interfaces.langgraph.recorded_thread import RecordedThread
from holdfast.interfaces.langgraph.replay_patch import patch_classes
from holdfast.interfaces.langgraph.replayer import Replayer, load_graph
from holdfast.interfaces.langgraph.saver import HoldfastSaver
from holdfast.replay import isolate
from holdfast.replay.process import answer_host, read_order
from holdfast.store import AsyncStore, aopen


async def replay(order: dict[str, Any], recording: bytes) -> dict[str, Any]:
    """Replay a recording as ordered, and return the report."""
    recorded, scratch = await _open(), await _open()
    await recorded.import_(io.BytesIO(recording))
    reader = HoldfastSaver(recorded)
    thread_id = order["thread"]
    thread = await RecordedThread.load(reader._checkpoints, thread_id, order.get("until"))
    thread.change(order.get("changes", {}))
    replayer = Replayer(thread_id, thread, HoldfastSaver(scratch))

    def blocked(what: str) -> None:
        replayer.recorder.report_here("effect", f"the code {what}")

    isolate(blocked)
    patch_classes(replayer.recorder.find_call)
    graph = load_graph(_find(order["graph"]), replayer.scratch)
    return (await replayer.replay(graph, order.get("since"))).to_json()


async def _open() -> AsyncStore:
    return await aopen("memory://")


def _find(name: str) -> Any:
    """Return what the caller named as `module:name`."""
    module, _, path = name.partition(":")
    try:
        found: Any = import_declared(module)
        for part in path.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(
            f"the graph cannot be imported: {error}", where=name[:200], hint="Name it as package.module:graph"
        ) from error
    return found


def main() -> None:
    """Replay what the host sends."""
    order, recording = read_order()
    answers = os.dup(1)
    os.dup2(2, 1)  # what the code prints is not an answer
    try:
        found = asyncio.run(replay(order, recording))
    except HoldfastError as error:
        found = {"error": {"code": error.code, "what": error.what, "where": error.where, "hint": error.hint}}
    answer_host(answers, found)
    os._exit(0)  # without waiting for threads of the code


if __name__ == "__main__":
    main()
