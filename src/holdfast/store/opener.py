"""Opening a store by its URL."""

from __future__ import annotations

import os
import sys
from collections.abc import Coroutine, Generator
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from holdfast._lazy import load, missing_extra, unknown_attribute
from holdfast.backends.config import encryption_settings, redaction_settings, store_url
from holdfast.backends.interface import Backend
from holdfast.backends.registry import backend_for
from holdfast.backends.runtime.drivers import arun, run
from holdfast.backends.runtime.memory_cache import MemoryCache
from holdfast.backends.urls import redacted_url, store_parts, url_to_path
from holdfast.codec import Codec, default_codec
from holdfast.engine.checked_rows import CHECKSUMS, RowCodec, clear_refused
from holdfast.engine.context import CACHE_BYTES, EngineContext
from holdfast.engine.engine import Engine
from holdfast.engine.row_format import check_name
from holdfast.errors import ConfigError, InvalidError, NotFoundError, UnsupportedError
from holdfast.store.store import AsyncStore, Store, StoreOperations

if TYPE_CHECKING:
    from holdfast.security.encryption.settings import Encryption

S = TypeVar("S", bound=StoreOperations)

_REMOTE = ("holdfast.interfaces.http.remote", "open_remote")
"""An interface above this one opens served stores; it is imported when one is opened."""


def open(  # noqa: A001 - reads as holdfast.open
    url: str | os.PathLike[str] | Backend | None = None,
    *,
    tenant: str = "",
    cache_bytes: int = CACHE_BYTES,
    codec: Codec = default_codec,
    project: bool | Literal["follow", "sync"] | None = None,
    encryption: Encryption | Literal[False] | None = None,
    **options: Any,
) -> Store:
    """Open a store by its URL or path, and create it if it does not exist: `open("agents.db")`.

    A path is that of a SQLite file, or of a directory of files if it ends in `/`. `stores.main` is the URL of that name
    in `holdfast.toml`. Without a URL, the one in `$HOLDFAST_STORE` is used, or else `stores.default` of that file.

    `tenant` separates customers: a store that is opened for one sees nothing of another's. `cache_bytes` limits the
    memory of the cache. `project` says whether readable rows are written beside the log: with `"sync"` in the batch of
    a save, and with `"follow"` within a second after it; by default, the backend decides. `encryption` says where the
    key of an encrypted store is (`holdfast.encryption.Encryption`): by default, `$HOLDFAST_ENCRYPTION`, or `encryption`
    of the store in that file. Policies of sensitive data are those that `$HOLDFAST_REDACTION` names, or `sensitive` of
    the store in that file. Further options are those of the backend.

    An `https://` address is that of a served store. Its `token` is that option, or `$HOLDFAST_TOKEN`. An open `Backend`
    can be given in the place of a URL; the store closes it.
    """
    if not isinstance(url, Backend) and is_served(address := store_url(url)):
        return _open_served(address, tenant, codec, project, encryption, options)
    return run(_open(Store, url, tenant, cache_bytes, codec, project, encryption, options))


def aopen(
    url: str | os.PathLike[str] | Backend | None = None,
    *,
    tenant: str = "",
    cache_bytes: int = CACHE_BYTES,
    codec: Codec = default_codec,
    project: bool | Literal["follow", "sync"] | None = None,
    encryption: Encryption | Literal[False] | None = None,
    **options: Any,
) -> _Opening:
    """Open a store for asyncio: `store = await aopen(url)`, or `async with aopen(url) as store`. See `open`."""
    return _Opening(_open(AsyncStore, url, tenant, cache_bytes, codec, project, encryption, options))


def open_existing(
    location: str | None = None,
    *,
    tenant: str = "",
    read_only: bool = True,
    create: bool = False,
    token: str = "",
) -> Store:
    """Open a store by a URL, a path or a name; without any, the default one. Only `create` creates one. `token` is for
    a served one.

    Raises `NotFoundError` with the code `no-store` if there is none.
    """
    url = store_url(location)
    if is_served(url):
        return open(url, tenant=tenant, token=token)
    path = url_to_path(next(store_parts(url), ""))
    if not create and path is not None and not path.exists():
        raise NotFoundError(
            f"there is no store at {url}",
            where=str(path.absolute()),
            hint="Name one with --store, HOLDFAST_STORE or holdfast.toml; the first save creates it, and so "
            "do `holdfast state set`, `holdfast session start` and `holdfast backup restore` with --create",
            code="no-store",
        )
    options: dict[str, Any] = {"read_only": True} if read_only and backend_for(url).takes_read_only else {}
    store = open(url, tenant=tenant, encryption=configured_encryption(location), **options)
    try:
        if not read_only:
            _protect(store, location)
    except BaseException:
        store.close()
        raise
    return store


def _protect(store: Store | AsyncStore, name: str | os.PathLike[str] | None) -> None:
    """Add the policies of sensitive data that settings name, by the name of the store as for `open`."""
    settings = redaction_settings(name)
    if settings is not None:
        from holdfast.security.sensitive.settings import policies_of

        for policy in policies_of(settings):
            store.redaction.protect(**policy)


def is_served(url: str) -> bool:
    """Whether a URL is the address of a server that serves a store."""
    return url.startswith(("https://", "http://"))


def _open_served(
    url: str,
    tenant: str,
    codec: Codec,
    project: bool | Literal["follow", "sync"] | None,
    encryption: Any,
    options: dict[str, Any],
) -> Store:
    if project is not None or encryption:
        raise ConfigError("a served store is projected and encrypted where it is, and not by who uses it", where=url)
    try:
        opened: Store = load(*_REMOTE)(url, tenant, codec, options)
    except ImportError as error:
        raise missing_extra("ui", error) from error
    return opened


def configured_encryption(name: str | os.PathLike[str] | None) -> Encryption | None:
    """Return how a store is encrypted according to the settings, by its name as for `open`; None if it is not."""
    settings = encryption_settings(name)
    if settings is None:
        return None
    from holdfast.security.encryption.settings import Encryption

    return Encryption.from_settings(settings)


class _Opening:
    """Opens an `AsyncStore` when it is awaited, or entered with `async with`."""

    def __init__(self, opening: Coroutine[Any, Any, AsyncStore]) -> None:
        self._opening = opening
        self._store: AsyncStore | None = None

    if not TYPE_CHECKING:  # a type checker knows better
        __getattr__ = unknown_attribute("OPENING_WORDS")

    def __await__(self) -> Generator[Any, Any, AsyncStore]:
        return arun(self._opening).__await__()

    def __enter__(self) -> AsyncStore:
        self._opening.close()
        raise InvalidError("a store for asyncio is entered with `async with`", hint="Or open it with holdfast.open")

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        """Never entered."""

    async def __aenter__(self) -> AsyncStore:
        self._store = await self
        return self._store

    async def __aexit__(self, kind: object, error: object, trace: object) -> None:
        if self._store is not None:
            await self._store.close()


async def _open(
    cls: type[S],
    name: Any,
    tenant: str,
    cache_bytes: int,
    codec: Codec,
    project: bool | Literal["follow", "sync"] | None,
    encryption: Encryption | Literal[False] | None,
    options: dict[str, Any],
) -> S:
    check_name(tenant, "name of a tenant")
    if type(cache_bytes) is not int or cache_bytes < 0:
        raise ConfigError(f"cache_bytes must be a number of bytes, not {cache_bytes!r}")
    if project is not None and type(project) is not bool and project not in ("follow", "sync"):
        raise ConfigError(f'project must be True, False, "follow" or "sync", not {project!r}')
    opened = name if isinstance(name, Backend) else None
    if opened is not None:
        name = opened.url  # settings of the environment apply to it, too
        if options:
            raise ConfigError(f"a backend that is open takes no option {min(options)!r}", where=redacted_url(name))
    url = name if opened is not None else store_url(name)
    if is_served(url):
        raise UnsupportedError("a served store cannot be opened for asyncio", where=url, hint="Use holdfast.open")
    sys.audit("holdfast.open", redacted_url(url))  # replays refuse it
    rows = CHECKSUMS if encryption is False else _row_codec(encryption or configured_encryption(name))
    backend = opened or await _open_backend(url, tenant, options)
    try:
        if project is None:
            project = backend.capabilities.projected and rows.may_be_clear("readable")
        elif project and not rows.may_be_clear("readable"):
            raise clear_refused("readable")
        mode: bool | Literal["follow"] = bool(project)  # "sync" is in the batch
        if project == "follow" or (project is True and backend.capabilities.projected):
            mode = "follow"
        context = EngineContext(backend, MemoryCache(cache_bytes), codec, project=mode, rows=rows)
        await context.rows.check_store(context.stored, tenant, read_only=bool(options.get("read_only")))
        engine = Engine(context)
        store = cls(engine, tenant)
        if not options.get("read_only"):
            await engine.lines.generations.load(tenant)
            engine.load_writers()
            _protect(store, name)  # type: ignore[arg-type]  # one of both
    except BaseException:
        if opened is None:  # what somebody else opened stays theirs, and may have other stores on it
            await backend.close()
        raise
    return store


async def _open_backend(url: str, tenant: str, options: dict[str, Any]) -> Backend:
    kind = backend_for(url)
    return await kind.open(url, **(options | {"tenant": tenant} if kind.takes_tenant else options))


def _row_codec(encryption: Any) -> RowCodec:
    """Return how rows are stored: by an argument, or settings, if there are any."""
    if encryption is None:
        return CHECKSUMS
    from holdfast.security.encryption.encrypted_rows import EncryptedRows
    from holdfast.security.encryption.settings import Encryption

    if not isinstance(encryption, Encryption):
        raise ConfigError(
            f"encryption must be an Encryption, not {type(encryption).__name__}",
            hint='Such as holdfast.encryption.Encryption("file:holdfast.key")',
        )
    return EncryptedRows(encryption)
