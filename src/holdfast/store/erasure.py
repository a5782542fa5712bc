"""Erasing one person's data: `store.erasure.erase("u-1842")`, and whose data threads and other lines are."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from holdfast.backends.runtime.drivers import FILES, AsyncApi, SyncApi, declare, operation
from holdfast.engine import validation
from holdfast.engine.checked_rows import clear_refused
from holdfast.engine.guard import Authority, acting
from holdfast.engine.model.scopes import Scope
from holdfast.engine.namespaces import LineKind, is_thread, line_name, root_of
from holdfast.engine.row_format import Line
from holdfast.engine.subject_names import check_subject, subject_of_name
from holdfast.errors import DeniedError, NotFoundError
from holdfast.maintenance.jobs.types import JobHost
from holdfast.security.access.identity import Identity
from holdfast.security.access.identity_guard import DenialReason, IdentityGuard
from holdfast.security.handle import StoreHandle, owner_handle

if TYPE_CHECKING:
    from holdfast.engine.types import Progress
    from holdfast.maintenance.archive.export import SubjectExportReport
    from holdfast.maintenance.archive.format import ArchiveFile
    from holdfast.maintenance.erasure.certificate import Certificate
    from holdfast.maintenance.erasure.eraser import ErasureReport
    from holdfast.maintenance.erasure.finder import SubjectData
    from holdfast.maintenance.jobs.job import Job
    from holdfast.maintenance.jobs.jobs import JobTable

_METADATA_KEYS = ("subject",)

HELD = "erase-held"
"""The code of the error if a legal hold protects data of the subject."""

_LIFE = 60.0
"""The seconds after which an erasure whose process died can be resumed."""

_RETRY = "every 10m"


@declare(confirm=True, not_in_scripts="The host decides what is erased.")
class ErasureOperations:
    """Operations on the data of one person. `Erasure` and `AsyncErasure` have these as methods."""

    def __init__(self, store: JobHost) -> None:
        self._store = store
        self._handle = owner_handle(store)

    # Whose data it is -----------------------------------------------------------------------------------------

    @operation(changes=True)
    async def set_subject(self, subject: str, name: str | None = None, *, kind: LineKind = "thread") -> None:
        """Say that a thread, or a line of another kind, contains the data of this person alone; without a name, that
        everything of the tenant does.

        Threads whose checkpoints name one person in their metadata (`metadata={"subject": "u-1842"}`), and scopes in
        which the person is the user (`state(user="u-1842")`), have no need of it.
        """
        from holdfast.maintenance.erasure.finder import set_subject

        await set_subject(self._handle.engine, self._line(name, kind), check_subject(subject))

    @operation(changes=True)
    async def mark_mixed(self, name: str, *, kind: LineKind = "thread") -> None:
        """Say that a thread, or a line of another kind, contains the data of several persons, such as a group chat: an
        erasure then removes the steps of one of them, and not the whole."""
        from holdfast.engine.subject_names import MIXED
        from holdfast.maintenance.erasure.finder import set_subject

        await set_subject(self._handle.engine, self._line(name, kind), MIXED)

    @operation(changes=True)
    async def remove_subject(self, name: str | None = None, *, kind: LineKind = "thread") -> None:
        """Remove what `set_subject` or `mark_mixed` said."""
        from holdfast.maintenance.erasure.finder import set_subject

        await set_subject(self._handle.engine, self._line(name, kind), None)

    @operation
    async def subject(self, name: str | None = None, *, kind: LineKind = "thread") -> str | None:
        """Return the person that was set for a thread, a line of another kind, or the tenant; None for nobody."""
        from holdfast.engine.subject_names import MIXED
        from holdfast.maintenance.erasure.finder import read_subjects

        line = self._line(name, kind)
        found = (await read_subjects(self._handle.engine, [line])).get(line)
        return None if found == MIXED else found

    def _line(self, name: str | None, kind: LineKind) -> Line:
        tenant = self._handle.tenant
        return Line(tenant, "") if name is None else root_of(Line(tenant, line_name(name, kind)))

    # Erasing --------------------------------------------------------------------------------------------------

    @operation(changes=True, rights=("erase",))
    async def erase(
        self,
        subject: str,
        *,
        dry_run: bool = False,
        metadata_keys: Iterable[str] = _METADATA_KEYS,
        progress: Progress | None = None,
    ) -> ErasureReport:
        """Erase everything of one person. The report has a signed certificate; with `dry_run`, what would be erased.

        Threads, agents, scopes and sessions of the person are deleted, with their keys; so are artifacts and what
        hooks recorded. From lines that others share, the person's steps are removed. `metadata_keys` are the entries of
        a checkpoint's metadata that name its subject. If it is interrupted, call it again: it resumes. `DeniedError`
        with the code `erase-held` if a legal hold protects anything of it: then nothing is erased.
        """
        from holdfast.maintenance.erasure.eraser import Eraser, find_signer, report_of
        from holdfast.maintenance.jobs.execution import run_job

        name, keys = check_subject(subject), validation.require_names(metadata_keys, "metadata_keys")
        if dry_run:
            return await Eraser(self._handle, name, metadata_keys=keys, progress=progress).plan()
        await find_signer(self._handle.engine, self._handle.tenant)  # so that no job is left that cannot end
        table = self._table()
        job = await self._pending(name) or await self._start(table, name, keys)
        end = await run_job(table, job.name, only_due=False, progress=progress, life=_LIFE)
        if end.error is not None:
            if getattr(end.error, "code", "") == HELD:
                await table.remove(job.name)  # nothing was erased
            raise end.error
        await table.remove(job.name)
        await self._handle.engine.context.backend.tidy()  # the job had the name
        return report_of(name, await self._certificate(job.settings["id"]))

    async def _start(self, table: JobTable, subject: str, metadata_keys: Iterable[str]) -> Job:
        from holdfast.maintenance.erasure.eraser import new_erasure_id
        from holdfast.maintenance.jobs.builtin import ERASE

        id = new_erasure_id()
        settings = {
            "subject": subject,
            "id": id,
            "started": table.context.clock(),
            "metadata_keys": list(metadata_keys),
        }
        # With a schedule: if this process is killed, whoever runs the store's jobs resumes it.
        return await table.add(f"erase {id}", ERASE, _RETRY, settings, False, False)

    async def _pending(self, subject: str) -> Job | None:
        """Return the job of an erasure of this person that did not end."""
        from holdfast.maintenance.jobs.builtin import ERASE

        jobs = await self._table().readable()
        return next((job for job in jobs if job.kind == ERASE and job.settings.get("subject") == subject), None)

    def _table(self) -> JobTable:
        from holdfast.maintenance.jobs.jobs import JobTable

        return JobTable(self._store)

    # Exporting ------------------------------------------------------------------------------------------------

    @operation(local=FILES)
    async def export(
        self,
        subject: str,
        file: ArchiveFile,
        *,
        metadata_keys: Iterable[str] = _METADATA_KEYS,
        progress: Progress | None = None,
    ) -> SubjectExportReport:
        """Write everything of one person to a file, as JSON that people can read, a document a line.

        It has what `erase` would erase: every state of threads, agents, scopes and sessions, what the person wrote
        where others write too, artifacts with their content, and records of the audit. A path is replaced when the file
        is complete, and compressed if it ends in `.gz`. The file is not encrypted: of an encrypted store, it is refused
        with the code `clear-refused`, unless `Encryption(clear=["export"])` allows it.
        """
        from holdfast.maintenance.archive.export import SubjectExporter
        from holdfast.security.audit.thread_audit import record

        engine = self._handle.engine
        if not engine.context.rows.may_be_clear("export"):
            raise clear_refused("export")
        keys = validation.require_names(metadata_keys, "metadata_keys")
        exporter = SubjectExporter(self._handle, check_subject(subject), keys, progress)
        found = await exporter.find()
        if found.every_line:
            with suppress(DeniedError):  # the store is open for reading only: it records nothing
                name = file if isinstance(file, str | os.PathLike) else getattr(file, "name", "")
                await record(engine, found.every_line, "export", {"file": str(name), "format": "subject"})
        return await exporter.export(found, file)

    # Certificates ---------------------------------------------------------------------------------------------

    @operation
    async def certificates(self) -> Sequence[Certificate]:
        """List the certificates of all erasures, the oldest first."""
        from holdfast.maintenance.erasure.certificate import Certificate
        from holdfast.security.audit.erasure_ledger import ErasureLedger

        entries = await ErasureLedger(self._handle.engine, self._handle.tenant).entries()
        return [Certificate.from_json(entry.certificate) for entry in entries]

    async def _certificate(self, id: str) -> Certificate:
        for each in await ErasureOperations.certificates(self):
            if each.id == id:
                return each
        raise NotFoundError("there is no such certificate", where=repr(id)[:80])

    @operation(changes=True)
    async def public_key(self) -> str:
        """Return the key that checks the certificates and the exported audits of this store, in hex. Publish it where
        others trust it."""
        from holdfast.maintenance.erasure.eraser import find_signer
        from holdfast.security.audit.signature import public_key_of

        return public_key_of(await find_signer(self._handle.engine, self._handle.tenant))


class Erasure(SyncApi, ErasureOperations):
    """Erasing the data of one person from a `Store`."""


class AsyncErasure(AsyncApi, ErasureOperations):
    """Erasing the data of one person from an `AsyncStore`: operations are awaited."""


@declare(confirm=True, not_in_scripts="The host decides what is erased.")
class IdentityErasureOperations:
    """Erasing, for an identity. `IdentityErasure` and `AsyncIdentityErasure` have these as methods."""

    def __init__(self, handle: StoreHandle) -> None:
        self._handle = handle

    @operation(changes=True, rights=("erase",))
    async def erase(
        self,
        subject: str,
        *,
        dry_run: bool = False,
        metadata_keys: Iterable[str] = _METADATA_KEYS,
        progress: Progress | None = None,
    ) -> ErasureReport:
        """Erase everything of the person that the identity acts for, the user in its path, if it may erase all of it:
        it needs the right `erase` to each of the person's threads, and owns the other scopes. Otherwise nothing is
        erased: `DeniedError`, which does not say what there is. With `dry_run`, the report says what would be erased.
        Unlike that of the store's owner, it is not resumed by a job if it is killed."""
        from holdfast.maintenance.erasure.eraser import Eraser, new_erasure_id, report_of

        name, keys = check_subject(subject), validation.require_names(metadata_keys, "metadata_keys")
        guard = self._handle.guard
        assert isinstance(guard, IdentityGuard)  # noqa: S101 - a view of an identity has it
        await guard.require_active("erase")
        if name != subject_of_name(str(guard.identity)):
            raise await guard.denied_error("erase", guard.identity.scope, (), _NOT_ALL)
        eraser = Eraser(self._handle, name, metadata_keys=keys, progress=progress, check=self._require_rights)
        if dry_run:
            return await eraser.plan()
        with acting(Authority(self._handle.guard.actor)):
            return report_of(name, await eraser.erase(new_erasure_id(), self._handle.now()))

    async def _require_rights(self, found: SubjectData) -> None:
        guard = self._handle.guard
        assert isinstance(guard, IdentityGuard)  # noqa: S101 - a view of an identity has it
        try:
            await guard.allow_change(guard.identity.scope, ())
            if found.is_empty:
                raise DeniedError("there is nothing to erase")
            for line in found.every_line:
                if is_thread(line.name):
                    await guard.allow_thread("erase", line, removes=line in found.lines)
                elif not self._owns(guard.identity, line):
                    raise DeniedError("it is not its own")
            if found.artifacts or found.sessions:
                raise DeniedError("records are erased by the store's owner")
        except (DeniedError, NotFoundError):
            raise await guard.denied_error("erase", guard.identity.scope, (), _NOT_ALL) from None

    def _owns(self, identity: Identity, line: Line) -> bool:
        scope = Scope.of_line(line.name)
        return scope is not None and identity.owns(scope)


_NOT_ALL = DenialReason("it may not erase everything of this person", "Ask the owner of the store")


class IdentityErasure(SyncApi, IdentityErasureOperations):
    """Erasing, for an identity."""


class AsyncIdentityErasure(AsyncApi, IdentityErasureOperations):
    """Erasing, for an identity, awaited."""
