"""Removing one person's artifacts and sessions from the histories of the lines that have their records.

The records are deleted before; but the steps of these lines still contain them, also those that were deleted long ago.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

from holdfast.engine.artifact_links import LINE as ARTIFACTS
from holdfast.engine.engine import Engine
from holdfast.engine.model.packed_state import as_map, unpack
from holdfast.engine.row_format import Line
from holdfast.engine.system_line import SystemLine
from holdfast.maintenance.erasure.audit_rows import record_place
from holdfast.maintenance.erasure.mixed_lines import LineEraser
from holdfast.state.artifacts.content import content_name
from holdfast.state.sessions.records import LINE as SESSIONS

IsRecord = Callable[[Mapping[str, Any]], bool]
"""Returns whether a record is the person's."""


async def erase_records(
    engine: Engine,
    tenant: str,
    is_record: IsRecord,
    detail: Mapping[str, Any],
    lines: Collection[Line] | None = None,
) -> int:
    """Prune the steps of both lines that contain records of a person; of one of them, if only that is among `lines`.
    Returns their number."""
    count = 0
    for name in (ARTIFACTS, SESSIONS):
        line = Line(tenant, name)
        if (lines is None or line in lines) and await engine.lines.load_tip(line) is not None:
            count += await _erase_line(engine, line, is_record, detail)
    return count


async def _erase_line(engine: Engine, line: Line, is_record: IsRecord, detail: Mapping[str, Any]) -> int:
    codec, names, places = engine.context.codec, set[str](), list[str]()
    current = await SystemLine(engine, line).read(lambda entries: entries.with_prefix(""))

    def is_mine(name: str, packed: bytes) -> bool:
        if name in current:
            return False  # it is still there: whoever it belongs to, or content that another artifact has too
        if name.startswith("\0"):
            return name in names
        fields = as_map(packed)
        record = None if fields is None else unpack(codec, fields)
        if not isinstance(record, Mapping) or not is_record(record):
            return False
        names.add(content_name(str(record.get("sha256", ""))))
        found = (record_place(line.name, name), *([str(record["scope"])] if line.name == SESSIONS else []))
        places.extend(each for each in found if each not in places)
        return True

    return await LineEraser(engine, line, {**detail, "places": places}, is_mine=is_mine).erase()
