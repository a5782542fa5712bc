"""The reasons that people give for backups, pins and freezes. Those of an encrypted store are sealed: a repository need
not be encrypted, and a reason may say what is in the store."""

from __future__ import annotations

from base64 import b64decode, b64encode

from holdfast.engine.engine import Engine
from holdfast.errors import HoldfastError

_SEALED = "sealed:"
_PURPOSE = b"reason of a backup"

UNKNOWN = "(sealed)"
"""Stands for a reason that cannot be opened: it is that of another store, or the key is missing."""


async def seal_reason(engine: Engine, tenant: str, reason: str) -> str:
    """Return a reason as it is stored in a repository."""
    sealer = await engine.context.rows.file_sealer(tenant) if reason else None
    return reason if sealer is None else _SEALED + b64encode(sealer.seal(reason.encode(), _PURPOSE)).decode()


async def open_reason(engine: Engine, tenant: str, reason: str) -> str:
    """Return a reason that is stored in a repository; `UNKNOWN` if this store does not have the key."""
    if not reason.startswith(_SEALED):
        return reason
    try:
        sealer = await engine.context.rows.file_sealer(tenant)
        return UNKNOWN if sealer is None else sealer.unseal(b64decode(reason[len(_SEALED) :]), _PURPOSE).decode()
    except (HoldfastError, ValueError):
        return UNKNOWN
