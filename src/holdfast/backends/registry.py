"""From a URL to the backend that serves it.

Backends of other packages plug in through the entry point group `holdfast.backends`: the entry's name is the URL
scheme, and its object a `holdfast.backends.interface.Backend`.
"""

from __future__ import annotations

from holdfast._lazy import load
from holdfast.backends.interface import Backend
from holdfast.errors import ConfigError

GROUP = "holdfast.backends"
"""The entry point group of backends."""


def backend_for(url: str) -> type[Backend]:
    """The backend for a URL's scheme."""
    if not isinstance(url, str):
        raise ConfigError(f"a store is named by a URL, not by {type(url).__name__}", hint=f"Try sqlite:///{url}")
    scheme, colon, _ = url.partition(":")
    if not colon:
        raise ConfigError(
            "a store is named by a URL, and this has no scheme", where=url, hint=f"Try sqlite:///{url or 'agents.db'}"
        )
    if scheme in _BACKENDS:
        built_in: type[Backend] = load(*_BACKENDS[scheme])
        return built_in
    from importlib.metadata import entry_points  # takes its time, and only plug-ins need it

    for entry in entry_points(group=GROUP, name=scheme):
        found = entry.load()
        if not (isinstance(found, type) and issubclass(found, Backend)):
            raise ConfigError(f"the plug-in {entry.value} for {scheme}:// is no holdfast backend", where=url)
        return found
    raise ConfigError(
        f"no backend serves {scheme}://",
        where=url,
        hint=f"Known here: {', '.join(f'{name}://' for name in schemes())}. Others come with a package that plugs in",
    )


def schemes() -> list[str]:
    """The URL schemes that can be opened here."""
    from importlib.metadata import entry_points

    return sorted({*_BACKENDS, *entry_points(group=GROUP).names})


_WRAPPERS = "holdfast.backends.wrappers"
_BACKENDS = {
    "sqlite": ("holdfast.backends.sqlite", "SQLiteBackend"),
    "memory": ("holdfast.backends.memory", "MemoryBackend"),
    "behind": (f"{_WRAPPERS}.replication", "WriteBehindBackend"),
    "cache": (f"{_WRAPPERS}.cache", "CacheBackend"),
    "metrics": (f"{_WRAPPERS}.metrics", "MetricsBackend"),
    "mirror": (f"{_WRAPPERS}.mirror", "MirrorBackend"),
    "readonly": (f"{_WRAPPERS}.readonly", "ReadOnlyBackend"),
    "retry": (f"{_WRAPPERS}.retry", "RetryBackend"),
    "tiers": (f"{_WRAPPERS}.tiering", "TieredBackend"),
    "file": ("holdfast.backends.object_store.local", "FileBackend"),
    **dict.fromkeys(("s3", "gs", "az"), ("holdfast.backends.object_store.cloud", "CloudBackend")),
    **dict.fromkeys(("mongodb", "mongodb+srv"), ("holdfast.backends.mongodb", "MongoDBBackend")),
    **dict.fromkeys(("postgresql", "postgres"), ("holdfast.backends.postgres", "PostgresBackend")),
    **dict.fromkeys(("redis", "rediss", "valkey", "valkeys"), ("holdfast.backends.redis", "RedisBackend")),
}
