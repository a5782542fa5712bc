"""Opening a store that exists: commands never create one by mistake."""

from __future__ import annotations

from typing import Any

from holdfast.backends.config import resolve
from holdfast.backends.registry import backend_for
from holdfast.backends.urls import store_parts, url_to_path
from holdfast.errors import NotFoundError
from holdfast.store.opener import open as open_store
from holdfast.store.store import Store


def open_existing(
    location: str | None = None, *, tenant: str = "", read_only: bool = True, create: bool = False
) -> Store:
    """Open a store by a URL, a path or a name; without any, the default one. Only `create` creates one.

    Raises `NotFoundError` with the code `no-store` if there is none.
    """
    url = resolve(location)
    path = url_to_path(next(store_parts(url), ""))
    if not create and path is not None and not path.exists():
        raise NotFoundError(
            f"there is no store at {url}",
            where=str(path.absolute()),
            hint="Name one with --store, HOLDFAST_STORE or holdfast.toml; the first save creates it, and so "
            "do `holdfast state set --create` and `holdfast session start --create`",
            code="no-store",
        )
    options: dict[str, Any] = {"read_only": True} if read_only and backend_for(url).takes_read_only else {}
    return open_store(url, tenant=tenant, **options)
