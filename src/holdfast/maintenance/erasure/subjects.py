"""Assignments of lines to subjects, as they are stored."""

from __future__ import annotations

from collections.abc import Iterable

from holdfast.backends.interface import Change, Delete, Get, Put, Row
from holdfast.backends.tables import REFS, Key
from holdfast.engine.engine import Engine
from holdfast.engine.namespaces import root_of
from holdfast.engine.row_format import Line, subject_key
from holdfast.engine.subject_names import MIXED
from holdfast.security.audit.thread_audit import recorded

_BATCH = 500


def tenant_key(tenant: str) -> Key:
    """Return the key of the reference to the subject that all of a tenant belongs to."""
    return subject_key(Line(tenant, ""))


async def read_subjects(engine: Engine, lines: Iterable[Line]) -> dict[Line, str]:
    """Return the subjects that lines are assigned to, by line: `MIXED` if it is marked so. Others are left out."""
    roots = {line: root_of(line) for line in lines}
    keys = [subject_key(root) for root in dict.fromkeys(roots.values())]
    found: dict[Key, str] = {}
    for start in range(0, len(keys), _BATCH):
        (rows,) = await engine.context.backend.read([Get(REFS, keys[start : start + _BATCH])])
        found |= {row.key: str(row.columns[0]) for row in rows}
    return {line: found[key] for line, root in roots.items() if (key := subject_key(root)) in found}


async def set_subject(engine: Engine, line: Line, subject: str | None) -> None:
    """Assign a line to a subject, mark it as mixed (`MIXED`), or remove either with None. A tenant, if the name of the
    line is empty."""
    detail = {"mixed": True} if subject == MIXED else {"removed": True} if subject is None else {}
    apply = recorded(engine, line, "set-subject", detail)
    while True:
        row = Row(subject_key(line), (subject or "", engine.context.clock()))
        changes: list[Change] = [Delete(REFS, row.key) if subject is None else Put(REFS, row)]
        if line.name:
            changes = [*engine.lines.new_version(line, await engine.lines.info(line)), *changes]
        if await apply(changes) is None:
            engine.context.cache.drop(("line", line))
            break
    if line.name:
        await _assign_keys(engine, await engine.lines.family(line), "" if subject in (None, MIXED) else str(subject))


async def _assign_keys(engine: Engine, lines: Iterable[Line], subject: str) -> None:
    """Encrypt the keys of lines with that of their subject, if the store is encrypted."""
    if not engine.context.rows.hides_columns:
        return
    from holdfast.security.encryption.encrypted_rows import EncryptedRows

    if isinstance(engine.context.rows, EncryptedRows):
        for line in lines:
            await engine.context.rows.store_keys.subjects.assign((line.tenant, line.name), subject)
