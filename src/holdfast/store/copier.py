"""Copying the threads of a store to another one."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any

from holdfast.backends.config import store_url
from holdfast.backends.urls import redacted_url
from holdfast.engine import validation
from holdfast.engine.copy.copy_report import CopyReport, OnCopyProgress
from holdfast.engine.engine import Engine
from holdfast.errors import InvalidError
from holdfast.maintenance.erasure.store_copy import copy_lines, record_copy
from holdfast.security.handle import StoreHandle


async def copy_store(
    handle: StoreHandle,
    other: StoreHandle | str | os.PathLike[str],
    tenants: str,
    threads: Iterable[str] | None,
    progress: OnCopyProgress | None,
    options: Mapping[str, Any],
) -> CopyReport:
    """Copy threads of a store, or all, to another one. See `Maintenance.copy_to`."""
    if tenants not in ("own", "all"):
        raise InvalidError(f"tenants must be 'own' or 'all', not {tenants!r}")
    tenant = None if tenants == "all" else handle.tenant
    only = None
    if threads is not None:
        names = [handle.thread_line(thread).name for thread in validation.require_names(threads, "threads")]
        only = await handle.engine.lines.of_threads(handle.tenant, names)
    if only is not None and tenant is None:
        raise InvalidError("threads can be named only if one tenant is copied, not all")
    target: Engine | str = store_url(other) if isinstance(other, str | os.PathLike) else other.engine
    if not isinstance(other, str | os.PathLike):
        if options:
            raise InvalidError(f"the other store is open already, and takes no option {min(options)!r}")
        if other.tenant != handle.tenant and tenant is not None:
            raise InvalidError(
                f"the other store was opened for tenant {other.tenant!r}, and would not see what is copied",
                hint=f"Open it with tenant={handle.tenant!r}, or give its URL",
            )
    url = target if isinstance(target, str) else target.context.backend.url
    await record_copy(handle.engine, handle.tenant, only, redacted_url(url))
    return await copy_lines(handle.engine, target, options, tenant, progress, only)
