"""A recorded thread of a graph: its checkpoints in order, and the calls of its tasks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from langgraph.checkpoint.serde.types import INTERRUPT
from langgraph.pregel import Pregel

from holdfast.backends.runtime.drivers import arun
from holdfast.engine.namespaces import split_name, thread_name
from holdfast.engine.types import PendingWrite
from holdfast.errors import InvalidError, NotFoundError
from holdfast.recording.journal import RESULTS, VERSION, Call, decode_items
from holdfast.store import graph_forms
from holdfast.store.checkpoint_store import CheckpointStore
from holdfast.store.saved_checkpoint import SavedCheckpoint

NOT_RECORDED = "it was not recorded, or its recording was pruned: pass the saver's recorder as a callback"
PARTLY_RECORDED = "a part of it was not recorded, or the recording of it was pruned: only the rest is compared"

_OWN_CHANNELS = ("branch:to:", "join:", "__")
_TRIGGER = "branch:to:"
"""Before the name of a node, that of the channel which triggers it."""

_STARTS = ("input", "update", "fork")
"""The sources of checkpoints that no task made: a run begins after them."""


class RecordedCheckpoint(NamedTuple):
    """A checkpoint without its state: a long thread has many, and each has all messages up to it."""

    id: str
    metadata: Mapping[str, Any]
    writes: Sequence[PendingWrite]


class Attempt(NamedTuple):
    """One time that a task ran: its calls, what their inputs refer to, the answers to its interrupts, what it asked
    when it was interrupted again, and its error. Inputs refer to the state of a checkpoint, by thread and id, and to
    the recorded results."""

    calls: list[Call]
    at: tuple[str, str]
    results: Sequence[Any]
    resumed: Sequence[Any]
    questions: Sequence[Any] = ()
    error: str = ""


class RecordedThread:
    """The checkpoints of a thread up to one, the oldest first, and the attempts of tasks by their keys."""

    def __init__(self, store: CheckpointStore, name: str) -> None:
        self._store = store
        self._name = name
        self.checkpoints: list[RecordedCheckpoint] = []
        self.attempts: dict[str, list[Attempt]] = {}
        self.parameters: dict[str, Any] = {}
        """The parameters of models' calls by their digests."""
        self.note: str = ""
        self.is_cut = False
        """Whether the thread went on after the last of these checkpoints."""
        self.channels: set[str] = set()
        """The channels of the latest state, without those that trigger nodes."""
        self.triggered: set[str] = set()
        """The nodes that an edge leads to from there."""
        self.nodes: set[str] = set()
        """The nodes that ran."""
        self._lists: dict[tuple[str, str], Mapping[str, Sequence[Any]]] = {}
        """The lists of the states that were loaded last, and of all states of subgraphs."""

    @classmethod
    async def load(cls, store: CheckpointStore, thread_id: str, at: str | None = None) -> RecordedThread:
        """Load a thread up to its latest checkpoint, or another one."""
        name = thread_name(thread_id)
        thread = cls(store, name)
        latest = await arun(store.get(name, at))
        if latest is None:
            raise NotFoundError("there is no such checkpoint", where=f"thread {thread_id!r}")
        thread.is_cut = at is not None
        thread.channels = {each for each in latest.state if not each.startswith(_OWN_CHANNELS)}
        thread.triggered = {each.removeprefix(_TRIGGER) for each in latest.state if each.startswith(_TRIGGER)}
        seen = graph_forms.checkpoint_of(latest)["versions_seen"]
        thread.nodes = {each for each in seen if not each.startswith("__")}
        saved: dict[str, tuple[RecordedCheckpoint, str | None, list[dict[str, Any]]]] = {}
        async for page in await arun(store.list_checkpoints([name])):  # a page is read quicker than its checkpoints
            for each in page:
                head = RecordedCheckpoint(each.id, each.metadata, each.writes)
                saved[each.id] = (head, each.parent, each.recorded)
        chain = []
        id: str | None = latest.id
        while id is not None and id in saved:
            chain.append(saved.pop(id))
            id = chain[-1][1]
        for head, _, recorded in reversed(chain):
            thread.checkpoints.append(head)
            thread._add((name, head.id), recorded)
        tasks = {write.task_id for each in thread.checkpoints for write in each.writes}
        for other in await arun(store.namespaces(name)):
            namespace = split_name(other)[1]
            task = namespace.partition("|")[0].partition(":")[2]
            if namespace and (not task or task in tasks):
                below = [each async for page in await arun(store.list_checkpoints([other])) for each in page]
                for each in reversed(below):
                    thread._add((other, each.id), each.recorded)
                    if each.recorded:
                        thread._lists[other, each.id] = _lists_of(each)
        return thread

    @property
    def waits(self) -> bool:
        """Whether it waits for an answer."""
        return any(write.channel == INTERRUPT for write in self.checkpoints[-1].writes)

    def is_left_open(self, graph: Pregel[Any, Any, Any, Any]) -> bool:
        """Return whether a thread of a graph is not finished, also if it waits in a node that the graph lost since.

        A thread that the graph has no node and no channel of is another graph's."""
        if not (self.checkpoints[-1].writes or self.triggered):
            return False
        own = self.nodes & graph.nodes.keys() if self.nodes else self.channels & graph.channels.keys()
        return bool(own)

    async def load_run(self, run: Sequence[RecordedCheckpoint]) -> list[SavedCheckpoint]:
        """Load the states of a run. Those that were loaded before it are forgotten."""
        for place in [place for place in self._lists if place[0] == self._name]:
            del self._lists[place]
        loaded = [await self._get(each.id) for each in run]
        self._lists |= {(self._name, each.id): _lists_of(each) for each in loaded if each.recorded}
        return loaded

    async def _get(self, id: str) -> SavedCheckpoint:
        found = await arun(self._store.get(self._name, id))
        assert found is not None  # noqa: S101 - nobody else has the store
        return found

    def bases(self, attempt: Attempt) -> dict[str, Sequence[Any]]:
        """Return the lists that the inputs of calls refer to, of a run that is loaded."""
        return {**self._lists.get(attempt.at, {}), RESULTS: attempt.results}

    async def resolve(self, key: str) -> list[list[Any]]:
        """Return the calls of all attempts of a task, with their inputs in full, to be compared."""
        calls = []
        for attempt in self.attempts.get(key, ()):
            thread, id = attempt.at
            bases = self.bases(attempt)
            if thread == self._name:
                bases |= _lists_of(await self._get(id))
            for call in attempt.calls:
                given = call.input
                if call.kind == "model":
                    given = [decode_items(call.input[0], bases), call.input[1][0]]
                calls.append([call.kind, call.name, given, call.result, call.error])
        return calls

    def _add(self, at: tuple[str, str], records: Sequence[Mapping[str, Any]]) -> None:
        for record in records:
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
            attempt = Attempt(
                calls,
                at,
                [call.result for call in calls],
                record.get("resumed", ()),
                record.get("questions", ()),
                record.get("error", ""),
            )
            self.attempts.setdefault(record["key"], []).append(attempt)

    def runs(self, since: str | None = None) -> list[list[RecordedCheckpoint]]:
        """Return the checkpoints of each run, from the one that it began after; only from one checkpoint on."""
        runs: list[list[RecordedCheckpoint]] = []
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

    def recorded_parts(self, run: Sequence[RecordedCheckpoint]) -> list[list[RecordedCheckpoint]]:
        """Return the parts of a run that were recorded, and note if these are not all of it.

        A task without calls has no record, except for the first one of a run, and one that waits or goes on after it:
        by these it is known what was not recorded."""
        parts: list[list[RecordedCheckpoint]] = [[]]
        is_recorded = self._is_start_recorded(run)
        for number, each in enumerate(run):
            here = self._attempts_after(each)
            if not is_recorded:
                self.note = PARTLY_RECORDED
                is_recorded = bool(here)
                if not here or _is_torn(here):
                    continue
            parts[-1].append(each)
            if number + 1 < len(run) and any(attempts[-1].questions for attempts in here):
                parts.append([])  # it went on with an answer that is not recorded
                is_recorded = False
        return [part for part in parts if part]

    def _is_start_recorded(self, run: Sequence[RecordedCheckpoint]) -> bool:
        source = run[0].metadata.get("source")
        first = run[: 2 if source == "input" else 1]  # nodes run in the step after that of the input
        here = [attempts for each in first for attempts in self._attempts_after(each)]
        if here or source not in _STARTS:
            return not _is_torn(here)
        return len(run) == len(first) and not first[-1].writes  # nothing ran so far

    def _attempts_after(self, checkpoint: RecordedCheckpoint) -> list[list[Attempt]]:
        """Return the attempts of each task in the step after a checkpoint, and not of the nodes around subgraphs."""
        start = f"{int(checkpoint.metadata.get('step', 0)) + 1}:"
        keys = [key for key in self.attempts if key.startswith(start)]
        return [self.attempts[key] for key in keys if not any(each.startswith(f"{key}|") for each in keys)]

    def change(self, changes: Mapping[str, Any]) -> None:
        """Replace results of calls, named `KEY#NUMBER` as in a report."""
        for name, value in changes.items():
            key, _, number = name.rpartition("#")
            calls = [call for attempt in self.attempts.get(key, ()) for call in attempt.calls]
            if not number.isdigit() or int(number) >= len(calls):
                raise InvalidError(
                    "no recorded call has this name", where=name[:80], hint="A call is TASK#NUMBER, such as 2:pay#0"
                )
            call = calls[int(number)]
            result = call.result
            if hasattr(result, "model_copy") and not isinstance(value, Mapping):
                value = result.model_copy(update={"content": value})
            call.result, call.error, call.chunks = value, None, None


def _is_torn(here: Sequence[Sequence[Attempt]]) -> bool:
    """Return whether a task went on with an answer, and the attempt that asked for it is not recorded."""
    return any(attempts[0].resumed for attempts in here)


def _lists_of(checkpoint: SavedCheckpoint) -> dict[str, Sequence[Any]]:
    return {name: value for name, value in checkpoint.state.items() if isinstance(value, list)}
