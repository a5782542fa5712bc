"""The results of LangGraph's nodes, kept for their next call with the same arguments: a `BaseCache`."""

from __future__ import annotations

from asyncio import to_thread
from collections.abc import Iterable, Mapping, Sequence
from hashlib import sha256
from typing import Any

from langgraph.cache.base import BaseCache, FullKey, Namespace

from holdfast.store.identity_view import IdentityView
from holdfast.store.store import Store

_PREFIX = "langgraph-cache"


class HoldfastCache(BaseCache[Any]):
    """A cache of the results of nodes, in a store: `builder.compile(cache=HoldfastCache(store))`.

    Values are stored by Holdfast's codec. Each namespace of the cache is a scope, `custom:langgraph-cache/…`, whose
    history `prune` removes; keys that have expired are deleted by the job `delete-expired`. Async methods wait in
    another thread than that of the event loop.
    """

    def __init__(self, store: Store | IdentityView) -> None:
        super().__init__()
        self._store = store

    def get(self, keys: Sequence[FullKey]) -> dict[FullKey, Any]:
        """Return the values of those keys that have one."""
        found: dict[FullKey, Any] = {}
        for full in keys:
            state = self._store.state(custom=_scope_name(full[0]))
            value = state.get(_short(full[1]))
            if value is not None:
                found[full] = value[0]
        return found

    async def aget(self, keys: Sequence[FullKey]) -> dict[FullKey, Any]:
        """Return the values of those keys that have one."""
        return await to_thread(self.get, keys)

    def set(self, pairs: Mapping[FullKey, tuple[Any, int | None]]) -> None:
        """Store values, each for so many seconds, or for ever."""
        together: dict[tuple[Namespace, int | None], dict[str, Any]] = {}
        for (namespace, key), (value, ttl) in pairs.items():
            together.setdefault((tuple(namespace), ttl), {})[_short(key)] = [value]
        for (namespace, ttl), values in together.items():
            self._store.state(custom=_scope_name(namespace)).batch(values, ttl=ttl)

    async def aset(self, pairs: Mapping[FullKey, tuple[Any, int | None]]) -> None:
        """Store values, each for so many seconds, or for ever."""
        await to_thread(self.set, pairs)

    def clear(self, namespaces: Sequence[Namespace] | None = None) -> None:
        """Delete the values of namespaces, or all."""
        for name in self._names() if namespaces is None else map(_scope_name, namespaces):
            self._store.state(custom=name).clear()

    async def aclear(self, namespaces: Sequence[Namespace] | None = None) -> None:
        """Delete the values of namespaces, or all."""
        await to_thread(self.clear, namespaces)

    def _names(self) -> Iterable[str]:
        listed = self._store.scopes("custom:").all()
        return [name for info in listed if (name := info.scope.parts[-1].name).startswith(f"{_PREFIX}/")]


def _scope_name(namespace: Namespace) -> str:
    return f"{_PREFIX}/{_short(repr(tuple(namespace)))}"


def _short(text: str) -> str:
    """Return a name that keys and scopes may have: a digest, since LangGraph's are of any form."""
    return sha256(text.encode(errors="surrogatepass")).hexdigest()[:40]
