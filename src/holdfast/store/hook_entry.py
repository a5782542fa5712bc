"""How a store reaches its hooks, which do not know what finds sensitive data in the values that they record."""

from __future__ import annotations

from holdfast.hooks.api import AsyncHooks, Hooks
from holdfast.security.handle import StoreHandle


def open_hooks(handle: StoreHandle) -> Hooks:
    """Return the hooks of a store."""
    return Hooks(handle.engine, handle.tenant, redact)


def open_async_hooks(handle: StoreHandle) -> AsyncHooks:
    """Return the hooks of a store for asyncio."""
    return AsyncHooks(handle.engine, handle.tenant, redact)


def redact(packed: bytes) -> bytes:
    """Return packed values that were recorded, without what looks like a credential or personal data."""
    from holdfast.security.sensitive.value_redaction import redact_values  # its formats take long to compile

    return redact_values(packed)
