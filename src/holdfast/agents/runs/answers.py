"""Answers to the interrupts of graphs, stored as LangGraph stores what resumes a task.

A run that waits is queued in the same batch: a worker goes on from the checkpoint, and finds the answer there.
"""

from __future__ import annotations

from typing import Any

from holdfast._named_tuple import NamedTuple
from holdfast.agents.runs.record import WAITING
from holdfast.agents.runs.table import GIVEN, RunTable
from holdfast.agents.runs.wake import ring
from holdfast.backends.interface import Batch, Create, Expect, Put, Row
from holdfast.backends.tables import STEPS, WRITES
from holdfast.engine.engine import Engine
from holdfast.engine.guard import current_authority
from holdfast.engine.model.steps import ANSWERED, PendingWriteRow
from holdfast.engine.optimistic import Attempts
from holdfast.engine.row_format import Line, StepRef, write_row
from holdfast.errors import ConflictError, InvalidError, NotFoundError
from holdfast.history.thread_status import INTERRUPT, RESUME, items_of, questions_in, read_status, refresh_status
from holdfast.security.audit.thread_audit import recorded
from holdfast.security.handle import StoreHandle

_RESUME_PLACE = -4
"""The place of LangGraph's write that resumes a task."""

_ANSWERED_PLACE = -100


class _Asked(NamedTuple):
    """The task that asks, and the answers that it has already."""

    line: Line
    step: StepRef
    path: str
    task: str
    answers: list[Any]


async def store_answer(
    handle: StoreHandle, line: Line, value: Any, question: str | None, *, run: str | None = None
) -> None:
    """Store the answer to a question of a thread, and queue its run that waits: the one with the id `run`, if that is
    given. The first answer counts."""
    engine, attempts = handle.engine, Attempts("answering", line, handle.engine.context.metrics)
    if engine.protection is not None:  # the graph would go on with the stand-in
        await engine.protection.refuse(line, engine.context.codec.pack(value), "answer")
    while True:
        await attempts.begin()
        continued = await _continued(handle, line, run)
        root = await engine.lines.find(line, None)
        id = await _question(engine, line, question)
        asked = await _find_task(engine, line, root, id)
        batch: Batch = [
            Create(WRITES, _answered(engine, line, root, id)),
            *await _unchanged(engine, line, root),
            *(await _unchanged(engine, asked.line, asked.step) if asked.line != line else ()),
            Put(WRITES, _resumed(engine, asked, value)),
            *continued,
            *await RunTable(handle).conditions(line, attempts),
        ]
        failed = await recorded(engine, line, "answer", {"question": id, "checkpoint": root.id})(batch)
        if failed is None:
            break
        if failed == 0:
            raise _taken(line, id)
        await engine.lines.load_tip(line)
    if continued:
        await ring(engine.context, line.tenant)
    await refresh_status(engine, line)


async def _question(engine: Engine, line: Line, question: str | None) -> str:
    """Return the id of the question that is answered."""
    status = await read_status(engine, line)
    ids = [each.id for each in status.questions]
    if question is None and len(ids) == 1:
        return ids[0]
    if question in ids:
        return str(question)
    if question is not None and status.checkpoint is not None and await _is_taken(engine, line, question):
        raise _taken(line, question)
    if not ids:
        raise ConflictError(
            f"the thread is {status.status}, and waits for no answer",
            where=f"thread {line}",
            hint="See what it does: store.thread(name).status()",
            code="not-waiting",
        )
    if question is None:
        raise InvalidError(
            f"{len(ids)} questions wait for an answer", where=f"thread {line}", hint=f"Name one: {', '.join(ids)}"
        )
    raise NotFoundError(
        "no such question waits for an answer", where=repr(question)[:80], hint=f"These wait: {', '.join(ids)}"
    )


async def _is_taken(engine: Engine, line: Line, id: str) -> bool:
    (rows,) = await engine.writes.of_many(line, [await engine.lines.find(line, None)])
    return any(row.channel == ANSWERED and row.task == id for row in rows)


def _taken(line: Line, id: str) -> ConflictError:
    return ConflictError(
        "another answered first",
        where=f"question {id} of thread {line}",
        hint="Look at what became of it: store.thread(name).status()",
        code="answered",
    )


async def _find_task(engine: Engine, line: Line, root: StepRef, id: str) -> _Asked:
    """Return the task that asks: the innermost one, since those around it have the same interrupt and pass on no
    answer."""
    found: _Asked | None = None
    for each in sorted(await engine.lines.family(line), key=lambda other: other.name.count("|") + (other != line)):
        step = root if each == line else await engine.lines.latest_step(each)
        if step is None:
            continue
        (rows,) = await engine.writes.of_many(each, [step])
        ended = {row.task for row in rows if row.place >= 0}
        for row in rows:
            if row.channel != INTERRUPT or row.task in ended:
                continue
            codec = engine.context.codec
            if any(question.id == id for question in questions_in(codec, row.packed)):
                before = next((other for other in rows if other.channel == RESUME and other.task == row.task), None)
                answers = [] if before is None else list(items_of(codec.unpack(before.packed)))
                found = _Asked(each, step, row.path, row.task, answers)
    if found is None:  # it went on meanwhile
        raise ConflictError("the question does not wait any more", where=f"thread {line}", code="not-waiting")
    return found


async def _unchanged(engine: Engine, line: Line, step: StepRef) -> Batch:
    """Return the conditions that a step is the last one."""
    return [
        engine.lines.line_unchanged(line, await engine.lines.info(line)),
        engine.lines.step_exists(line, step),
        Expect(STEPS, (*line, step.branch, step.seq + 1), None),
    ]


def _answered(engine: Engine, line: Line, root: StepRef, id: str) -> Row:
    """Return the row that only the first answer creates: it says whose it was."""
    who = engine.context.codec.pack(current_authority().actor)
    return write_row(line, root.id, PendingWriteRow("", id, _ANSWERED_PLACE, ANSWERED, who))


def _resumed(engine: Engine, asked: _Asked, value: Any) -> Row:
    """Return the row of the answers that the task has then."""
    packed = engine.context.codec.pack([*asked.answers, value])
    return write_row(asked.line, asked.step.id, PendingWriteRow(asked.path, asked.task, _RESUME_PLACE, RESUME, packed))


async def _continued(handle: StoreHandle, line: Line, id: str | None) -> Batch:
    """Return the changes that queue the run of a thread that waits, if there is one; or the condition that the run
    whose turn it is comes to no other state meanwhile. `ConflictError` if the run with the id does not wait."""
    table = RunTable(handle)
    queue = await table.queue(line)
    first = (await table.of_threads([(line.name, queue.ids[0])]))[0] if queue.ids else None
    if id is not None and (first is None or first.id != id or first.state != WAITING):
        raise (await table.get(id)).conflict("See what it waits for: store.thread(name).status()")
    if first is None:
        return []
    if first.state != WAITING:
        return [first.unchanged(table.tenant)]
    return table.requeued(first, queue, base=GIVEN)
