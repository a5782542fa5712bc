"""The status of a thread, read and derived.

A graph of LangGraph stores what it will do next in the channels that trigger nodes, and errors, interrupts and answers
as pending writes; it never says that it has ended. So it is done if its newest checkpoint triggers nothing. A state
without such channels says nothing, and the thread is idle.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import Any

from holdfast._named_tuple import NamedTuple
from holdfast.backends.interface import Expect, Get, Put
from holdfast.backends.tables import REFS
from holdfast.codec import Codec
from holdfast.codec.opaque import OpaqueValue
from holdfast.engine.claims import held_claims
from holdfast.engine.delta_channels import KEPT
from holdfast.engine.engine import Engine
from holdfast.engine.model.packed_state import PackedMap, as_map, pack_name, unpack
from holdfast.engine.model.steps import ANSWERED, PendingWriteRow
from holdfast.engine.namespaces import root_of
from holdfast.engine.optimistic import Attempts
from holdfast.engine.row_format import Line, StepRef
from holdfast.engine.thread_status import (
    DONE,
    FAILED,
    IDLE,
    RUNNING,
    UNFINISHED,
    WAITING,
    StoredStatus,
    ThreadState,
    forget_status,
    note_status,
    show_status,
    status_keys,
    stored_status,
)
from holdfast.engine.types import Question, ThreadStatus, to_datetime

_START, _TRIGGER, _JOIN, _SENDS = "__start__", "branch:to:", "join:", "__pregel_tasks"
ERROR, INTERRUPT, RESUME = "__error__", "__interrupt__", "__resume__"
_PULL, _PUSH = "~__pregel_pull, ", "~__pregel_push, "
NO_TASK = "00000000-0000-0000-0000-000000000000"
"""The task of an answer that was given to the graph as a whole."""

_VERSION = "version of "
_MARKS = {ERROR: FAILED, INTERRUPT: WAITING, RESUME: UNFINISHED}
"""What pending writes say of a thread, by their channel: the first that there is."""


def status_of_state(values: Mapping[Any, Any], versions: Collection[str]) -> ThreadState:
    """Return the status of a graph whose newest checkpoint has these values, and versions of these channels."""
    for name in values:
        if not isinstance(name, str):
            continue  # which is refused where the state is packed
        start = name[:10]
        if start == _TRIGGER or name == _START:
            return UNFINISHED
        if start[:5] == _JOIN and _is_complete(name, values[name]):
            return UNFINISHED
    if values.get(_SENDS):
        return UNFINISHED
    return DONE if _START in versions or any(name.startswith(_TRIGGER) for name in versions) else IDLE


def _is_complete(join: str, value: object) -> bool:
    """Return whether all nodes have ended that another one waits for: the channel is `join:a+b:c`."""
    if isinstance(value, tuple | list) and len(value) == 2:
        value = value[0]  # of a node that is deferred
    if not isinstance(value, set | frozenset | list | tuple):
        return False
    awaited = join[len(_JOIN) :].rpartition(":")[0]
    return len("+".join(map(str, value))) == len(awaited)


def status_of_writes(writes: Sequence[tuple[str, Any]]) -> ThreadState | None:
    """Return the status of a graph of which a task wrote to these channels; None if they do not change it."""
    channels = {channel for channel, _ in writes}
    return next((status for mark, status in _MARKS.items() if mark in channels), None)


class _Marks(NamedTuple):
    """The pending writes of a step that say why the graph stopped there: of tasks that have no result."""

    errors: Sequence[PendingWriteRow]
    interrupts: Sequence[PendingWriteRow]
    answered: frozenset[str]
    """The ids of the interrupts that were answered, and whose tasks have not gone on yet."""
    is_answered: bool
    """Whether an answer was stored that no task has taken yet."""

    @classmethod
    def of(cls, codec: Codec, rows: Sequence[PendingWriteRow]) -> _Marks:
        """Return those among the writes that follow a step."""
        ended = {row.task for row in rows if row.place >= 0}
        answers = {row.task: row.packed for row in rows if row.channel == RESUME}
        given = answers.pop(NO_TASK, None)
        taken = [answer for packed in answers.values() for answer in items_of(codec.unpack(packed))]
        left = [row for row in rows if row.task not in ended]
        return cls(
            [row for row in left if row.channel == ERROR],
            [row for row in left if row.channel == INTERRUPT],
            frozenset(row.task for row in rows if row.channel == ANSWERED),
            given is not None and codec.unpack(given) not in taken,
        )


async def read_status(engine: Engine, line: Line, *, is_own: bool = False) -> ThreadStatus:
    """Return the status of a thread. `NotFoundError` if there is no such thread. For the run that has its claim,
    `is_own`, it is what the graph left."""
    codec, lines = engine.context.codec, engine.lines
    head, (rows,) = await lines.find_and(line, None, [Get(REFS, status_keys(line))])
    (writes,) = await engine.writes.of_many(line, [head])
    marks = _Marks.of(codec, writes)
    held = set[Line]() if is_own else await held_claims(engine.context, rows)
    status = show_status(rows, head, held)
    is_answered = status == WAITING and bool(marks.interrupts) and not _questions(codec, marks, ())
    if status is None or is_answered:
        status = await _derive(engine, line, head, marks)
        status = RUNNING if status not in (WAITING, FAILED) and held else status
    stored = stored_status(rows)
    is_stored = stored is not None and stored.is_of(head)
    since = to_datetime(stored.since) if stored is not None and stored.status == status and is_stored else None
    if status not in (WAITING, FAILED):
        return ThreadStatus(status, since, head.id)
    sends = await _sends(engine, line, head, marks)
    if status == WAITING:
        return ThreadStatus(status, since, head.id, _questions(codec, marks, sends))
    if not marks.errors:
        return ThreadStatus(status, since, head.id)
    failed = marks.errors[0]
    error, message = parse_error(str(codec.unpack(failed.packed)))
    return ThreadStatus(status, since, head.id, [], _node(failed.path, sends), error, message)


async def _derive(engine: Engine, line: Line, head: StepRef, marks: _Marks) -> ThreadState:
    if marks.errors:
        return FAILED
    if not marks.is_answered and _questions(engine.context.codec, marks, ()):
        return WAITING
    state = await engine.lines.read_step(line, head, partial(engine.states.values, line))
    kept = as_map(state.get(pack_name(KEPT), b"\x80")) or {}
    codec = engine.context.codec
    versions = [name.removeprefix(_VERSION) for name in map(codec.unpack, kept) if str(name).startswith(_VERSION)]
    return status_of_state(_triggers(codec, state), versions) if versions else IDLE


def _triggers(codec: Codec, state: PackedMap) -> dict[str, Any]:
    """Return the values of the channels that trigger nodes."""
    found = {}
    for key, packed in state.items():
        name = codec.unpack(key)
        if isinstance(name, str) and (name in (_START, _SENDS) or name.startswith((_TRIGGER, _JOIN))):
            found[name] = unpack(codec, packed)
    return found


async def is_answered(engine: Engine, line: Line) -> bool:
    """Return whether all questions of a thread have answers, which its graph has not taken."""
    head = await engine.lines.latest_step(line)
    if head is None:
        return False
    (writes,) = await engine.writes.of_many(line, [head])
    marks = _Marks.of(engine.context.codec, writes)
    return bool(marks.interrupts) and not _questions(engine.context.codec, marks, ())


async def refresh_status(engine: Engine, line: Line, *, is_new: bool = False) -> None:
    """Store the status of a thread anew, if it has one: HEAD was moved by other means than a run of its graph. Of a new
    one, store that which its last step says."""
    attempts = Attempts("storing the status", line, engine.context.metrics)
    while root_of(line) == line:
        await attempts.begin()
        head = await engine.lines.latest_step(line)
        if head is None:
            return
        (rows,) = await engine.context.backend.read([Get(REFS, status_keys(line))])
        stored = stored_status(rows)
        if stored is None and not is_new:
            return
        (writes,) = await engine.writes.of_many(line, [head])
        status = await _derive(engine, line, head, _Marks.of(engine.context.codec, writes))
        if status == IDLE if stored is None else (status == stored.status and stored.is_of(head)):
            return
        now = StoredStatus(status, engine.context.clock(), head.id).row(line)
        # If it is not as it was read, another process has stored a later one, of what it knew.
        before = None if stored is None else stored.row(line).columns
        conditions = [engine.lines.step_exists(line, head), Expect(REFS, now.key, before)]
        if await engine.context.backend.apply([*conditions, Put(REFS, now)]) is None:
            forget_status(engine.context, line)
            note_status(engine.context, line, [now])
            return
        await engine.lines.load_tip(line)


async def refresh_answered(engine: Engine, line: Line) -> None:
    """Store the status of a thread anew if questions of its last step were answered: a task that asks again, since it
    ran beside the one that went on, has stored that the thread waits."""
    head = await engine.lines.latest_step(line)
    if head is not None:
        (writes,) = await engine.writes.of_many(line, [head])
        if any(row.channel == ANSWERED for row in writes):
            await refresh_status(engine, line)


# Questions and errors ---------------------------------------------------------------------------------------------


async def _sends(engine: Engine, line: Line, head: StepRef, marks: _Marks) -> list[str]:
    """Return the nodes that packets were sent to, if tasks of some of them stopped."""
    if not any(row.path.startswith(_PUSH) for row in (*marks.errors, *marks.interrupts)):
        return []
    state = await engine.lines.read_step(line, head, partial(engine.states.values, line))
    sends = _triggers(engine.context.codec, state).get(_SENDS, ())
    codec = engine.context.codec
    return [str(field_of(codec, each, "node", "")) for each in sends] if isinstance(sends, list | tuple) else []


def _node(path: str, sends: Sequence[str]) -> str:
    """Return the node of a task, by its path; of a function that was called in a node, that node."""
    _, _, called = path.partition(_PULL)
    if called:
        return called.partition(", ")[0]
    number = path.removeprefix(_PUSH).partition(", ")[0]
    return sends[int(number)] if number.isdigit() and int(number) < len(sends) else ""


def _questions(codec: Codec, marks: _Marks, sends: Sequence[str]) -> list[Question]:
    found = [each for row in marks.interrupts for each in questions_in(codec, row.packed, _node(row.path, sends))]
    return [each for each in found if each.id not in marks.answered]


def questions_in(codec: Codec, packed: bytes, node: str = "") -> list[Question]:
    """Return the questions in a pending write of a task that stopped, of a node. LangGraph need not be loaded."""
    return [
        Question(
            str(field_of(codec, each, "id", "")),
            node,
            field_of(codec, each, "value", each),
            field_of(codec, each, "response_schema", None),
        )
        for each in items_of(codec.unpack(packed))
    ]


def field_of(codec: Codec, value: Any, name: str, default: Any) -> Any:
    """Return a field of an instance of one of LangGraph's classes; of its stored form, if that class is not loaded."""
    if not isinstance(value, OpaqueValue):
        return getattr(value, name, default)
    fields = value.fields
    return codec.unpack(codec.pack(fields[name])) if name in fields else default


def items_of(value: Any) -> Sequence[Any]:
    """Return the items of a pending write that may have several."""
    return value if isinstance(value, list | tuple) else [value]


def parse_error(text: str) -> tuple[str, str]:
    """Return the class and the message of an error, which is stored as `ValueError('message')`."""
    name, bracket, rest = text.partition("(")
    if not bracket or not name.isidentifier() or not rest.endswith(")"):
        return "", text
    from ast import literal_eval

    inside = rest[:-1].removesuffix(",")
    try:
        value = literal_eval(inside) if inside else ""
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return name, inside
    return name, value if isinstance(value, str) else inside
