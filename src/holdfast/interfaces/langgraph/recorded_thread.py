"""A recorded thread of a graph: its checkpoints in order, and the calls of its tasks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from holdfast.errors import InvalidError, NotFoundError
from holdfast.interfaces.langgraph.recorder import RESULTS
from holdfast.recording import VERSION, Call
from holdfast.store import CheckpointStore, SavedCheckpoint, arun, split_name, thread_name

_STARTS = ("input", "update", "fork")
"""The sources of checkpoints that no task made: a run begins after them."""


class Attempt(NamedTuple):
    """One time that a task ran: its calls, what their inputs refer to, and the answers to its interrupts."""

    calls: list[Call]
    bases: Mapping[str, Sequence[Any]]
    resumed: Sequence[Any]
    mode: str


class RecordedThread:
    """The checkpoints of a thread up to one, the oldest first, and the attempts of tasks by their keys."""

    def __init__(self, checkpoints: list[SavedCheckpoint]) -> None:
        self.checkpoints = checkpoints
        self.attempts: dict[str, list[Attempt]] = {}
        self.parameters: dict[str, Any] = {}
        """The parameters of models' calls by their digests."""
        self.note = ""

    @classmethod
    async def load(cls, store: CheckpointStore, thread_id: str, at: str | None = None) -> RecordedThread:
        """Load a thread up to its latest checkpoint, or another one."""
        name = thread_name(thread_id)
        found = await arun(store.get(name, at))
        if found is None:
            raise NotFoundError("there is no such checkpoint", where=f"thread {thread_id!r}")
        chain = [found]
        while chain[-1].parent is not None and (found := await arun(store.get(name, chain[-1].parent))) is not None:
            chain.append(found)
        thread = cls(chain[::-1])
        tasks = {write.task_id for each in chain for write in each.writes}
        for each in thread.checkpoints:
            thread._add(each)
        for other in await arun(store.namespaces(name)):
            namespace = split_name(other)[1]
            task = namespace.partition("|")[0].partition(":")[2]
            if namespace and (not task or task in tasks):
                below = [each async for page in await arun(store.list_checkpoints([other])) for each in page]
                for each in reversed(below):
                    thread._add(each)
        return thread

    def _add(self, checkpoint: SavedCheckpoint) -> None:
        lists = {name: value for name, value in checkpoint.state.items() if isinstance(value, list)}
        for record in checkpoint.recorded:
            if record.get("v") != VERSION:
                self.note = "a newer release of Holdfast recorded it"
                continue
            mode = record.get("mode", "full")
            if mode != "full":
                self.note = f"it was recorded with mode {mode!r}"
                continue
            calls = [Call.of_record(call) for call in record["calls"]]
            for call in calls:
                if call.kind == "model" and len(call.input[1]) > 1:
                    self.parameters[call.input[1][0]] = call.input[1][1]
            bases = {**lists, RESULTS: [call.result for call in calls]}
            self.attempts.setdefault(record["key"], []).append(Attempt(calls, bases, record.get("resumed", ()), mode))

    def runs(self, since: str | None = None) -> list[list[SavedCheckpoint]]:
        """Return the checkpoints of each run, from the one that it began after; only from one checkpoint on."""
        runs: list[list[SavedCheckpoint]] = []
        started = since is None
        for each in self.checkpoints:
            begins = not runs or each.metadata.get("source") in _STARTS
            if not started and each.id == since:
                started = begins = True
            if started:
                if begins:
                    runs.append([])
                runs[-1].append(each)
        if not started:
            raise NotFoundError("there is no such checkpoint in the recorded run", where=f"checkpoint {since}")
        return [run for run in runs if run]

    def change(self, changes: Mapping[str, Any]) -> None:
        """Replace results of calls, named `KEY#NUMBER` as in a report."""
        for name, value in changes.items():
            key, _, number = name.rpartition("#")
            calls = [call for attempt in self.attempts.get(key, ()) for call in attempt.calls]
            if not number.isdigit() or int(number) >= len(calls):
                raise InvalidError(
                    "no recorded call has this name", where=name[:80], hint="A call is TASK#NUMBER: see replay calls"
                )
            call = calls[int(number)]
            result = call.result
            if hasattr(result, "model_copy") and not isinstance(value, Mapping):
                value = result.model_copy(update={"content": value})
            call.result, call.error, call.chunks = value, None, None
