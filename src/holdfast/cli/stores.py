"""Which store is meant, and opening it: never making one that is not there, unless that is the command's business."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, quote, unquote

from holdfast.errors import NotFound

if TYPE_CHECKING:
    from holdfast.store import Store

_WINDOWS_DRIVE = 1


def url_of(given: str | None) -> str:
    """The URL of a store that was named in some way: a URL, `stores.name`, or a path where that is plain.

    Nothing given is `$HOLDFAST_STORE`, or the default of `holdfast.toml`.
    """
    from holdfast.backends.wrap.settings import is_name, resolve

    found = resolve(given)
    return found if is_name(found) else of_path(found)


def of_path(text: str) -> str:
    """The URL for a path to a file or directory; a URL stays what it is."""
    scheme, colon, _ = text.partition(":")
    if colon and len(scheme) > _WINDOWS_DRIVE:
        return text
    path = Path(text).expanduser()
    kind = "file" if path.is_dir() or text.endswith("/") else "sqlite"
    # A path that starts at the root has four slashes in a URL: `sqlite:////var/lib/agents.db`.
    return f"{kind}:///{quote(str(path), safe='/:~')}"


def path_of(url: str) -> Path | None:
    """The file or directory of a store that is one, as its URL says."""
    scheme, colon, rest = url.partition(":///")
    if not colon or scheme not in ("sqlite", "file"):
        return None
    return Path(unquote(rest.partition("?")[0]))


def open_store(given: str | None, *, tenant: str = "", write: bool = False, create: bool = False) -> Store:
    """Open a store for reading; or for writing; and make it, if it may be made.

    Raises `NotFound` with the code `no-store` where there is none.
    """
    from holdfast.backends.registry import backend_for
    from holdfast.opening import open as opened

    url = url_of(given)
    if not create:
        _must_be_there(url)
    read_only = not write and backend_for(url).takes_read_only
    options: dict[str, Any] = {"read_only": True} if read_only else {}
    return opened(url, tenant=tenant, **options)


def _must_be_there(url: str) -> None:
    from holdfast.backends.wrap.urls import COMPOSITIONS

    scheme, _, rest = url.partition(":")
    if scheme in COMPOSITIONS:
        parts = dict(parse_qsl(rest.partition("?")[2]))
        _must_be_there(parts.get(COMPOSITIONS[scheme][0], ""))
        return
    path = path_of(url)
    if path is None:
        return
    if not path.exists():
        raise NotFound(
            f"there is no store at {url}",
            where=str(path.absolute()),
            hint="Name one with --store, HOLDFAST_STORE or holdfast.toml; saving a first checkpoint makes it",
            code="no-store",
        )
