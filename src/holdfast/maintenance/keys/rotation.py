"""The keys of a tenant: which there are, new ones, and the end of old ones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from holdfast.backends.interface import Change, Delete, Get, Put
from holdfast.backends.paging import scan_rows
from holdfast.backends.tables import KEYS, SIGNING
from holdfast.backends.urls import redacted_url
from holdfast.engine.engine import Engine
from holdfast.engine.namespaces import KEYS_PLACE
from holdfast.engine.optimistic import Attempts
from holdfast.engine.row_format import Line
from holdfast.engine.types import to_datetime
from holdfast.errors import (
    ConfigError,
    ConflictError,
    CorruptError,
    DeniedError,
    HoldfastError,
    InvalidError,
    NotFoundError,
    TransientError,
)
from holdfast.maintenance.erasure.certificate import Certificate
from holdfast.maintenance.keys.records import KeyCheck, KeyInfo
from holdfast.security.audit.erasure_ledger import ErasureLedger
from holdfast.security.audit.signature import public_key_of
from holdfast.security.audit.signing_key import check_signing_row, find_key
from holdfast.security.audit.thread_audit import record, recorded
from holdfast.security.encryption.encrypted_rows import EncryptedRows
from holdfast.security.encryption.key_rows import (
    ACTIVE,
    DATA,
    DESTROYING,
    INDEX,
    LIST,
    RETIRED,
    SUBJECT,
    WRAPPING,
    KeyRow,
    TenantKeys,
    destroyed_changes,
    destroyed_ids,
)
from holdfast.security.encryption.store_keys import StoreKeys
from holdfast.time_parser import Duration, parse_nanoseconds

_OF_LINES = (DATA, SUBJECT)
"""The kinds of keys of lines, and of the persons whose lines they are."""

_HIDDEN = (*_OF_LINES, INDEX, LIST)
"""The kinds of rows that are not listed: they are no keys of the tenant."""

WAIT: Duration = "7d"
"""How long a key that is to be destroyed can be saved, at least."""


def encrypted_rows(engine: Engine) -> EncryptedRows:
    """Return the codec of an encrypted store. `ConfigError` if it is none."""
    rows = engine.context.rows
    if not isinstance(rows, EncryptedRows):
        raise ConfigError(
            "the store is not encrypted, and has no keys",
            where=engine.context.backend.url,
            hint="Open it with encryption=, or set HOLDFAST_ENCRYPTION",
            code="not-encrypted",
        )
    return rows


class TenantKeyring:
    """The keys of a tenant, to list and to change."""

    def __init__(self, engine: Engine, tenant: str) -> None:
        self._engine = engine
        self._tenant = tenant
        self._rows = encrypted_rows(engine)
        self._keys: StoreKeys = self._rows.store_keys

    async def rows(self) -> list[KeyRow]:
        """Return all keys, also those of lines."""
        found = scan_rows(self._keys.backend, KEYS, (self._tenant,))
        return [KeyRow.of(row) async for row in found]

    async def list_keys(self) -> list[KeyInfo]:
        """Return the keys of the tenant, the newest first."""
        rows = await self.rows()
        counts = Counter(row.wrapped_by for row in rows if row.kind in _OF_LINES)
        mine = [row for row in rows if row.kind not in _HIDDEN]
        mine.sort(key=lambda row: (row.kind != WRAPPING, -row.number))
        return [_info(row, counts[row.id.hex()]) for row in mine]

    async def rotate(self) -> KeyInfo:
        """Create a new wrapping key, and encrypt the others with the current master key."""
        attempts = Attempts("changing keys", self._keys.backend.url, self._engine.context.metrics)
        while True:
            await attempts.begin()
            current = await self._load()
            number = max(current.numbers) + 1
            new = await self._keys.new_row(self._tenant, WRAPPING, number)
            rows = [*current.rows, *await self._signing_rows()]
            changes: list[Change] = [row.unchanged() for row in rows]
            replaced = [new]
            for row in rows:
                again = await self._keys.new_row(self._tenant, row.kind, row.number, await self._keys.unwrap(row))
                state = RETIRED if row.kind == WRAPPING and row.state == ACTIVE else row.state
                replaced.append(again._replace(state=state, time=row.time))
            changes += [Put(KEYS, row.row()) for row in replaced]
            changes += await self._list_changes(current, replaced)
            if await self._apply("rotate-keys", {"key": new.id.hex()[:16], "master": new.wrapped_by}, changes):
                await self._keys.load_tenant(self._tenant)
                return _info(new, 0)

    async def _signing_rows(self) -> list[KeyRow]:
        """Return the key for certificates, if there is one. It is read only when it is needed."""
        (found,) = await self._keys.backend.read([Get(KEYS, [(self._tenant, "", SIGNING, 0)])])
        rows = [KeyRow.of(row) for row in found]
        for row in rows:
            check_signing_row(self._rows, row)
        return [row for row in rows if row.wrapped_by]

    async def destroy(self, id: str, wait: Duration = WAIT) -> KeyInfo:
        """Mark a key to be destroyed after a time; destroy it, if that has passed. `ConflictError` with the code
        `key-in-use` if it is active, or encrypts keys of lines. What is refused is recorded, too."""
        try:
            return await self._destroy(id, wait)
        except (ConflictError, InvalidError, NotFoundError) as error:
            detail = {"key": ascii(id)[1:-1][:16], "code": error.code}
            await record(self._engine, [Line(self._tenant, KEYS_PLACE)], "destroy-key", detail, "denied")
            raise

    async def _destroy(self, id: str, wait: Duration) -> KeyInfo:
        nanoseconds = parse_nanoseconds(wait, "wait")
        if nanoseconds < parse_nanoseconds(WAIT, "wait"):
            raise InvalidError(
                f"a key must be kept for at least {WAIT} before it is destroyed, not {wait!r}",
                hint="Replace a key that may have leaked at once: rotate the keys, and encrypt everything again",
            )
        attempts = Attempts("changing keys", self._keys.backend.url, self._engine.context.metrics)
        while True:
            await attempts.begin()
            tenant = await self._load()
            row, lines = await self._find(id, tenant)
            if row.state == ACTIVE or row.kind != WRAPPING or lines:
                raise ConflictError(
                    f"the key {id} is in use: it encrypts the keys of {lines} threads and other lines"
                    if lines
                    else f"the key {id} is in use",
                    where=self._keys.backend.url,
                    hint="`holdfast encryption-keys rotate`, and then `reencrypt`, encrypt everything with a new one",
                    code="key-in-use",
                )
            now = self._engine.context.clock()
            at = row.destroyed_at
            if at is not None and at <= now:
                destroyed = destroyed_changes(self._tenant, [row.id], now)
                changes = [row.unchanged(), Delete(KEYS, row.key), *destroyed]
                changes += await self._list_changes(tenant, [], without=row)
                done = await self._apply("destroy-key", {"key": row.id.hex()[:16]}, changes)
            elif at is not None:
                return _info(row, 0)
            else:
                row_then = row.destroyed_from(now + nanoseconds)
                detail = {"key": row.id.hex()[:16], "at": to_datetime(now + nanoseconds).isoformat()}
                done = await self._apply("schedule-key", detail, await self._replace(tenant, row, row_then))
                row = row_then
            if done:
                await self._keys.load_tenant(self._tenant)
                return _info(row, 0)

    async def cancel(self, id: str) -> KeyInfo:
        """Keep a key that was to be destroyed."""
        attempts = Attempts("changing keys", self._keys.backend.url, self._engine.context.metrics)
        while True:
            await attempts.begin()
            tenant = await self._load()
            row, lines = await self._find(id, tenant)
            if row.destroyed_at is None:
                raise InvalidError(f"the key {id} is not to be destroyed: it is {row.state}")
            kept = row._replace(state=RETIRED)
            if await self._apply("keep-key", {"key": row.id.hex()[:16]}, await self._replace(tenant, row, kept)):
                await self._load()
                return _info(kept, lines)

    async def check(self) -> KeyCheck:
        """Decrypt every key, and compare it with its id."""
        rows, problems = await self.rows(), list[str]()
        try:
            tenant = await self._keys.load_tenant(self._tenant)
        except CorruptError as error:
            problems.append(error.what)
            tenant = self._keys.known_tenant(self._tenant)
        destroyed = await destroyed_ids(self._engine, [self._tenant])
        for row in rows:
            if row.id in destroyed and row.state != DESTROYING:
                what = "a key that was destroyed is in the store again"
                problems.append(f"line {row.line!r}: {what}" if row.line else what)
            try:
                if row.kind in (INDEX, LIST):
                    continue  # it is no key, and was opened with those of the tenant
                if row.kind not in _OF_LINES:
                    if row.kind == SIGNING:
                        check_signing_row(self._rows, row)
                    if row.wrapped_by:  # while encryption is turned on, that of certificates is not encrypted yet
                        await self._keys.unwrap(row)
                elif tenant is None or (wrapping := await self._keys.wrapping_of(row, tenant)) is None:
                    problems.append(f"line {row.line!r}: its key {row.wrapped_by[:16]} is missing")
                else:
                    self._keys.open_line_key(row, wrapping)
            except TransientError:
                raise
            except HoldfastError as error:
                problems.append(f"line {row.line!r}: {error.what}" if row.line else error.what)
        problems += await _missing_signers(self._engine, self._tenant)
        count = sum(row.kind not in (INDEX, LIST) for row in rows)
        return KeyCheck(count, tuple(dict.fromkeys(problems)))

    async def _load(self) -> TenantKeys:
        """Read the keys of the tenant again."""
        await self._keys.load_tenant(self._tenant)
        return await self._keys.require_tenant(self._tenant)

    async def _replace(self, tenant: TenantKeys, old: KeyRow, new: KeyRow) -> list[Change]:
        return [old.unchanged(), Put(KEYS, new.row()), *await self._list_changes(tenant, [new])]

    async def _list_changes(
        self, tenant: TenantKeys, replaced: Sequence[KeyRow], *, without: KeyRow | None = None
    ) -> list[Change]:
        rows = {row.key: row for row in (*tenant.listed_rows, *replaced) if without is None or row.key != without.key}
        return await self._keys.list_changes(tenant, rows.values())

    async def _find(self, id: str, tenant: TenantKeys) -> tuple[KeyRow, int]:
        """Return a key, as the list of keys has it, and how many keys of lines it encrypts."""
        rows = await self.rows()
        others = [row for row in rows if row.kind == SIGNING]
        found = [row for row in (*tenant.rows, *others) if row.id.hex().startswith(id)]
        if len(found) != 1 or len(id) < 4:
            raise NotFoundError(
                f"there is no key {id!r}",
                where=self._keys.backend.url,
                hint="`holdfast encryption-keys list` shows them",
            )
        return found[0], sum(row.wrapped_by == found[0].id.hex() for row in rows if row.kind in _OF_LINES)

    async def _apply(self, action: str, detail: dict[str, str], changes: list[Change]) -> bool:
        apply = recorded(self._engine, Line(self._tenant, KEYS_PLACE), action, detail)
        return await apply(changes) is None


def _info(row: KeyRow, lines: int) -> KeyInfo:
    id, state, at = row.id.hex()[:16], row.state.partition(" ")[0], row.destroyed_at
    created, end = to_datetime(row.time), None if at is None else to_datetime(at)
    return KeyInfo(id, row.kind, row.number, state, row.wrapped_by, created, lines, end)


async def _missing_signers(engine: Engine, tenant: str) -> list[str]:
    """Return what is wrong if certificates of this store were signed with a key that it does not have any more."""
    try:
        key = await find_key(engine, tenant)
    except (CorruptError, DeniedError):
        return []  # the check of the row itself says so
    mine, here = "" if key is None else public_key_of(key), redacted_url(engine.context.backend.url)
    entries = await ErasureLedger(engine, tenant).entries()
    every = [Certificate.from_json(entry.certificate) for entry in entries]
    missing = sorted({each.public_key for each in every if each.store == here} - {mine})
    return [
        f"certificates of erasure were signed with the key {each[:16]}…, which is gone: "
        "its row `signing` was deleted or replaced"
        for each in missing
    ]
