"""Deleting what a person has in a store, each piece together with its record in the audit.

A record of the action `erase` has the id of the erasure, the kind of what was deleted, and a digest of a line. So an
erasure that was killed can tell, when it is resumed, what was deleted before.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

from holdfast.agents.steps.timers import row_removals
from holdfast.backends.interface import Batch, Delete, Expect, Row, Scan
from holdfast.backends.paging import scan_rows
from holdfast.backends.tables import EVENTS, QUARANTINE, STEPS
from holdfast.engine.context import Apply
from holdfast.engine.engine import Engine
from holdfast.engine.events import BETWEEN
from holdfast.engine.guard import current_authority
from holdfast.engine.ids import new_id
from holdfast.engine.model.scopes import MARK, parse_place
from holdfast.engine.namespaces import AUDIT, is_thread, line_kind, root_of, short_name
from holdfast.engine.row_format import ERASE, Line, StepRef, open_body, open_quarantined
from holdfast.engine.subject_names import subject_of_name, subjects_of_step
from holdfast.engine.types import Progress
from holdfast.errors import HoldfastError
from holdfast.maintenance.erasure.audit_rows import places_of
from holdfast.maintenance.erasure.finder import SubjectData
from holdfast.maintenance.erasure.mixed_lines import LineEraser
from holdfast.maintenance.progress import report_each
from holdfast.security.access.registry import AccessRegistry
from holdfast.security.audit.erasure_ledger import digest_line
from holdfast.security.audit.retain import removal_request
from holdfast.security.audit.thread_audit import record, recorded
from holdfast.security.encryption.key_rows import erased_key_changes
from holdfast.security.handle import StoreHandle
from holdfast.state.artifacts.content import content_line
from holdfast.state.artifacts.records import ArtifactRecords
from holdfast.state.sessions.lifecycle import SessionLifecycle
from holdfast.state.sessions.records import SessionRecords

ERASURE = "erasure"
"""The detail of a record that has the id of the erasure."""

REWRITTEN, HISTORIES, KEYS = "rewritten ", "histories", "keys"
"""Kinds of records: the beginning for lines that others share; lines of records of artifacts and sessions; and keys."""

_RECORDS = ("artifact", "session record")

_PAGE = 500
_SLACK = 60 * 10**9


class ErasedPart(NamedTuple):
    """A record of something that was erased."""

    kind: str
    name: str
    """The name of the line."""
    line: bytes
    """The digest of the line in the ledger, if it was deleted."""
    since: int
    """Of a line that others share, when the first step was saved that was removed."""
    places: Sequence[str]
    """Other names by which records refer to it."""
    keys: Sequence[str]
    """The ids of keys that were destroyed."""
    dropped: int
    """How many steps were removed."""


async def delete_lines(engine: Engine, lines: Sequence[Line], erasure: str, key: bytes) -> None:
    """Delete lines that belong together, such as a thread and its namespaces. Their audit stays, without content.
    `key` is that of the ledger. `DeniedError` if one is held."""
    actor = current_authority().actor
    for line in lines:
        tip = await engine.lines.load_tip(line)
        salt = b"" if tip is None else tip.info.salt
        digest, dropped = digest_line(key, salt) if salt else b"", await count_steps(engine, line)
        detail = {ERASURE: erasure, "kind": line_kind(line.name), "line": digest, "dropped": dropped}
        if is_thread(line.name):
            await engine.lines.delete(line, apply=_with_keys(engine, line, recorded(engine, line, ERASE, detail)))
        else:
            timers = await row_removals(engine, line)
            await engine.writer.save(removal_request(engine, [line], actor, action=ERASE, detail=detail, erase=True))
            if timers:
                await engine.context.backend.apply(timers)
            engine.context.cache.drop_all(line)


async def count_steps(engine: Engine, line: Line) -> int:
    """Return how many steps a line has, without those that were pruned."""
    rows = scan_rows(engine.context.backend, STEPS, tuple(line), bodies=False)
    return sum([not StepRef.of(row).pruned async for row in rows])


def _with_keys(engine: Engine, line: Line, apply: Apply) -> Apply:
    """Return how to delete a line together with a record that its keys are destroyed."""

    async def apply_with_keys(batch: Batch) -> int | None:
        return await apply([*await erased_key_changes(engine, [line]), *batch])

    return apply_with_keys


async def delete_artifact(handle: StoreHandle, id: str, erasure: str, key: bytes) -> None:
    """Delete an artifact, and its content if no other has it. `key` is that of the ledger."""
    records, engine = ArtifactRecords(handle), handle.engine
    found = (await records.get_many([id])).get(id)
    # Larger content has a line of its own, which goes if no other artifact has it.
    content = [content_line(handle, found.token)] if found is not None and found.token else []
    tip = await engine.lines.load_tip(content[0]) if content else None
    detail = {ERASURE: erasure, "kind": "artifact", "line": b"" if tip is None else digest_line(key, tip.info.salt)}
    await record(engine, [Line(handle.tenant, AUDIT)], ERASE, detail)
    keys = [change for change in await erased_key_changes(engine, content) if not isinstance(change, Expect)]
    await records.delete(id)
    if keys and await engine.lines.load_tip(content[0]) is None:
        await engine.context.backend.apply(keys)


async def delete_session(handle: StoreHandle, id: str, erasure: str) -> None:
    """Delete the record of a session, and what is left of its state."""
    await record(handle.engine, [Line(handle.tenant, AUDIT)], ERASE, {ERASURE: erasure, "kind": "session record"})
    await SessionLifecycle(SessionRecords(handle)).delete(id)


async def delete_found(
    handle: StoreHandle, found: SubjectData, erasure: str, key: bytes, progress: Progress | None = None
) -> None:
    """Delete what was found of a person, and their steps from lines that others share. `key` is that of the ledger."""
    engine = handle.engine
    families: dict[Line, list[Line]] = {}
    for line in found.lines:
        families.setdefault(root_of(line), []).append(line)
    parts: list[tuple[str, Callable[[], Awaitable[object]]]] = [
        *((short_name(each[0].name), partial(delete_lines, engine, each, erasure, key)) for each in families.values()),
        *((f"artifact {id}", partial(delete_artifact, handle, id, erasure, key)) for id in found.artifacts),
        *((f"session {id}", partial(delete_session, handle, id, erasure)) for id in found.sessions),
    ]
    for line, steps in found.steps.items():
        detail = {ERASURE: erasure, "kind": f"{REWRITTEN}{line_kind(line.name)}"}
        parts.append((short_name(line.name), LineEraser(engine, line, detail, steps).erase))
    for _, delete in report_each(parts, progress, lambda each: each[0]):
        await delete()


async def erase_quarantine(
    engine: Engine, tenant: str, is_subject: Callable[[str], bool], metadata_keys: Sequence[str]
) -> None:
    """Delete the damaged rows of lines where a damaged step was the person's: nobody can tell whose the others were."""
    names, rows = set[str](), engine.context.rows
    async for stored in scan_rows(engine.context.stored, QUARANTINE, (tenant,)):  # also those that are damaged again
        name = str(stored.key[1])
        with suppress(HoldfastError, ValueError, TypeError, IndexError):
            if rows.salvage(QUARANTINE, stored).columns[0] != STEPS.name:
                continue
            key, columns, body = open_quarantined(rows.decode(QUARANTINE, stored))
            row = rows.salvage(STEPS, Row((tenant, name, *key), columns, body))
            named, made = subjects_of_step(StepRef.of(row), metadata_keys)
            if any(map(is_subject, named)) or (made and is_subject(made)):
                names.add(name)
    if names:
        await engine.context.backend.apply([Delete(QUARANTINE, (tenant, name)) for name in sorted(names)])


async def forget_reasons(
    engine: Engine, tenant: str, is_subject: Callable[[str], bool], until: int | None = None
) -> None:
    """Remove the reasons why identities of a person are frozen, without later ones. They stay frozen."""
    await AccessRegistry(engine, tenant).rewrite_reasons(
        lambda identity, reason: "" if is_subject(subject_of_name(identity)) else reason, until
    )


@dataclass
class ErasedParts:
    """The sum of what an erasure recorded."""

    erased: Counter[str] = field(default_factory=Counter)
    """How much was deleted, by kind."""
    rewritten: Counter[str] = field(default_factory=Counter)
    """How many lines that others share were rewritten, by kind."""
    lines: set[bytes] = field(default_factory=set)
    """The digests of lines in the ledger."""
    places: dict[str, int] = field(default_factory=dict)
    """The names of all that was erased, and from when on."""
    keys: set[str] = field(default_factory=set)
    """The ids of keys that were destroyed."""
    steps: int = 0
    """How many steps were removed, with their lines or from lines that others share."""

    def add(self, part: ErasedPart) -> None:
        """Add a record."""
        self.keys.update(part.keys)
        self.places.update(dict.fromkeys(part.places, 0))
        if part.line:
            self.lines.add(part.line)
        self.steps += 0 if part.kind == HISTORIES else part.dropped
        if part.kind.startswith(REWRITTEN):
            self.rewritten[part.kind.removeprefix(REWRITTEN)] += 1
            if part.since:
                self.add_places(dict.fromkeys(places_of(part.name), part.since))
        elif part.kind not in (HISTORIES, KEYS):
            self.erased[part.kind] += 1
            if part.kind not in _RECORDS:
                self.places.update(dict.fromkeys(places_of(part.name), 0))

    def add_places(self, places: Mapping[str, int]) -> None:
        """Add places that others share, and from when on."""
        for name, since in places.items():
            self.places[name] = min(since, self.places.get(name, since))


async def sum_parts(engine: Engine, tenant: str, erasure: str, since: int) -> ErasedParts:
    """Return all that an erasure recorded since a time, in nanoseconds since 1970."""
    found = ErasedParts()
    async for part in erased_parts(engine, tenant, erasure, since):
        found.add(part)
    return found


async def erased_parts(engine: Engine, tenant: str, erasure: str, since: int) -> AsyncIterator[ErasedPart]:
    """Yield what an erasure recorded since a time, in nanoseconds since 1970."""
    # Ids of steps sort by time; rows that were retained from other lines have times of their own.
    start: tuple[Any, ...] = (new_id(max(0, since - _SLACK)),)
    while True:
        (rows,) = await engine.context.backend.read([Scan(EVENTS, (tenant, AUDIT), start=start, limit=_PAGE)])
        for row in rows:
            action, target = row.columns[3:5]
            if action != ERASE or not row.body:
                continue
            detail: Mapping[str, Any] = engine.context.codec.unpack(open_body(row, engine.context.max_bytes))
            if detail.get(ERASURE) == erasure:
                name = _line_name(str(target).removesuffix(BETWEEN))
                more = (
                    detail.get("since", 0),
                    detail.get("places", ()),
                    detail.get("keys", ()),
                    detail.get("dropped", 0),
                )
                yield ErasedPart(detail["kind"], name, detail.get("line", b""), *more)
        if len(rows) < _PAGE:
            return
        id, number = rows[-1].key[2:]
        start = (id, int(number) + 1)


def _line_name(place: str) -> str:
    """Return the name of the line of a place as records have it: the inverse of `place_of_line`."""
    thread = parse_place(place).thread if place.startswith("thread:") else ""
    return thread or MARK + place
