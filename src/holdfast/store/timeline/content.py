"""The content of events: what a checkpoint changed, and the details of the others."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

from holdfast.agents.steps.records import RecordedStep
from holdfast.backends.interface import Get, Row, Scan
from holdfast.backends.tables import EVENTS, STEPS
from holdfast.codec.envelope import DAMAGED
from holdfast.codec.value_text import shorten
from holdfast.engine.checked_rows import read_despite_damage
from holdfast.engine.engine import Engine
from holdfast.engine.events import BETWEEN
from holdfast.engine.model.operations import EditMap
from holdfast.engine.model.packed_state import pack_name, unpack
from holdfast.engine.model.steps import Step
from holdfast.engine.row_format import Line, StepRef, open_body, open_step
from holdfast.engine.state_loader import LoadedState
from holdfast.engine.system_line import read_at
from holdfast.errors import CorruptError, HoldfastError, NotFoundError
from holdfast.history.step_summary import last_message, nodes_of, summarize
from holdfast.security.audit.retain import STEP as RETAINED
from holdfast.store.timeline.event import STEP, EventFields, TimelineEvent
from holdfast.store.timeline.position import TimedRow
from holdfast.store.timeline.query import EventSubject

_MAX_SUMMARY = 200

_ERRORS = ("error", "reason", "damaged")
"""The details that say what went wrong."""


class TimelineContent(NamedTuple):
    """An event, and what a query is evaluated on."""

    event: TimelineEvent
    subject: EventSubject


class _ReadStep(NamedTuple):
    """A step that was read."""

    point: StepRef
    step: Step


class ContentReader:
    """Reads the content of rows of the timeline."""

    def __init__(self, engine: Engine, *, texts: bool) -> None:
        self._engine = engine
        self._texts = texts
        """Whether texts are to be searched."""

    async def read(self, rows: Sequence[TimedRow]) -> list[TimelineContent | None]:
        """Return the events of rows; None for those that are gone meanwhile."""
        queries = [Get(table, [each.row.key for each in rows if each.table is table]) for table in (STEPS, EVENTS)]
        found = await read_despite_damage(self._engine.context.backend, queries)
        bodies = {
            (table.name, row.key): row for table, rows in zip((STEPS, EVENTS), found, strict=True) for row in rows
        }
        steps = await self._read_steps([each for each in rows if each.table is EVENTS])
        contents: list[TimelineContent | None] = []
        for each in rows:
            row = bodies.get((each.table.name, each.row.key))
            if row is None:
                contents.append(None)
            elif each.table is STEPS:
                contents.append(await self._checkpoint(each, row))
            else:
                contents.append(await self._event(each, row, steps.get((each.line, str(row.key[2])))))
        return contents

    async def _read_steps(self, rows: Sequence[TimedRow]) -> dict[tuple[Line, str], _ReadStep]:
        """Return the steps of changes of keys, by line and id: they have the values."""
        names = {(each.line, str(each.row.key[2])) for each in rows if _is_change(each)}
        scans = [Scan(STEPS, (*line, id), limit=1, by="id") for line, id in names]
        found: dict[tuple[Line, str], _ReadStep] = {}
        for (line, id), some in zip(
            names, await read_despite_damage(self._engine.context.backend, scans) if scans else [], strict=True
        ):
            with suppress(HoldfastError):  # it is pruned or damaged: the event says the rest
                if some and some[0].body and not StepRef.of(some[0]).pruned:
                    step = open_step(line, some[0], self._engine.context.max_bytes)
                    found[line, id] = _ReadStep(StepRef.of(some[0]), step)
        return found

    async def _checkpoint(self, each: TimedRow, row: Row) -> TimelineContent | None:
        fields, texts = EventFields.of(each), list[str]()
        if row.body == DAMAGED:
            return self._content(fields, "damaged", {"damaged": "the checkpoint cannot be read"}, texts)
        point = StepRef.of(row)
        if point.pruned or point.id != fields.id:
            return None
        try:
            step = open_step(each.line, row, self._engine.context.max_bytes)
            if self._texts:
                brought = await self._engine.indexer.brought(each.line, point, step, pruned=True)
                texts = [self._redact(text.text) for text in brought]
        except NotFoundError:
            return None
        except CorruptError as error:
            return self._content(fields, "damaged", {"damaged": error.what}, texts)
        changed = [self._redact(each) for each in summarize(step)]
        summary = " · ".join(filter(None, (", ".join(changed), self._redact(last_message(step)))))
        detail: dict[str, Any] = {"changed": changed, "step": point.depth, "branch": point.branch}
        if nodes := nodes_of(step):
            detail["nodes"] = nodes
        return self._content(fields, summary, detail, texts)

    async def _event(self, each: TimedRow, row: Row, step: _ReadStep | None) -> TimelineContent:
        fields, detail = EventFields.of(each), dict[str, Any]()
        context, protection = self._engine.context, self._engine.protection
        try:
            if row.body == DAMAGED:
                detail = {"damaged": "the record cannot be read"}
            elif row.body:
                packed = open_body(row, context.max_bytes)
                detail = context.codec.unpack(packed if protection is None else protection.redact(packed))
        except HoldfastError as error:
            detail = {"damaged": error.what}
        if RETAINED in detail:  # its line was removed since
            fields = fields._replace(id=str(detail.pop(RETAINED)))
        summary = _summary(detail)
        if step is not None and not summary:
            summary = await self._changed(each.line, step, fields)
        summary = self._redact(summary)
        texts = [*fields[1:7], summary, *_texts(detail)] if self._texts else []
        return self._content(fields, summary, detail, texts)

    async def _changed(self, line: Line, read: _ReadStep, fields: EventFields) -> str:
        """Return how a step changed a key, in short; of a durable step, how far it was."""
        name, (point, step) = pack_name(fields.key), read
        if fields.kind == STEP:
            with suppress(HoldfastError):
                value = await read_at(self._engine, line, point, partial(self._find, line, name))
                recorded = RecordedStep.of(fields.key, value)
                return ": ".join(filter(None, (recorded.step.state, recorded.error)))
            return ""
        put = tuple(each for each in step.edit.put if each[0] == name)
        parts = summarize(Step(step.header, EditMap((), put)))
        return ", ".join(part.removeprefix(fields.key).strip().removeprefix("=") for part in parts)

    async def _find(self, line: Line, name: bytes, _: StepRef | None, loaded: LoadedState | None) -> Any:
        entry = None if loaded is None else await self._engine.entries.find(line, loaded, name)
        return None if entry is None else unpack(self._engine.context.codec, entry.value)

    def _redact(self, text: str) -> str:
        """Return a text without sensitive data. Before it is cut: half a credential is not recognised."""
        return text if self._engine.protection is None else self._engine.protection.redact_text(text)

    def _content(
        self, fields: EventFields, summary: str, detail: Mapping[str, Any], texts: Sequence[str]
    ) -> TimelineContent:
        return TimelineContent(fields.event(shorten(summary, _MAX_SUMMARY), detail), EventSubject(fields, texts))


def _is_change(row: TimedRow) -> bool:
    """Return whether an event is a change of a key by the step that it is stored with."""
    return row.row.columns[1] == "change" and BETWEEN not in str(row.row.columns[4])


def _summary(detail: Mapping[str, Any]) -> str:
    """Return what details say in short."""
    wrong = [str(detail[name]) for name in _ERRORS if detail.get(name)]
    if wrong:
        return ": ".join(wrong)
    if detail.get("from") and detail.get("to"):
        return f"{detail['from']} → {detail['to']}"
    return ""


def _texts(value: Any) -> Iterator[str]:
    """Yield the texts in details."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _texts(item)
    elif isinstance(value, list | tuple | set | frozenset):
        for item in value:
            yield from _texts(item)
    elif value is not None and not isinstance(value, bytes | bool | int | float):
        yield str(value)
