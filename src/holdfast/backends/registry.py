"""The backend for a URL.

Backends of other packages plug in through the entry point group `holdfast.backends`: the entry's name is the URL
scheme, and its object a `holdfast.backends.interface.Backend`.
"""

from __future__ import annotations

from typing import NamedTuple

from holdfast._lazy import load
from holdfast.backends.interface import Backend
from holdfast.backends.urls import suggest
from holdfast.errors import ConfigError

GROUP = "holdfast.backends"
"""The entry point group of backends."""


class _BackendClass(NamedTuple):
    """Where a backend is defined, and the extra that installs its driver."""

    module: str
    name: str
    extra: str = ""


_BACKENDS = {
    "memory": _BackendClass("memory", "MemoryBackend"),
    "sqlite": _BackendClass("sqlite", "SQLiteBackend"),
    "file": _BackendClass("object_store.local", "FileBackend"),
    "cache": _BackendClass("wrappers.cache", "CacheBackend"),
    "mirror": _BackendClass("wrappers.mirror", "MirrorBackend"),
    "readonly": _BackendClass("wrappers", "ReadOnlyBackend"),
    "retry": _BackendClass("wrappers.retry", "RetryBackend"),
    "tiered": _BackendClass("wrappers.tiering", "TieredBackend"),
    "write-behind": _BackendClass("wrappers.replication", "WriteBehindBackend"),
    **dict.fromkeys(("s3", "gs", "az"), _BackendClass("object_store.cloud", "CloudBackend", "objects")),
    **dict.fromkeys(("mongodb", "mongodb+srv"), _BackendClass("mongodb", "MongoDBBackend", "mongodb")),
    **dict.fromkeys(("postgresql", "postgres"), _BackendClass("postgres", "PostgresBackend", "postgres")),
    **dict.fromkeys(("redis", "rediss", "valkey", "valkeys"), _BackendClass("redis", "RedisBackend", "redis")),
}
"""The schemes of this package."""


def backend_for(url: str) -> type[Backend]:
    """Return the backend for the scheme of a URL. Raises `ConfigError` if none serves it, or a driver is missing."""
    if not isinstance(url, str):
        raise ConfigError(f"a store is named by a URL, not by {type(url).__name__}", hint=f"Try sqlite:///{url}")
    scheme, colon, _ = url.partition(":")
    if not colon:
        raise ConfigError(
            "a store is named by a URL, and this has no scheme", where=url, hint=f"Try sqlite:///{url or 'agents.db'}"
        )
    if scheme in _BACKENDS:
        return _load(scheme, _BACKENDS[scheme])
    from importlib.metadata import entry_points  # slow to import, and only plug-ins need it

    for entry in entry_points(group=GROUP, name=scheme):
        backend = entry.load()
        if not (isinstance(backend, type) and issubclass(backend, Backend)):
            raise ConfigError(f"the plug-in {entry.value} for {scheme}: is no holdfast backend", where=url)
        return backend
    raise ConfigError(f"no backend serves {scheme}:", where=url, hint=suggest(scheme, schemes()))


def schemes() -> list[str]:
    """Return the URL schemes that can be opened here."""
    from importlib.metadata import entry_points

    return sorted({*_BACKENDS, *entry_points(group=GROUP).names})


def _load(scheme: str, definition: _BackendClass) -> type[Backend]:
    """Import a backend on its first use: drivers are slow to import."""
    try:
        backend: type[Backend] = load(f"holdfast.backends.{definition.module}", definition.name)
    except ModuleNotFoundError as error:
        if not definition.extra:
            raise
        raise ConfigError(
            f"a store at {scheme}:// needs {error.name}, which is not installed",
            hint=f"Install it with: pip install 'holdfast[{definition.extra}]'",
            code="not-installed",
        ) from error
    return backend
