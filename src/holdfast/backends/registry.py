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

_EXTRAS = {
    "memory": "",
    "sqlite": "",
    "file": "",
    "s3": "objects",
    "gs": "objects",
    "az": "objects",
    "mongodb": "mongodb",
    "mongodb+srv": "mongodb",
    "postgresql": "postgres",
    "postgres": "postgres",
    "redis": "redis",
    "rediss": "redis",
    "valkey": "redis",
    "valkeys": "redis",
    # Stores that are made of others: `holdfast.backends.wrappers`.
    "behind": "",
    "cache": "",
    "metrics": "",
    "mirror": "",
    "readonly": "",
    "retry": "",
    "tiers": "",
}
"""The schemes that come with this package, and the extra that brings what each needs."""


def backend_for(url: str) -> type[Backend]:
    """The backend for a URL's scheme."""
    if not isinstance(url, str):
        raise ConfigError(f"a store is named by a URL, not by {type(url).__name__}", hint=f"Try sqlite:///{url}")
    scheme, colon, _ = url.partition(":")
    if not colon:
        raise ConfigError(
            "a store is named by a URL, and this has no scheme", where=url, hint=f"Try sqlite:///{url or 'agents.db'}"
        )
    built_in = _built_in(scheme)
    if built_in is not None:
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

    return sorted({*_EXTRAS, *entry_points(group=GROUP).names})


def _built_in(scheme: str) -> type[Backend] | None:
    if scheme not in _EXTRAS:
        return None
    try:
        return _load(scheme)
    except ModuleNotFoundError as error:
        if not _EXTRAS[scheme]:
            raise
        raise ConfigError(
            f"a store at {scheme}:// needs {error.name}, which is not installed",
            hint=f"Install it with: pip install 'holdfast[{_EXTRAS[scheme]}]'",
            code="not-installed",
        ) from error


_WRAPPERS = "holdfast.backends.wrappers"
_BACKENDS = {
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
_SQLITE = ("holdfast.backends.sqlite", "SQLiteBackend")


def _load(scheme: str) -> type[Backend]:
    """Import the backend of a scheme: drivers take their time."""
    backend: type[Backend] = load(*_BACKENDS.get(scheme, _SQLITE))
    return backend
