"""Which store is meant, and opening it: never making one that is not there, unless that is the command's business."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl

from holdfast.errors import NotFoundError

if TYPE_CHECKING:
    from holdfast.store.store import Store


def url_of(given: str | None) -> str:
    """The URL of a store that was named in some way: a URL, `stores.name`, or a path where that is plain.

    Nothing given is `$HOLDFAST_STORE`, or the default of `holdfast.toml`.
    """
    from holdfast.backends.config import resolve

    return resolve(given)


def open_store(given: str | None, *, tenant: str = "", write: bool = False, create: bool = False) -> Store:
    """Open a store for reading; or for writing; and make it, if it may be made.

    Raises `NotFoundError` with the code `no-store` where there is none.
    """
    from holdfast.backends.registry import backend_for
    from holdfast.store.opener import open as opened

    url = url_of(given)
    if not create:
        _must_be_there(url)
    read_only = not write and backend_for(url).takes_read_only
    options: dict[str, Any] = {"read_only": True} if read_only else {}
    return opened(url, tenant=tenant, **options)


def _must_be_there(url: str) -> None:
    from holdfast.backends.urls import COMPOSITIONS, is_url, path_to_url, url_to_path

    scheme, _, rest = url.partition(":")
    if scheme in COMPOSITIONS:
        parts = dict(parse_qsl(rest.partition("?")[2]))
        part = parts.get(COMPOSITIONS[scheme][0], "")
        _must_be_there(part if is_url(part) or not part else path_to_url(part))
        return
    path = url_to_path(url)
    if path is None:
        return
    if not path.exists():
        raise NotFoundError(
            f"there is no store at {url}",
            where=str(path.absolute()),
            hint="Name one with --store, HOLDFAST_STORE or holdfast.toml; saving a first checkpoint makes it, and so "
            "do `holdfast state set --create` and `holdfast session start --create`",
            code="no-store",
        )
