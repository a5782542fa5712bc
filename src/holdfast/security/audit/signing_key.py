"""The key that signs certificates of erasure and exports of the audit: one for each tenant, in the table of keys, which
no copy of a store contains.

In an encrypted store it is encrypted like the other keys of the tenant. It stays the same when encryption is turned on
or off, or the master key changes: all that it signed is checked with one public key.
"""

from __future__ import annotations

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from holdfast.backends.interface import Create, Get
from holdfast.backends.tables import KEYS, SIGNING
from holdfast.engine.engine import Engine
from holdfast.engine.namespaces import KEYS_PLACE
from holdfast.engine.optimistic import Attempts
from holdfast.engine.row_format import Line
from holdfast.errors import CorruptError, DeniedError
from holdfast.security.audit.thread_audit import recorded
from holdfast.security.encryption.cipher import Cipher, new_key
from holdfast.security.encryption.encrypted_rows import EncryptedRows
from holdfast.security.encryption.key_rows import ACTIVE, KeyRow


async def signing_key(engine: Engine, tenant: str) -> Ed25519PrivateKey:
    """Return the key of a tenant, and create it if there is none, which the audit records. If the store is not
    encrypted, whoever can read it can read the key. `CorruptError` if the store is encrypted, and the key is not:
    somebody else put it there."""
    rows = engine.context.rows
    attempts = Attempts("creating the signing key", engine.context.backend.url)
    while True:
        await attempts.begin()
        found = await find_key(engine, tenant)
        if found is not None:
            return found
        if isinstance(rows, EncryptedRows):
            new = await rows.store_keys.new_row(tenant, SIGNING, 0)
        else:
            key = new_key()
            now = engine.context.clock()
            new = KeyRow(tenant, "", SIGNING, 0, Cipher(key).key_id, "", ACTIVE, now, key)
        apply = recorded(engine, Line(tenant, KEYS_PLACE), "create-signing-key")
        await apply([Create(KEYS, new.row())])


async def export_key(engine: Engine, tenant: str) -> Ed25519PrivateKey | None:
    """Return the key of a tenant to sign an export with; None if there is none, and the store is open for reading
    only."""
    found = await find_key(engine, tenant)
    try:
        return await signing_key(engine, tenant) if found is None else found
    except DeniedError:
        return None


async def find_key(engine: Engine, tenant: str) -> Ed25519PrivateKey | None:
    """Return the key of a tenant; None if there is none."""
    # Rows of keys are not sealed, so they look the same to everybody.
    (found,) = await engine.context.stored.read([Get(KEYS, [(tenant, "", SIGNING, 0)])])
    if not found:
        return None
    row, rows = KeyRow.of(found[0]), engine.context.rows
    if isinstance(rows, EncryptedRows):
        check_signing_row(rows, row)
        if row.wrapped_by:
            return Ed25519PrivateKey.from_private_bytes(await rows.store_keys.unwrap(row))
    return Ed25519PrivateKey.from_private_bytes(row.wrapped)


def check_signing_row(rows: EncryptedRows, row: KeyRow) -> None:
    """Raise `CorruptError` if the key for certificates is in the clear, and nothing may be."""
    if rows.mode == "on" and not row.wrapped_by:
        raise CorruptError(
            "the key for certificates is not encrypted, and everything in this store is",
            where=rows.store_keys.backend.url,
            hint="Somebody put it there: delete the row `signing` of the table `keys`; a new key is then created",
            code="tampered",
        )
