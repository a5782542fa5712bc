"""The audit of a store: `store.audit.query()`, `.verify()`, `.export(path)`."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.backends.runtime.drivers import AsyncApi, SyncApi, sync_and_async
from holdfast.engine import validation
from holdfast.engine.model.scopes import Scope
from holdfast.engine.types import to_datetime, to_time
from holdfast.security.access.identity import parse_identity
from holdfast.security.handle import StoreHandle

if TYPE_CHECKING:
    from holdfast.security.audit.export import AuditExport
    from holdfast.security.audit.query import AuditRecord
    from holdfast.security.audit.recorder import AuditRecorder
    from holdfast.security.audit.verify import AuditReport
    from holdfast.state.access_api import Who

_MICROSECOND = 999
"""Times come to the microsecond, and stand for its end; a query goes back to its start."""


class AuditOperations:
    """Operations on the audit. `Audit` and `AsyncAudit` have these as methods."""

    def __init__(self, handle: StoreHandle, recorder: AuditRecorder) -> None:
        self._handle = handle
        self._recorder = recorder

    @sync_and_async
    async def query(
        self,
        *,
        actor: Who | None = None,
        scope: Scope | str | None = None,
        key: str = "",
        kind: str = "",
        action: str = "",
        outcome: str = "",
        correlation: str = "",
        since: datetime | str | None = None,
        until: datetime | str | None = None,
        limit: int = 100,
        after: str | None = None,
    ) -> list[AuditRecord]:
        """What was done and tried in the state of scopes, the newest first: changes and hooks, rights given and taken,
        reads of identities, and tries that were denied.

        `actor` is an identity, or `""` for the store's owner; `kind` is `change`, `hook`, `access`, `session`,
        `artifact`, `read` or `denied`; `outcome` is `ok`, `denied`, or `invalid` for a name that is none. Times are
        datetimes, or text such as `"2h"`. `after` the cursor of a row goes on with what is older.
        """
        from holdfast.security.audit import query

        await self._recorder.flush()
        now = to_datetime(self._handle.now()).astimezone()
        question = query.AuditQuery(
            "" if actor == "" else None if actor is None else str(parse_identity(actor)),
            "" if scope is None else str(self._handle.guard.scope(scope)),
            key,
            kind,
            action,
            outcome,
            correlation,
            max(_moment(since, now) - _MICROSECOND, 0),
            _moment(until, now),
        )
        return await query.query_audit(self._handle, question, validation.require_count(limit, "limit"), after)

    @sync_and_async
    async def verify(self) -> AuditReport:
        """See whether the audit is as it was written: every row against the step that it was written with, every step
        against its hash, and against the step before. What is missing, altered or added is named in the report."""
        from holdfast.security.audit import verify

        await self._recorder.flush()
        return await verify.verify(self._handle.engine, self._handle.tenant)

    @sync_and_async
    async def export(self, path: str | Path) -> AuditExport:
        """Write the audit to a file, one JSON document to a line, with all that the hashes are made of: a third party
        checks it with `holdfast.check_audit`, and needs nothing but the file, and perhaps heads that were
        exported before."""
        from holdfast.security.audit import export

        await self._recorder.flush()
        return await export.export(self._handle.engine, self._handle.tenant, path)


class Audit(SyncApi, AuditOperations):
    """The audit of a `Store`."""


class AsyncAudit(AsyncApi, AuditOperations):
    """The audit of an `AsyncStore`: operations are awaited."""


def _moment(when: datetime | str | None, now: datetime) -> int:
    if when is None:
        return 0
    from holdfast.engine.time_parsing import parse_moment

    return to_time(validation.require_datetime(parse_moment(when, now) if isinstance(when, str) else when))
