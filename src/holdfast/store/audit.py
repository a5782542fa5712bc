"""The audit of a store: `store.audit.query()`, `.verify()`, `.export(path)`, `.archive(path)`."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.backends.runtime.drivers import FILES, AsyncApi, SyncApi, as_change, operation
from holdfast.engine import validation
from holdfast.engine.model.scopes import Scope
from holdfast.engine.namespaces import LineKinds, parse_kinds
from holdfast.engine.pages import Page
from holdfast.engine.types import to_datetime, to_time
from holdfast.errors import InvalidError
from holdfast.security.access.identity import parse_identity
from holdfast.security.handle import StoreHandle, owner_handle
from holdfast.time_parser import Duration, parse_nanoseconds, parse_time

if TYPE_CHECKING:
    from holdfast.maintenance.verify.heads import StoreHeads
    from holdfast.security.audit.export import AuditArchive, AuditExport
    from holdfast.security.audit.query import AuditRecord
    from holdfast.security.audit.recorder import AuditRecorder
    from holdfast.security.audit.verify import AuditReport
    from holdfast.state.access_api import Who

_MICROSECOND = 999
"""Times come to the microsecond, and stand for its end; a query goes back to its start."""


class AuditOperations:
    """Operations on the audit. `Audit` and `AsyncAudit` have these as methods."""

    def __init__(self, handle: StoreHandle, recorder: AuditRecorder) -> None:
        self._handle = owner_handle(handle)
        self._recorder = recorder

    @operation(may_lag=True)
    async def query(
        self,
        *,
        actor: Who | None = None,
        scope: Scope | str | None = None,
        thread: str | None = None,
        key: str = "",
        kind: str = "",
        action: str = "",
        outcome: str = "",
        correlation: str = "",
        since: datetime | str | None = None,
        until: datetime | str | None = None,
        limit: int = 100,
        cursor: str | None = None,
    ) -> Page[AuditRecord]:
        """List audit records, the newest first: changes, hooks, grants, reads of identities, and denials: a page of
        them.

        `actor` is an identity, or `""` for the store's owner; `thread` is the name of a thread, whose namespaces are
        included; `kind` is `change`, `thread`, `hook`, `access`, `session`, `artifact`, `read` or `denied`; `outcome`
        is `ok`, `denied`, or `invalid` for an invalid name. Times are datetimes, or text such as `"2h"`.
        """
        from holdfast.security.audit import query

        await as_change(self._recorder.flush())
        now = to_datetime(self._handle.now()).astimezone()
        question = query.AuditQuery(
            "" if actor == "" else None if actor is None else str(parse_identity(actor)),
            self._place(scope, thread),
            key,
            kind,
            action,
            outcome,
            correlation,
            max(_moment(since, now) - _MICROSECOND, 0),
            _moment(until, now),
        )
        count = validation.require_count(limit, "limit")

        async def read(after: str | None) -> Page[AuditRecord]:
            records = await query.query_audit(self._handle, question, count + 1, after)
            return Page.cut(records, count, lambda record: record.cursor, read)

        return await read(cursor)

    def _place(self, scope: Scope | str | None, thread: str | None) -> str:
        """Return the scope or the thread that records are about, as text; empty for all."""
        if thread is not None:
            if scope is not None:
                raise InvalidError("records are about a scope or about a thread: give one of them")
            return str(Scope.of_thread(self._handle.thread_line(thread).name))
        return "" if scope is None else str(self._handle.guard.scope(scope))

    @operation
    async def verify(self, heads: StoreHeads | Mapping[str, tuple[int, str]] | None = None) -> AuditReport:
        """Check that the audit is as it was written: every row against its step, every step against its hash and the
        step before. The report names what is missing, altered or added.

        With `heads` that were exported earlier, by `maintenance.heads` or `audit.export`, missing steps at the end of a
        line are found, too. Without them nothing shows those, and `report.compared` is None.
        """
        from holdfast.maintenance.verify.heads import StoreHeads
        from holdfast.security.audit import verify

        await self._recorder.flush()
        if isinstance(heads, StoreHeads):
            if heads.tenant != self._handle.tenant:
                raise InvalidError(f"the heads are those of tenant {heads.tenant!r}")
            heads = heads.audited()
        return await verify.verify(self._handle.engine, self._handle.tenant, heads)

    @operation(local=FILES)
    async def export(self, path: str | Path) -> AuditExport:
        """Write the audit to a file, one JSON document a line, with everything that the hashes cover.

        A third party can check it with `holdfast.access.check_audit`, and needs only the file, the public key of the
        store that signed it, and perhaps heads that were exported earlier. That of an encrypted store is encrypted, and
        needs the master key, too, unless the store was opened with `clear=["export"]`.
        """
        from holdfast.security.audit import export

        await self._recorder.flush()
        return await export.export(self._handle.engine, self._handle.tenant, path)

    @operation(changes=True, local=FILES)
    async def archive(
        self, path: str | Path, *, older_than: Duration, kinds: LineKinds | None = None, dry_run: bool = False
    ) -> AuditArchive:
        """Write the records of some age to a file, a segment of the archive, and remove them from the store.

        The audit still verifies: its steps stay, and the store has a record of what is in which segment. A segment is
        checked with `holdfast.access.check_audit`, given the heads of the one before it; of an encrypted store, it is
        encrypted. `kinds` are those of lines, by default all but agents, whose records are the log of their
        transitions. Lines with a legal hold are left as they are.
        """
        from holdfast.maintenance.backup_status import unseen_since
        from holdfast.security.audit import export as archive

        await self._recorder.flush()
        before = self._handle.now() - parse_nanoseconds(older_than, "age")
        chosen = archive.ARCHIVED_KINDS if kinds is None else parse_kinds(kinds)
        engine, tenant = self._handle.engine, self._handle.tenant
        unseen = await unseen_since(engine, tenant)
        return await archive.archive(engine, tenant, path, before, chosen, dry_run=dry_run, unseen=unseen)


class Audit(SyncApi, AuditOperations):
    """The audit of a `Store`."""


class AsyncAudit(AsyncApi, AuditOperations):
    """The audit of an `AsyncStore`: operations are awaited."""


def _moment(when: datetime | str | None, now: datetime) -> int:
    if when is None:
        return 0
    return to_time(parse_time(when, now))
