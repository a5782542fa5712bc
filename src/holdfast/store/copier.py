"""Copying the threads of a store to another one."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from holdfast.backends.config import resolve
from holdfast.backends.urls import redacted_url
from holdfast.engine import trace_context, validation
from holdfast.engine.copy.between_stores import CopyReport, OnCopyProgress, StoreCopier, copy_to_url
from holdfast.engine.namespaces import AUDIT
from holdfast.engine.row_format import Line
from holdfast.errors import DeniedError, InvalidError
from holdfast.security.audit.thread_audit import record
from holdfast.security.handle import StoreHandle


async def copy_store(
    handle: StoreHandle,
    other: StoreHandle | str | os.PathLike[str],
    tenants: str,
    threads: Iterable[str] | None,
    progress: OnCopyProgress | None,
    options: Mapping[str, Any],
) -> CopyReport:
    """Copy threads of a store, or all, to another one. See `Store.copy_to`."""
    if tenants not in ("own", "all"):
        raise InvalidError(f"tenants is 'own' or 'all', not {tenants!r}")
    tenant = None if tenants == "all" else handle.tenant
    only = None
    if threads is not None:
        names = [handle.thread_line(thread).name for thread in validation.require_names(threads, "threads")]
        only = await handle.engine.lines.of_threads(handle.tenant, names)
    if only is not None and tenant is None:
        raise InvalidError("threads are named where those of one tenant are copied, not of all")
    if isinstance(other, str | os.PathLike):
        await _record_copy(handle, only, redacted_url(resolve(other)))
        return await copy_to_url(handle.engine, resolve(other), dict(options), tenant, progress, only)
    if options:
        raise InvalidError(f"the other store is open already, and takes no option {min(options)!r}")
    if other.tenant != handle.tenant and tenant is not None:
        raise InvalidError(
            f"the other store was opened for tenant {other.tenant!r}, and would not see what is copied",
            hint=f"Open it with tenant={handle.tenant!r}, or give its URL",
        )
    await _record_copy(handle, only, redacted_url(other.engine.context.backend.url))
    return await StoreCopier(handle.engine, other.engine, progress).copy(tenant, only)


async def _record_copy(handle: StoreHandle, lines: Sequence[Line] | None, to: str) -> None:
    """Record a copy to another store, of some threads or of all, if there is something to say about it."""
    trace = trace_context.current()
    if trace.correlation or trace.cause:
        place = [Line(handle.tenant, AUDIT)] if lines is None else lines
        with suppress(DeniedError):  # the store is open for reading only: it records nothing
            await record(handle.engine, place, "copy", {"to": to})
