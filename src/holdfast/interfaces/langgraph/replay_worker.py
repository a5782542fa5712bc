"""The process of a replay: gets a recording, and replays it with the application's code, isolated.

The host starts it with `python -m`. It has the recording, and no way to reach the store.
"""

from __future__ import annotations

import asyncio
from typing import Any

from langgraph.pregel import Pregel

from holdfast.errors import HoldfastError, InvalidError
from holdfast.interfaces.langgraph.recorded_thread import RecordedThread
from holdfast.interfaces.langgraph.replay_loop import ReplayLoop
from holdfast.interfaces.langgraph.replay_patch import patch_classes
from holdfast.interfaces.langgraph.replayer import Replayer, compare_threads, load_graph
from holdfast.interfaces.langgraph.saver import HoldfastSaver
from holdfast.recording import DivergedRun, ReplayReport, code_error, find_code, isolate, serve
from holdfast.store import aopen, aopen_rows, arun, split_name

_HINT = "Name it as package.module:graph"


async def answer(order: dict[str, Any], recording: bytes) -> dict[str, Any]:
    """Replay a recording, or compare two, as ordered, and return the report."""
    size = order.get("size", len(recording))
    reader = await _load(recording[:size])
    thread_id = order["thread"] or await _only_thread(reader)
    if "size" in order:
        thread = await RecordedThread.load(reader._checkpoints, thread_id)
        other = await _load(recording[size:])
        other_id = order["other"] or await _only_thread(other)
        found = await compare_threads(thread_id, thread, await RecordedThread.load(other._checkpoints, other_id))
        return found.to_json()
    scratch = HoldfastSaver(await aopen("memory://"))
    replayers: list[Replayer] = []

    def blocked(what: str) -> None:
        if replayers:  # what a module does when it is imported is only refused
            replayers[0].recorder.report_here("effect", f"the code {what}")

    isolate(blocked)
    named = find_code(order["graph"], "graph", _HINT)  # first, so that the recording is read with its classes
    thread = await RecordedThread.load(reader._checkpoints, thread_id, order.get("until"))
    thread.change(order["changes"])
    replayer = Replayer(thread_id, thread, scratch)
    replayers.append(replayer)
    patch_classes(replayer.recorder.find_call)
    graph = _load_graph(order["graph"], named, reader)
    latest: Any = {"configurable": {"thread_id": thread_id}}
    is_open = bool((await graph.aget_state(latest)).next) or thread.is_left_open(graph)
    if order["only_open"] and not is_open:
        return ReplayReport(thread_id, 0, 0, 0.0).to_json()
    graph = _load_graph(order["graph"], named, scratch)
    return (await replayer.replay(graph, order["since"], is_open=is_open)).to_json()


async def _load(recording: bytes) -> HoldfastSaver:
    return HoldfastSaver(await aopen_rows(recording))


async def _only_thread(reader: HoldfastSaver) -> str:
    """Return the thread of a recording that has one."""
    threads = {split_name(name)[0] for name in await arun(reader._checkpoints.threads())}
    if len(threads) != 1:
        raise InvalidError(f"the recording has {len(threads)} threads", hint="Name the one to replay: thread=…")
    return threads.pop()


def _load_graph(name: str, named: Any, saver: HoldfastSaver) -> Pregel[Any, Any, Any, Any]:
    try:
        return load_graph(named, saver)
    except HoldfastError:
        raise
    except (Exception, DivergedRun) as error:
        raise code_error(error, name, "graph", _HINT) from error


def main() -> None:
    """Replay what the host sends."""
    with asyncio.Runner(loop_factory=ReplayLoop) as runner:
        serve(lambda _, order, recording: runner.run(answer(order, recording)))


if __name__ == "__main__":
    main()
