"""Erasing everything of one person from a store.

Every part can be interrupted and done again: an erasure that was killed is resumed by its job, finds what is left, and
reads from the audit what was done before. The certificate comes last, together with the record in the ledger.
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import msgspec

from holdfast._hints import install
from holdfast.backends.interface import Delete
from holdfast.backends.tables import REFS
from holdfast.backends.urls import redacted_url
from holdfast.engine.engine import Engine
from holdfast.engine.hold_check import require_no_hold
from holdfast.engine.namespaces import AUDIT, COUNTS, is_thread, line_kind, short_name
from holdfast.engine.row_format import ERASE, Line
from holdfast.engine.subject_names import METADATA_KEY, subject_of_name
from holdfast.engine.types import Progress, to_datetime
from holdfast.errors import ConfigError, ConflictError, DeniedError
from holdfast.hooks.outbox import delete_calls
from holdfast.maintenance.erasure.audit_rows import AuditRewriter, SubjectRows, changed_places, rewrite_about
from holdfast.maintenance.erasure.certificate import Certificate, new_salt
from holdfast.maintenance.erasure.finder import SubjectData, SubjectFinder, tenant_key
from holdfast.maintenance.erasure.mixed_lines import erase_records
from holdfast.maintenance.erasure.removal import (
    ERASURE,
    HISTORIES,
    KEYS,
    count_steps,
    delete_found,
    erase_quarantine,
    forget_reasons,
    sum_parts,
)
from holdfast.security.access.registry import ASSIGNED, MEMBER, AccessRegistry
from holdfast.security.audit.archive_records import archived_segments
from holdfast.security.audit.erasure_ledger import ErasureLedger, LedgerEntry, digest_subject
from holdfast.security.audit.thread_audit import record
from holdfast.security.handle import StoreHandle

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

_ROUNDS = 5
"""How often it is searched again for what others stored meanwhile."""

_RETAINED = (
    "records of the audit: who did what to which thread, scope, agent, session or artifact, and when, without content",
    "names in lines that others share: of branches, tags, labels, durable steps, timers, signals, versions and keys;"
    " and keys in records about lines that were deleted before, whose names do not say whose they were",
)


class ErasureReport(msgspec.Struct, frozen=True):
    """The result of an erasure, or of its dry run."""

    subject: str
    dry_run: bool
    erased: Mapping[str, int]
    """How much was deleted, by kind."""
    rewritten: Mapping[str, int]
    """From how many lines that others share, by kind, the person's data was removed."""
    names: tuple[str, ...] = ()
    """Of a dry run, what would be deleted or rewritten: `delete thread chat-1`, `rewrite thread group`."""
    held: tuple[str, ...] = ()
    """Of a dry run, what a legal hold protects: as long as there is one, nothing is erased."""
    steps: int = 0
    """How many steps were removed, with what was deleted or from lines that others share; of a dry run, at least."""
    keys: int = 0
    """How many keys were destroyed; 0 for a dry run."""
    certificate: Certificate | None = None


def new_erasure_id() -> str:
    """Return the id of a new erasure, by which its records in the audit are found."""
    return uuid.uuid4().hex


async def find_signer(engine: Engine, tenant: str) -> Ed25519PrivateKey:
    """Return the key that signs certificates. `ConfigError` if the extra for it is not installed."""
    try:
        from holdfast.security.audit.signing_key import signing_key
    except ImportError as missing:
        raise ConfigError(
            "certificates need cryptography, which is not installed",
            hint=install("encryption"),
            code="not-installed",
        ) from missing
    return await signing_key(engine, tenant)


def report_of(subject: str, certificate: Certificate) -> ErasureReport:
    """Return the report of an erasure that is done."""
    steps, keys = certificate.steps_removed, certificate.keys_destroyed
    return ErasureReport(
        subject, False, certificate.erased, certificate.rewritten, steps=steps, keys=keys, certificate=certificate
    )


class Eraser:
    """Erases one person's data of a tenant."""

    def __init__(
        self,
        handle: StoreHandle,
        subject: str,
        *,
        metadata_keys: Sequence[str] = (METADATA_KEY,),
        progress: Progress | None = None,
        check: Callable[[SubjectData], Awaitable[None]] | None = None,
    ) -> None:
        """`check` raises if something of what was found may not be erased."""
        # Without hooks, schemas and policies of the program: none of them may veto or alter an erasure.
        self._handle = StoreHandle(Engine(handle.engine.context), handle.tenant)
        self._engine = self._handle.engine
        self._tenant = handle.tenant
        self._subject = subject
        self._keys = metadata_keys
        self._progress = progress
        self._check = check

    # Dry run ------------------------------------------------------------------------------------------------------

    async def plan(self) -> ErasureReport:
        """Return what would be erased."""
        found = await self._find()
        if self._check is not None:
            await self._check(found)
        # A session that ended without its state may leave an empty line: there is nothing to delete.
        counts = {line: await count_steps(self._engine, line) for line in found.lines}
        lines = [line for line, count in counts.items() if count or is_thread(line.name)]
        held = []
        for line in found.every_line:
            try:
                await require_no_hold(self._engine.context.backend, [line])
            except DeniedError:
                held.append(_describe(line))
        erased = Counter(_COUNTED[line_kind(line.name)] for line in lines)
        erased["artifacts"] += len(found.artifacts)
        erased["session records"] += len(found.sessions)
        rewritten = Counter(_COUNTED[line_kind(line.name)] for line in found.steps)
        whole = [*map(_describe, lines), *(f"artifact {id}" for id in found.artifacts)]
        whole += [f"session {id}" for id in found.sessions]
        names = [*(f"delete {each}" for each in whole), *(f"rewrite {_describe(line)}" for line in found.steps)]
        steps = sum(map(len, found.steps.values())) + sum(counts.values())
        return ErasureReport(
            self._subject, True, _sorted(erased), _sorted(rewritten), tuple(names), tuple(held), steps=steps
        )

    # Erasing ------------------------------------------------------------------------------------------------------

    async def erase(self, erasure: str, started: int) -> Certificate:
        """Erase everything, and return the certificate. `DeniedError` with the code `erase-held` if anything is held:
        then nothing is erased, unless the hold came meanwhile."""
        ledger = ErasureLedger(self._engine, self._tenant)
        for entry in await ledger.entries():
            certificate = Certificate.from_json(entry.certificate)
            if certificate.id == erasure:
                return certificate  # it was killed after this
        signer = await find_signer(self._engine, self._tenant)  # before anything is erased that nobody could certify
        for number in range(_ROUNDS):
            searched = self._engine.context.clock()
            found = await self._find()
            if self._check is not None and (not number or not found.is_empty):
                await self._check(found)
            if found.is_empty:
                break
            if not number:
                await self._require_no_hold(found)
            await delete_found(self._handle, found, erasure, await ledger.key(), self._progress)
        else:
            raise ConflictError(
                "other processes keep storing data of the subject",
                where=self._engine.context.backend.url,
                hint="Try again",
            )
        await erase_quarantine(self._engine, self._tenant, self._is_subject, self._keys)
        self._report("histories of records")
        finder = self._finder()
        await finder.read_tenant()
        await erase_records(self._engine, self._tenant, finder.is_record, {ERASURE: erasure, "kind": HISTORIES})
        await forget_reasons(self._engine, self._tenant, self._is_subject)
        return await self._certify(ledger, erasure, started, searched, signer, owns_tenant=finder.owns_tenant)

    def _finder(self) -> SubjectFinder:
        return SubjectFinder(self._engine, self._tenant, self._is_subject, metadata_keys=self._keys)

    def _is_subject(self, name: str) -> bool:
        return name == self._subject

    async def _find(self) -> SubjectData:
        return await self._finder().find(self._progress)

    async def _require_no_hold(self, found: SubjectData) -> None:
        for line in found.every_line:
            try:
                await require_no_hold(self._engine.context.backend, [line])
            except DeniedError as error:
                raise DeniedError(
                    f"nothing was erased: {error.what}", where=error.where, hint=error.hint, code="erase-held"
                ) from None

    async def _destroy_key(self, erasure: str) -> set[str]:
        """Destroy the person's key, if the store is encrypted. Returns the ids of the keys."""
        rows = self._engine.context.rows
        if not rows.hides_columns:
            return set()
        from holdfast.security.encryption.encrypted_rows import EncryptedRows

        if not isinstance(rows, EncryptedRows):
            return set()
        subjects = rows.store_keys.subjects
        names = {id.hex() for id in await subjects.ids(self._tenant, self._subject)}
        if names:
            # Like all that is deleted, so that an erasure which is resumed counts it.
            detail = {ERASURE: erasure, "kind": KEYS, "keys": sorted(names)}
            await record(self._engine, [Line(self._tenant, AUDIT)], ERASE, detail)
        await subjects.destroy(self._tenant, self._subject, self._engine.context.backend.apply)
        return names

    async def _rights(self) -> list[str]:
        """Return which rights name the person. They stay: what an identity may do is not its data, and a program that
        still knows the person would be refused."""
        access = AccessRegistry(self._engine, self._tenant)
        names = [grant.to for grant in await access.grants(dead=True)]
        names += [name for prefix in (MEMBER, ASSIGNED) for name, _ in await access.names(prefix)]
        names += await access.frozen()
        count = sum(self._is_subject(subject_of_name(name)) for name in names)
        return [f"rights that name the person: {count} grants, groups, roles and freezes"] if count else []

    def _report(self, what: str) -> None:
        if self._progress is not None:
            self._progress(0, None, what)

    async def _certify(
        self,
        ledger: ErasureLedger,
        erasure: str,
        started: int,
        searched: int,
        signer: Ed25519PrivateKey,
        *,
        owns_tenant: bool,
    ) -> Certificate:
        """Record the erasure, and return its certificate. Nothing was found any more that was stored by `searched`."""
        engine, tenant = self._engine, self._tenant
        key = await ledger.key()
        parts = await sum_parts(engine, tenant, erasure, started)
        parts.add_places(await changed_places(engine, tenant, self._is_subject))
        subject = digest_subject(key, self._subject)
        entry = LedgerEntry(0, key, subject, frozenset(parts.lines), "", metadata_keys=tuple(self._keys))
        entry = entry.with_places(parts.places)
        self._report("audit records")
        rows = SubjectRows(entry, owns_tenant=owns_tenant)
        name = f"{started:020}-{erasure}"
        await AuditRewriter(engine, ledger, rewrite_about(engine, [rows])).run(tenant, name)
        await delete_calls(engine, tenant, rows.is_about)
        self._report("keys")
        keys = len(parts.keys | await self._destroy_key(erasure))
        erased = Counter({_COUNTED[kind]: count for kind, count in parts.erased.items()})
        erased["details of audit records"] = await ledger.count_replaced(name)
        rewritten = Counter({_COUNTED[kind]: count for kind, count in parts.rewritten.items()})
        from holdfast.security.sensitive.credential_check import forget_erased  # slow to import

        await forget_erased(engine, tenant)
        self._report("purge")
        remains = [*await engine.context.backend.purge(), *await archived_segments(engine, tenant)]
        self._report("certificate")
        now, salt = engine.context.clock(), new_salt()
        certificate = Certificate(
            erasure,
            redacted_url(engine.context.backend.url),
            tenant,
            salt.hex(),
            digest_subject(salt, self._subject).hex(),
            _iso(started),
            _iso(now),
            _sorted(erased),
            _sorted(rewritten),
            keys,
            parts.steps,
            retained=(*_RETAINED, *await self._rights()),
            unreachable=tuple(remains),
        ).sign(signer)
        if owns_tenant:  # it has the name of the person
            await engine.context.backend.apply([Delete(REFS, tenant_key(tenant))])
        await ledger.add([replace(entry, time=searched, certificate=certificate.to_json())])
        await record(engine, [Line(tenant, AUDIT)], "erased", {ERASURE: erasure})
        return certificate


_COUNTED = {
    **{str(kind): name for kind, name in COUNTS.items()},
    "artifact": "artifacts",
    "session record": "session records",
}


def _describe(line: Line) -> str:
    return f"{line_kind(line.name)} {short_name(line.name)}"


def _sorted(counts: Counter[str]) -> dict[str, int]:
    return {kind: count for kind, count in sorted(counts.items()) if count}


def _iso(time: int) -> str:
    moment: datetime = to_datetime(time)
    return moment.astimezone(UTC).isoformat().removesuffix("+00:00") + "Z"
