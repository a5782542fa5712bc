"""The doctor: checks the installation, the settings and the store, and says how to fix the problems it finds.

It creates no store and changes none. A store that cannot be opened is one of the problems it reports.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from urllib.parse import unquote

from holdfast.backends.config import store_url
from holdfast.backends.registry import backend_for
from holdfast.backends.runtime.drivers import run
from holdfast.backends.urls import redacted_url, store_parts, url_to_path
from holdfast.errors import ConfigError, HoldfastError
from holdfast.maintenance.doctor import environment, storage_path, store_checks
from holdfast.maintenance.doctor.result import CheckResult, problem
from holdfast.store.opener import configured_encryption, is_served, open_existing
from holdfast.store.opener import open as open_store


def doctor(url: str | None = None, *, tenant: str = "", full: bool = False) -> list[CheckResult]:
    """Check the environment and the store at a URL, or the one in the settings.

    With `full`, the integrity check of the backend itself is run on large stores, too, which may take long.
    """
    return list(examine(url, tenant=tenant, full=full))


def examine(url: str | None = None, *, tenant: str = "", full: bool = False, token: str = "") -> Iterator[CheckResult]:
    """Iterate over the results of `doctor` as the checks are done. A served store, which needs a `token`, checks
    itself."""
    yield from environment.checks()
    try:
        named = store_url(url)
    except ConfigError as error:
        yield problem("store-named", error.what, error.hint)
        return
    if is_served(named):
        yield from _served_store(named, tenant, full, token)
        return
    there = True
    for part in store_parts(named):
        path = url_to_path(part)
        if path is not None:
            found = list(storage_path.checks(part, path))
            there = there and not any(each.code == "store-there" and not each.ok for each in found)
            yield from found
    if there:
        yield from _store(url, named, tenant, full)


def _served_store(url: str, tenant: str, full: bool, token: str) -> Iterator[CheckResult]:
    try:
        with open_existing(url, tenant=tenant, token=token) as store:
            yield from store.maintenance.doctor(full=full)
    except HoldfastError as error:
        yield _failed(url, error)


def _store(name: str | None, url: str, tenant: str, full: bool) -> Iterator[CheckResult]:
    """Open the store, check it, and close it."""
    try:
        options: dict[str, Any] = {"read_only": True} if backend_for(url).takes_read_only else {}
        store = open_store(url, tenant=tenant, encryption=configured_encryption(name), **options)
    except HoldfastError as error:
        yield _failed(url, error)
        return
    try:
        with store:
            yield from run(store_checks.checks(store._handle, full=full))
            for part in store_parts(url):
                path = url_to_path(part)
                if path is not None and part.startswith("sqlite:"):
                    yield from store_checks.sqlite_settings(path)
    except HoldfastError as error:
        yield _failed(url, error)


def _failed(url: str, error: HoldfastError) -> CheckResult:
    where = f" (at {error.where})" if error.where and error.where not in (url, unquote(url)) else ""
    remedy = error.hint or f"See `holdfast explain {error.code}`"
    return problem("store-opens", f"{redacted_url(url)}: {error.what}{where} [{error.code}]", remedy)
