"""The process of a replay: gets a recording, and replays it with the application's code, isolated.

The host starts it with `python -m`. It has the recording, and no way to reach the store.
"""

from __future__ import annotations

import asyncio
from typing import Any

from holdfast._lazy import import_declared
from holdfast.errors import ConfigError, InvalidError
from holdfast.interfaces.langgraph.recorded_thread import RecordedThread
from holdfast.interfaces.langgraph.replay_loop import ReplayLoop
from holdfast.interfaces.langgraph.replay_patch import patch_classes
from holdfast.interfaces.langgraph.replayer import Replayer, compare_threads, load_graph
from holdfast.interfaces.langgraph.saver import HoldfastSaver
from holdfast.recording import ReplayReport, isolate, serve
from holdfast.store import aopen, aopen_rows, arun, split_name


async def answer(order: dict[str, Any], recording: bytes) -> dict[str, Any]:
    """Replay a recording, or compare two, as ordered, and return the report."""
    size = order.get("size", len(recording))
    reader = await _load(recording[:size])
    thread_id = order["thread"] or await _only_thread(reader)
    thread = await RecordedThread.load(reader._checkpoints, thread_id, order.get("until"))
    if "size" in order:
        other = await _load(recording[size:])
        other_id = order["other"] or await _only_thread(other)
        found = await compare_threads(thread_id, thread, await RecordedThread.load(other._checkpoints, other_id))
        return found.to_json()
    thread.change(order["changes"])
    replayer = Replayer(thread_id, thread, HoldfastSaver(await aopen("memory://")))

    def blocked(what: str) -> None:
        replayer.recorder.report_here("effect", f"the code {what}")

    isolate(blocked)
    patch_classes(replayer.recorder.find_call)
    named = _find(order["graph"])
    latest: Any = {"configurable": {"thread_id": thread_id}}
    is_open = bool((await load_graph(named, reader).aget_state(latest)).next)
    if order["only_open"] and not is_open:
        return ReplayReport(thread_id, 0, 0, 0.0).to_json()
    return (await replayer.replay(load_graph(named, replayer.scratch), order["since"], is_open=is_open)).to_json()


async def _load(recording: bytes) -> HoldfastSaver:
    return HoldfastSaver(await aopen_rows(recording))


async def _only_thread(reader: HoldfastSaver) -> str:
    """Return the thread of a recording that has one."""
    threads = {split_name(name)[0] for name in await arun(reader._checkpoints.threads())}
    if len(threads) != 1:
        raise InvalidError(f"the recording has {len(threads)} threads", hint="Name the one to replay: thread=…")
    return threads.pop()


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
    with asyncio.Runner(loop_factory=ReplayLoop) as runner:
        serve(lambda _, order, recording: runner.run(answer(order, recording)))


if __name__ == "__main__":
    main()
