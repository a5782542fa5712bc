"""How a store reaches its hooks: they do not know what finds sensitive data in the values that they record."""

from __future__ import annotations

from holdfast.hooks.api import AsyncHooks, Hooks
from holdfast.security.handle import StoreHandle


def open_hooks(handle: StoreHandle) -> Hooks:
    """Return the hooks of a store."""
    return Hooks(handle.engine, handle.tenant, _redact)


def open_async_hooks(handle: StoreHandle) -> AsyncHooks:
    """Return the hooks of a store for asyncio."""
    return AsyncHooks(handle.engine, handle.tenant, _redact)


def _redact(packed: bytes) -> bytes:
    from holdfast.security.sensitive.value_redaction import redact_values  # its formats take long to compile

    return redact_values(packed)
