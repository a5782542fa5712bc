"""The backend for a URL.

Backends of other packages plug in through the entry point group `holdfast.backends`: the entry's name is the URL
scheme, and its object a `holdfast.backends.interface.Backend`.
"""

from __future__ import annotations

from holdfast._lazy import load
from holdfast.backends.interface import Backend
from holdfast.backends.urls import redacted_url, suggest
from holdfast.errors import ConfigError

GROUP = "holdfast.backends"
"""The entry point group of backends."""


_BACKENDS = {
    "memory": ("holdfast.backends.memory", "MemoryBackend"),
    "sqlite": ("holdfast.backends.sqlite", "SQLiteBackend"),
    "file": ("holdfast.backends.object_store.local", "FileBackend"),
    "cache": ("holdfast.backends.wrappers.cache", "CacheBackend"),
    "mirror": ("holdfast.backends.wrappers.mirror", "MirrorBackend"),
    "readonly": ("holdfast.backends.wrappers", "ReadOnlyBackend"),
    "retry": ("holdfast.backends.wrappers.retry", "RetryBackend"),
    "tiered": ("holdfast.backends.wrappers.tiering", "TieredBackend"),
    "write-behind": ("holdfast.backends.wrappers.replication", "WriteBehindBackend"),
    **dict.fromkeys(("s3", "gs", "az"), ("holdfast.backends.object_store.cloud", "CloudBackend")),
    **dict.fromkeys(("mongodb", "mongodb+srv"), ("holdfast.backends.mongodb", "MongoDBBackend")),
    **dict.fromkeys(("postgresql", "postgres"), ("holdfast.backends.postgres", "PostgresBackend")),
    **dict.fromkeys(("redis", "rediss", "valkey", "valkeys"), ("holdfast.backends.redis", "RedisBackend")),
}
"""The schemes of this package."""


def backend_for(url: str) -> type[Backend]:
    """Return the backend for the scheme of a URL. Raises `ConfigError` if none serves it, or a driver is missing."""
    if not isinstance(url, str):
        raise ConfigError(f"a store must be given as a URL, not {type(url).__name__}", hint=f"Try sqlite:///{url}")
    scheme, colon, _ = url.partition(":")
    if not colon:
        raise ConfigError(
            "the URL of the store has no scheme",
            where=redacted_url(url),
            hint=f"Try sqlite:///{url or 'agents.db'}",
        )
    if scheme in _BACKENDS:
        built_in: type[Backend] = load(*_BACKENDS[scheme])
        return built_in
    from importlib.metadata import entry_points  # takes its time, and only plug-ins need it

    for entry in entry_points(group=GROUP, name=scheme):
        backend = entry.load()
        if not (isinstance(backend, type) and issubclass(backend, Backend)):
            raise ConfigError(
                f"the plug-in {entry.value} for {scheme}: is not a holdfast backend", where=redacted_url(url)
            )
        return backend
    raise ConfigError(f"no backend supports {scheme}: URLs", where=redacted_url(url), hint=suggest(scheme, schemes()))


def schemes() -> list[str]:
    """Return the URL schemes that can be opened here."""
    from importlib.metadata import entry_points

    return sorted({*_BACKENDS, *entry_points(group=GROUP).names})
