"""The key that signs certificates: one for each tenant, in the table of keys, which no copy of a store contains.

In an encrypted store it is encrypted like the other keys of the tenant. It stays the same when encryption is turned on
or off, or the master key changes: certificates are checked with one public key.
"""

from __future__ import annotations

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from holdfast.backends.interface import Create, Get
from holdfast.backends.tables import KEYS, SIGNING
from holdfast.engine.engine import Engine
from holdfast.errors import CorruptError, TransientError
from holdfast.security.encryption.cipher import Cipher, new_key
from holdfast.security.encryption.encrypted_rows import EncryptedRows
from holdfast.security.encryption.key_rows import ACTIVE, KeyRow

_ATTEMPTS = 10


async def signing_key(engine: Engine, tenant: str) -> Ed25519PrivateKey:
    """Return the key of a tenant, and create it if there is none. If the store is not encrypted, whoever can read it
    can read the key. `CorruptError` if the store is encrypted, and the key is not: somebody else put it there."""
    rows = engine.context.rows
    for _ in range(_ATTEMPTS):
        # Rows of keys are not sealed, so they look the same to everybody.
        (found,) = await engine.context.stored.read([Get(KEYS, [(tenant, "", SIGNING, 0)])])
        if found:
            row = KeyRow.of(found[0])
            if isinstance(rows, EncryptedRows):
                check_signing_row(rows, row)
                if row.wrapped_by:
                    return Ed25519PrivateKey.from_private_bytes(await rows.store_keys.unwrap(row))
            return Ed25519PrivateKey.from_private_bytes(row.wrapped)
        if isinstance(rows, EncryptedRows):
            new = await rows.store_keys.new_row(tenant, SIGNING, 0)
        else:
            key = new_key()
            now = engine.context.clock()
            new = KeyRow(tenant, "", SIGNING, 0, Cipher(key).key_id, "", ACTIVE, now, key)
        await engine.context.backend.apply([Create(KEYS, new.row())])
    raise TransientError("the key for certificates keeps changing", where=engine.context.backend.url, hint="Try again")


def check_signing_row(rows: EncryptedRows, row: KeyRow) -> None:
    """Raise `CorruptError` if the key for certificates is in the clear, and nothing may be."""
    if rows.mode == "on" and not row.wrapped_by:
        raise CorruptError(
            "the key for certificates is not encrypted, and everything in this store is",
            where=rows.store_keys.backend.url,
            hint="Somebody put it there: delete the row `signing` of the table `keys`; a new key is then created",
            code="tampered",
        )
