"""The content of events: what a checkpoint changed, and the details of the others."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from holdfast.backends.interface import Get, Row
from holdfast.backends.tables import EVENTS, STEPS
from holdfast.codec.envelope import DAMAGED
from holdfast.engine.checked_rows import read_despite_damage
from holdfast.engine.engine import Engine
from holdfast.engine.row_format import StepRef, open_body, open_step
from holdfast.errors import CorruptError, HoldfastError, NotFoundError
from holdfast.history.step_summary import last_message, summarize
from holdfast.security.audit.retain import STEP as RETAINED
from holdfast.store.timeline.event import EventFields, TimelineEvent
from holdfast.store.timeline.position import TimedRow
from holdfast.store.timeline.query import EventSubject

_MAX_SUMMARY = 200

_ERRORS = ("error", "reason", "damaged")
"""The details that say what went wrong."""


class TimelineContent(NamedTuple):
    """An event, and what a query is evaluated on."""

    event: TimelineEvent
    subject: EventSubject


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
        contents: list[TimelineContent | None] = []
        for each in rows:
            row = bodies.get((each.table.name, each.row.key))
            if row is None:
                contents.append(None)
            elif each.table is STEPS:
                contents.append(await self._checkpoint(each, row))
            else:
                contents.append(self._event(each, row))
        return contents

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
                texts = [text.text for text in brought]
        except NotFoundError:
            return None
        except CorruptError as error:
            return self._content(fields, "damaged", {"damaged": error.what}, texts)
        changed = summarize(step)
        summary = " · ".join(filter(None, (", ".join(changed), last_message(step))))
        detail: dict[str, Any] = {"changed": changed, "step": point.depth, "branch": point.branch}
        return self._content(fields, summary, detail, texts)

    def _event(self, each: TimedRow, row: Row) -> TimelineContent:
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
        texts = [*fields[1:7], *_texts(detail)] if self._texts else []
        return self._content(fields, _summary(detail), detail, texts)

    def _content(
        self, fields: EventFields, summary: str, detail: Mapping[str, Any], texts: Sequence[str]
    ) -> TimelineContent:
        short = summary if len(summary) <= _MAX_SUMMARY else f"{summary[: _MAX_SUMMARY - 1]}…"
        if self._engine.protection is not None:
            short = self._engine.protection.redact_text(short)
        return TimelineContent(fields.event(short, detail), EventSubject(fields, texts))


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
