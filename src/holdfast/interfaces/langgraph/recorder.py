"""Recording the calls of chat models and tools in a graph's nodes: a LangChain callback handler.

The saver stores the calls of a task of the graph together with what the task wrote, in one row of the same batch.
It belongs to the thread: it is deleted, pruned, copied, encrypted and erased with it.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple
from uuid import UUID

from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.messages import AIMessageChunk, BaseMessage
from langchain_core.outputs import ChatGenerationChunk, GenerationChunk, LLMResult
from langgraph.checkpoint.serde.types import ERROR, INTERRUPT, RESUME

from holdfast.errors import InvalidError
from holdfast.recording.comparison import plain as to_plain
from holdfast.recording.journal import (
    MODES,
    RESULTS,
    VERSION,
    Call,
    RecordMode,
    TaskJournal,
    current_journal,
    digest_call,
    encode_items,
    is_inside_call,
    snapshot,
)

_PULL = "__pregel_pull"
_MAX_ERROR = 2000
_MAX_TASKS = 10_000
"""How many tasks are recorded at a time. What no saver took by then is dropped."""


class _Run(NamedTuple):
    """A run of LangChain's that is under way: the journal of its task, and its call, if it is one."""

    journal: TaskJournal | None
    call: Call | None
    is_inside: bool
    """Whether a recorded call contains it: then it is not recorded on its own."""
    outer: TaskJournal | None = None
    """The journal of the code around it, to which the context returns."""
    root: object = None
    """The run of the graph that it is part of."""


class RunRecorder(BaseCallbackHandler):
    """Records the calls of a graph's runs. Pass it as a callback: `{"callbacks": [saver.recorder]}`."""

    run_inline = True  # in the order of the calls, in their context

    def __init__(self, mode: RecordMode = "full") -> None:
        if mode not in MODES:
            raise InvalidError(f"a run is recorded as {', '.join(MODES)}, not {mode!r}"[:200])
        self.mode = mode
        self._lock = threading.Lock()
        self._tasks: dict[str, TaskJournal] = {}
        self._runs: dict[UUID, _Run] = {}
        self._parameters: dict[tuple[str, str], None] = {}
        self._marked: set[object] = set()
        """The runs of graphs that are under way and have a recorded task."""

    # The saver's side -----------------------------------------------------------------------------------------

    def take(self, task_id: str, writes: Sequence[tuple[str, Any]]) -> tuple[int, dict[str, Any]] | None:
        """Return what a task called, and a number for it that grows with time; None if there is nothing to record.

        Of a task that was interrupted, what it asked and the answers with which it ran are recorded, too; of one that
        failed, its error. The first task of a run is recorded in any case, so that it is known that the run was."""
        if not self._tasks:
            return None
        with self._lock:
            journal = self._tasks.pop(task_id, None)
        if journal is None:
            return None
        marks = dict(writes)
        resumed = marks.get(RESUME, []) if RESUME in marks or INTERRUPT in marks else None
        error = describe_error(marks)
        if not (journal.calls or resumed is not None or error or journal.root not in self._marked):
            return None
        self._marked.add(journal.root)
        calls = journal.to_record()
        if self.mode == "digest":
            calls = [digest_call(call) for call in calls]
        record: dict[str, Any] = {"v": VERSION, "key": journal.key, "step": journal.step, "calls": calls}
        if self.mode != "full":
            record["mode"] = self.mode
        if resumed is not None:
            record["resumed"] = resumed if isinstance(resumed, list) else [resumed]
        if INTERRUPT in marks and self.mode != "digest":
            record["questions"] = questions_of(marks)
        if error and self.mode != "digest":
            record["error"] = error
        return (1 << 40) + time.time_ns() // 1000, record

    def make_journal(self, key: str, step: int, bases: Mapping[str, Sequence[Any]]) -> TaskJournal:
        """Return the journal of a task that begins."""
        return TaskJournal(key, step, bases)

    # Tasks ----------------------------------------------------------------------------------------------------

    def _find_journal(
        self, metadata: Mapping[str, Any] | None, inputs: Any = None, root: object = None
    ) -> TaskJournal | None:
        """Return the journal of the task that a run is in."""
        namespace = (metadata or {}).get("langgraph_checkpoint_ns")
        if not isinstance(namespace, str) or not namespace:
            return current_journal.get()
        tasks = [part.partition(":")[2] for part in namespace.split("|") if ":" in part]
        if not tasks:
            return None
        with self._lock:
            journal = self._tasks.get(tasks[-1])
            if journal is None:
                above = "".join(f"{self._tasks[each].key}|" for each in tasks[-2:-1] if each in self._tasks)
                journal = self._new_journal(metadata or {}, above, inputs)
                journal.root = root
                if len(self._tasks) >= _MAX_TASKS:
                    del self._tasks[next(iter(self._tasks))]
                self._tasks[tasks[-1]] = journal
        return journal

    def _new_journal(self, metadata: Mapping[str, Any], above: str, inputs: Any) -> TaskJournal:
        path = [str(part) for part in metadata.get("langgraph_path", ()) if part is not True and part is not False]
        node, step = str(metadata.get("langgraph_node", "")), int(metadata.get("langgraph_step", 0))
        name = node if path == [_PULL, node] else f"{node}({', '.join(path[1:])})"
        bases = {}
        if path[:1] == [_PULL]:
            fields = inputs if isinstance(inputs, dict) else getattr(inputs, "__dict__", {})
            bases = {name: list(value) for name, value in fields.items() if _are_messages(value)}
        return self.make_journal(f"{above}{step}:{name}", step, bases)

    # LangChain's side -----------------------------------------------------------------------------------------

    def on_chain_start(
        self,
        serialized: dict[str, Any],  # noqa: ARG002 - as LangChain calls it, here and below
        inputs: Any,
        *,
        run_id: UUID,
        parent_run_id: UUID | None = None,
        metadata: dict[str, Any] | None = None,
        **kwargs: Any,  # noqa: ARG002
    ) -> None:
        """Note the task that begins, or that a run is part of a recorded call."""
        if self._is_inside(parent_run_id):
            self._runs[run_id] = _Run(None, None, True)
            return
        parent = None if parent_run_id is None else self._runs.get(parent_run_id)
        root = run_id if parent is None or parent.root is None else parent.root
        journal = self._find_journal(metadata, inputs, root)
        self._runs[run_id] = _Run(journal, None, False, current_journal.get(), root)
        current_journal.set(journal)

    def _is_inside(self, parent_run_id: UUID | None) -> bool:
        """Return whether a recorded call contains a run."""
        parent = None if parent_run_id is None else self._runs.get(parent_run_id)
        return is_inside_call.get() or (parent is not None and (parent.call is not None or parent.is_inside))

    def _end_chain(self, run_id: UUID) -> None:
        run = self._runs.pop(run_id, None)
        if run is None or run.is_inside:
            return
        current_journal.set(run.outer)
        if run.root != run_id:
            return
        self._marked.discard(run_id)
        if self._tasks:  # of a graph: what no saver took by now was cancelled
            with self._lock:
                self._tasks = {id: each for id, each in self._tasks.items() if each.root != run_id}
            for id in [id for id, each in list(self._runs.items()) if each.root == run_id]:
                self._runs.pop(id, None)

    def on_chain_end(self, outputs: Any, *, run_id: UUID, **kwargs: Any) -> None:  # noqa: ARG002
        """Forget a run."""
        self._end_chain(run_id)

    def on_chain_error(self, error: BaseException, *, run_id: UUID, **kwargs: Any) -> None:  # noqa: ARG002
        """Forget a run."""
        self._end_chain(run_id)

    def _begin(self, kind: str, name: str, run_id: UUID, parent_run_id: UUID | None, metadata: Any, given: Any) -> None:
        if self._is_inside(parent_run_id):
            self._runs[run_id] = _Run(None, None, True)
            return
        journal = self._find_journal(metadata)
        if journal is not None:
            call = self.begin_call(journal, kind, name, given, run_id)
            self._runs[run_id] = _Run(journal, call, False, None, journal.root)
            if kind == "tool":  # whoever reads a stream of a model is not inside of it
                current_journal.set(None)

    def begin_call(self, journal: TaskJournal, kind: str, name: str, given: Any, run_id: UUID) -> Call:  # noqa: ARG002
        """Record a call that begins."""
        return journal.begin(kind, name, given(journal))

    def end_call(self, journal: TaskJournal, call: Call, result: Any, error: BaseException | None) -> None:
        """Record how a call ended."""
        journal.end(call, result, error)

    def _end(self, run_id: UUID, result: Any = None, error: BaseException | None = None) -> None:
        run = self._runs.pop(run_id, None)
        if run is not None and run.journal is not None and run.call is not None:
            self.end_call(run.journal, run.call, result, error)
            if run.call.kind == "tool":
                current_journal.set(run.journal)

    def on_chat_model_start(
        self,
        serialized: dict[str, Any],
        messages: list[list[BaseMessage]],
        *,
        run_id: UUID,
        parent_run_id: UUID | None = None,
        metadata: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Record the call of a chat model."""
        parameters = self._describe_parameters(kwargs, str((metadata or {}).get("thread_id", "")))

        def given(journal: TaskJournal) -> Any:
            bases = journal.bases
            if journal.calls:
                bases = {**bases, RESULTS: [each.payload for each in journal.calls]}
            return [encode_items(messages[0] if messages else [], bases), parameters]

        self._begin("model", _name_of(serialized, kwargs), run_id, parent_run_id, metadata, given)

    def on_llm_new_token(
        self,
        token: Any,  # noqa: ARG002
        *,
        chunk: GenerationChunk | ChatGenerationChunk | None = None,
        run_id: UUID,
        **kwargs: Any,  # noqa: ARG002
    ) -> None:
        """Record a chunk of a streamed result."""
        run = self._runs.get(run_id)
        if run is not None and run.call is not None and isinstance(chunk, ChatGenerationChunk):
            if run.call.chunks is None:
                run.call.chunks = []
            run.call.chunks.append(chunk.message)

    def on_llm_end(self, response: LLMResult, *, run_id: UUID, **kwargs: Any) -> None:  # noqa: ARG002
        """Record the result of a chat model."""
        generation: Any = response.generations[0][0] if response.generations and response.generations[0] else None
        message = getattr(generation, "message", None)
        run = self._runs.get(run_id)
        if run is not None and run.call is not None:
            run.call.payload = message
            if run.call.chunks:
                run.call.chunks = encode_chunks(run.call.chunks, message)
        self._end(run_id, message)

    def on_llm_error(self, error: BaseException, *, run_id: UUID, **kwargs: Any) -> None:  # noqa: ARG002
        """Record the error of a chat model."""
        self._end(run_id, error=error)

    def on_tool_start(
        self,
        serialized: dict[str, Any],
        input_str: str,
        *,
        run_id: UUID,
        parent_run_id: UUID | None = None,
        metadata: dict[str, Any] | None = None,
        inputs: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Record the call of a tool."""
        given = input_str if inputs is None else snapshot(inputs)
        self._begin("tool", _name_of(serialized, kwargs), run_id, parent_run_id, metadata, lambda _: given)

    def on_tool_end(self, output: Any, *, run_id: UUID, **kwargs: Any) -> None:  # noqa: ARG002
        """Record the result of a tool."""
        self._end(run_id, output if isinstance(output, BaseMessage) else snapshot(output))

    def on_tool_error(self, error: BaseException, *, run_id: UUID, **kwargs: Any) -> None:  # noqa: ARG002
        """Record the error of a tool."""
        self._end(run_id, error=error)

    def _describe_parameters(self, kwargs: Mapping[str, Any], thread: str) -> Any:
        """Return the parameters of a model's call, such as its tools: in full when they are new in a thread, or else a
        digest."""
        digest, described = digest_parameters(kwargs)
        with self._lock:
            is_new = (thread, digest) not in self._parameters
            self._parameters[thread, digest] = None
            if len(self._parameters) > _MAX_TASKS:
                del self._parameters[next(iter(self._parameters))]
        return [digest, described] if is_new else [digest]


def digest_parameters(kwargs: Mapping[str, Any]) -> tuple[str, Any]:
    """Return a digest of the parameters of a model's call, and the parameters."""
    found = {name: each for name, each in dict(kwargs.get("invocation_params") or {}).items() if each is not None}
    described = to_plain(found)
    return hashlib.blake2b(repr(sorted(described.items())).encode(), digest_size=8).hexdigest(), described


def questions_of(marks: Mapping[str, Any]) -> list[Any]:
    """Return what the interrupts among a task's writes ask."""
    return [each.value for each in marks.get(INTERRUPT, ())]


def describe_error(marks: Mapping[str, Any]) -> str:
    """Return the error among a task's writes, as text; empty if there is none, or the task was cancelled."""
    error = marks.get(ERROR)
    return repr(error)[:_MAX_ERROR] if isinstance(error, Exception) else ""


def _are_messages(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and isinstance(value[0], BaseMessage)


def _name_of(serialized: Mapping[str, Any] | None, kwargs: Mapping[str, Any]) -> str:
    """Return the name of a model's class, or of a tool."""
    found = serialized or {}
    path = found.get("id")
    last = path[-1] if isinstance(path, list) and path else None
    return str(found.get("name") or last or kwargs.get("name") or "model")


_CHUNK_FIELDS = frozenset(AIMessageChunk.model_fields) - {"content", "type", "id"}
"""The fields of a chunk that are stored if they have a value."""


def encode_chunks(chunks: list[Any], message: Any) -> list[Any]:
    """Return the chunks of a message as they are stored: of those that only continue its text, the length."""
    text = getattr(message, "content", None)
    if not isinstance(text, str) or "".join(str(each.content) for each in chunks) != text:
        return chunks
    return [_encode_chunk(each, message.id) for each in chunks]


def _encode_chunk(chunk: Any, id: str) -> Any:
    if type(chunk) is not AIMessageChunk or chunk.id != id:
        return chunk
    rest = {name: value for name, value in chunk.__dict__.items() if value and name in _CHUNK_FIELDS}
    return [len(chunk.content), rest] if rest else len(chunk.content)


def decode_chunks(chunks: list[Any], message: Any) -> list[Any]:
    """Return the chunks that were encoded."""
    found, at = [], 0
    for each in chunks:
        if isinstance(each, BaseMessage):
            found.append(each)
            at += len(each.content)
            continue
        size, rest = (each, {}) if isinstance(each, int) else each
        found.append(AIMessageChunk(content=message.content[at : at + size], id=message.id, **rest))
        at += size
    return found


def incomplete(recorded: tuple[int, dict[str, Any]]) -> tuple[int, dict[str, Any]]:
    """Return the record of a task without its calls, whose values cannot be stored."""
    number, record = recorded
    return number, {
        **record,
        "calls": [call[:4] for call in record["calls"]],
        "mode": "incomplete",
        "resumed": [],
        "questions": [],
    }
