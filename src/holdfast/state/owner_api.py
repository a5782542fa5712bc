"""What only the store's owner can do with scoped state: give others rights, and look at the audit."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.backends.runtime.drivers import sync_and_async
from holdfast.engine import validation
from holdfast.engine.model.scopes import Scope
from holdfast.engine.types import to_datetime, to_time
from holdfast.errors import InvalidError
from holdfast.security.access.identity import Identity, identity_of
from holdfast.state.api import ScopedOperations, ScopeParts, sync_or_async_property

if TYPE_CHECKING:
    from holdfast.hooks.api import AsyncHooks, Hooks
    from holdfast.security.access.identity_guard import GuardMode, IdentityGuard
    from holdfast.security.audit.export import AuditExport
    from holdfast.security.audit.query import AuditRecord
    from holdfast.security.audit.recorder import AuditRecorder
    from holdfast.security.audit.verify import AuditReport
    from holdfast.state.access_api import AsyncStoreAccess, StoreAccess, Who

_MICROSECOND = 999
"""Times come to the microsecond, and stand for its end; a look goes back to its start."""


class OwnerOperations(ScopedOperations):
    """Scoped state as its owner has it: all of it."""

    _noted: AuditRecorder | None = None

    def _access(self) -> StoreAccess:
        """The rights of identities, given and taken. See `holdfast.state.access_api`."""
        from holdfast.state.access_api import StoreAccess

        return StoreAccess(self._handle, self._notes())

    def _async_access(self) -> AsyncStoreAccess:
        from holdfast.state.access_api import AsyncStoreAccess

        return AsyncStoreAccess(self._handle, self._notes())

    access = sync_or_async_property(_access, _async_access)

    def _hooks(self) -> Hooks:
        """Functions that are called before and after changes. See `holdfast.hooks.api`."""
        from holdfast.hooks.api import Hooks

        return Hooks(self._handle.engine, self._handle.tenant)

    def _async_hooks(self) -> AsyncHooks:
        from holdfast.hooks.api import AsyncHooks

        return AsyncHooks(self._handle.engine, self._handle.tenant)

    hooks = sync_or_async_property(_hooks, _async_hooks)

    # The audit ------------------------------------------------------------------------------------------------

    @sync_and_async
    async def audit(
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

        await self._flush_notes()
        now = to_datetime(self._handle.now()).astimezone()
        question = query.AuditQuery(
            "" if actor == "" else None if actor is None else str(identity_of(actor)),
            "" if scope is None else str(self._handle.guard.scope(scope)),
            key,
            kind,
            action,
            outcome,
            correlation,
            max(_moment(since, now) - _MICROSECOND, 0),
            _moment(until, now),
        )
        return await query.look(self._handle, question, validation.count(limit, "limit"), after)

    @sync_and_async
    async def audit_verify(self) -> AuditReport:
        """See whether the audit is as it was written: every row against the step that it was written with, every step
        against its hash, and against the step before. What is missing, altered or added is named in the report."""
        from holdfast.security.audit import verify

        await self._flush_notes()
        return await verify.verify(self._handle.engine, self._handle.tenant)

    @sync_and_async
    async def audit_export(self, path: str | Path) -> AuditExport:
        """Write the audit to a file, one JSON document to a line, with all that the hashes are made of: a third party
        checks it with `holdfast.check_audit`, and needs nothing but the file, and perhaps heads that were
        exported before."""
        from holdfast.security.audit import export

        await self._flush_notes()
        return await export.export(self._handle.engine, self._handle.tenant, path)

    # Inside ---------------------------------------------------------------------------------------------------

    def _notes(self) -> AuditRecorder:
        from holdfast.security.audit.recorder import AuditRecorder

        if self._noted is None:
            self._noted = AuditRecorder(self._handle.engine, self._handle.tenant)
        return self._noted

    async def _flush_notes(self) -> None:
        """Write what was collected of what identities read."""
        if self._noted is not None:
            await self._noted.flush()

    def _guard_of(self, identity: Identity | str | None, parts: ScopeParts, how: GuardMode) -> IdentityGuard:
        from holdfast.security.access.identity_guard import IdentityGuard

        if identity is not None and parts:
            raise InvalidError(
                "an identity is named by its text or by its parts, not by both", where=str(identity)[:80]
            )
        who = Identity.of(**parts) if identity is None else identity_of(identity)
        return IdentityGuard(self._handle.engine, self._handle.tenant, who, how, self._notes())


def _moment(when: datetime | str | None, now: datetime) -> int:
    if when is None:
        return 0
    from holdfast.engine.time_parsing import parse_moment

    return to_time(validation.moment(parse_moment(when, now) if isinstance(when, str) else when))
