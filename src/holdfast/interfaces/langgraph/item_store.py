"""LangGraph's long-term memory on Holdfast: `HoldfastStore`, a `BaseStore`."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from threading import Event, Thread, current_thread
from typing import Any, Self, cast

from langgraph.store.base import (
    BaseStore,
    GetOp,
    IndexConfig,
    InvalidNamespaceError,
    Item,
    ListNamespacesOp,
    MatchCondition,
    Op,
    PutOp,
    Result,
    SearchItem,
    SearchOp,
    TTLConfig,
    ensure_embeddings,
    get_text_at_path,
    tokenize_path,
    validate_op_namespace,
)

from holdfast.backends.interface import BlockingCall
from holdfast.backends.runtime.drivers import arun, make_both, run
from holdfast.engine.model.scopes import Scope
from holdfast.engine.types import to_datetime
from holdfast.errors import InvalidError
from holdfast.interfaces.langgraph.item_names import ItemNames
from holdfast.state.item_index import FoundItem, Vector
from holdfast.state.items import ItemChange, ItemTable
from holdfast.store.identity_view import IdentityOperations
from holdfast.store.opener import open as open_store
from holdfast.store.store import StoreOperations

_MINUTE = 60_000_000_000


class HoldfastStore(BaseStore):
    """Keeps the items of LangGraph's long-term memory in a store.

    ::

        with HoldfastStore.from_conn_string("sqlite:///agents.db") as memory:
            graph = builder.compile(checkpointer=saver, store=memory)

    On a store that is open already, `HoldfastStore(store)`, or as an identity, `HoldfastStore(store.as_identity(…))`.
    A namespace is a scope, `items:memories.alice`, and an item is a key of it: it has a history, and is audited, backed
    up, encrypted and erased like all state.

    `users` names the namespaces that belong to a person, by their start, such as `[("memories", "{user}")]`: the items
    are then in the scope of that user, which only the user may read, and are erased with the user's data.

    Searches by filters use an index of the fields of items, and return the latest items first. With an `index`, as of
    LangGraph's other stores, texts are embedded, and searches by a query compare vectors, all of them exactly.
    """

    supports_ttl = True
    ttl_config: TTLConfig | None

    def __init__(
        self,
        store: StoreOperations | IdentityOperations,
        *,
        index: IndexConfig | None = None,
        ttl: TTLConfig | None = None,
        users: Sequence[Sequence[str]] = (),
    ) -> None:
        if not isinstance(store, StoreOperations | IdentityOperations):
            raise InvalidError(
                f"a store of items needs an open store, not {type(store).__name__}",
                hint="Pass what holdfast.open returned, or use HoldfastStore.from_conn_string(url)",
            )
        self.store = store
        self.ttl_config = ttl
        self.index_config = index
        self.embeddings = None if index is None else ensure_embeddings(index["embed"])
        fields = ["$"] if index is None else index.get("fields") or index.get("text_fields") or ["$"]
        self._fields = cast("list[str]", fields)
        self._items: ItemTable = ItemTable(store, cast("dict[str, Any]", index or {}).get("distance_type") or "cosine")
        self._names = ItemNames(users)
        self._owned = False
        self._stop = Event()
        self._sweeper: Thread | None = None

    @classmethod
    def from_conn_string(
        cls,
        conn_string: str | os.PathLike[str],
        *,
        index: IndexConfig | None = None,
        ttl: TTLConfig | None = None,
        users: Sequence[Sequence[str]] = (),
        **options: Any,
    ) -> Self:
        """A store of items in the store at a URL or a path, which is opened, and closed together with it. Further
        options are those of `holdfast.open`."""
        items = cls(open_store(conn_string, **options), index=index, ttl=ttl, users=users)
        items._owned = True
        return items

    def seen_by(self, store: StoreOperations | IdentityOperations) -> HoldfastStore:
        """Return the items with the same index, times to live and namespaces of users, as another sees them."""
        made = HoldfastStore(store, index=self.index_config, ttl=self.ttl_config)
        made._names = self._names
        return made

    def setup(self) -> None:
        """Do nothing: a store is set up when it is opened. For programs that call it on other stores."""

    async def asetup(self) -> None:
        """Do nothing; see `setup`."""

    # Operations -----------------------------------------------------------------------------------------------

    def batch(self, ops: Iterable[Op]) -> list[Result]:
        """Do several operations: reads see what was stored before, and all changes are made together, all or none."""
        work = _Batch(ops)
        queries, texts = self._queries(work), self._texts(work)
        embed = self.embeddings
        if embed is not None and queries:
            work.queries = {each: embed.embed_query(each) for each in queries}
        if embed is not None and texts:
            work.vectors = dict(zip(texts, embed.embed_documents(texts), strict=True))
        return run(self._batch(work))

    async def abatch(self, ops: Iterable[Op]) -> list[Result]:
        """Do several operations; see `batch`."""
        work = _Batch(ops)
        queries, texts = self._queries(work), self._texts(work)
        embed = self.embeddings
        if embed is not None and queries:
            work.queries = {each: await embed.aembed_query(each) for each in queries}
        if embed is not None and texts:
            work.vectors = dict(zip(texts, await embed.aembed_documents(texts), strict=True))
        return await arun(self._batch(work))

    async def _batch(self, work: _Batch) -> list[Result]:
        results: list[Result] = []
        read: dict[tuple[Scope, str], FoundItem] = {}
        for op in work.ops:
            if isinstance(op, GetOp):
                results.append(await self._get(op, read))
            elif isinstance(op, SearchOp):
                results.append(await self._search(op, work.queries, read))
            elif isinstance(op, ListNamespacesOp):
                results.append(await self._list_namespaces(op))
            else:
                results.append(None)
        if read and (self.ttl_config or {}).get("refresh_on_read", False):
            await self._items.refresh([(scope, item) for (scope, _), item in read.items()])
        changes: dict[Scope, list[ItemChange]] = {}
        for (namespace, key), op in work.puts.items():
            vectors = {path: work.vectors[text] for path, text in self._paths(op)} if work.vectors else {}
            change = ItemChange(self._names.key(key), op.value, int((op.ttl or 0) * _MINUTE), vectors)
            changes.setdefault(self._names.scope(namespace), []).append(change)
        await self._items.write(changes)
        return results

    async def _get(self, op: GetOp, read: dict[tuple[Scope, str], FoundItem]) -> Item | None:
        scope = self._names.scope(op.namespace)
        found = await self._items.get(scope, self._names.key(op.key))
        if found is None:
            return None
        if op.refresh_ttl:
            read[scope, found.key] = found
        created, updated = to_datetime(found.times.created), to_datetime(found.times.updated)
        return Item(namespace=op.namespace, key=op.key, value=found.value, created_at=created, updated_at=updated)

    async def _search(
        self, op: SearchOp, queries: Mapping[str, Vector], read: dict[tuple[Scope, str], FoundItem]
    ) -> list[SearchItem]:
        namespaces = await self._namespaces(op.namespace_prefix)
        query = queries.get(op.query or "")
        page = await self._items.search(namespaces, op.filter or {}, op.limit, op.offset, query)
        if op.refresh_ttl:
            read |= {(scope, item.key): item for scope, item, _ in page}
        return [
            SearchItem(
                namespaces[scope],
                self._names.original(item.key),
                item.value,
                to_datetime(item.times.created),
                to_datetime(item.times.updated),
                score,
            )
            for scope, item, score in page
        ]

    async def _namespaces(self, prefix: Sequence[str]) -> dict[Scope, tuple[str, ...]]:
        """Return the namespaces that start with a prefix and may be read, by their scopes."""
        found = {}
        for scope in await self._items.scopes(self._names.line_starts(prefix)):
            namespace = self._names.namespace(scope)
            if namespace is not None and namespace[: len(prefix)] == tuple(prefix):
                found[scope] = namespace
        return found

    async def _list_namespaces(self, op: ListNamespacesOp) -> list[tuple[str, ...]]:
        conditions = op.match_conditions or ()
        prefix: tuple[str, ...] = ()
        for condition in conditions:
            if condition.match_type == "prefix" and "*" not in condition.path:
                prefix = condition.path
        found: list[tuple[str, ...]] = []
        namespaces = await self._namespaces(prefix)
        for scope in sorted(namespaces, key=namespaces.__getitem__):
            short = namespaces[scope][: op.max_depth]
            if found[-1:] == [short] or not all(_fits(each, namespaces[scope]) for each in conditions):
                continue
            if not await self._items.is_empty(scope):
                found.append(short)
                if len(found) == op.offset + op.limit:
                    break
        return found[op.offset :]

    # Embedding ------------------------------------------------------------------------------------------------

    def _queries(self, work: _Batch) -> list[str]:
        found = [op.query for op in work.ops if isinstance(op, SearchOp) and op.query] if self.embeddings else []
        return list(dict.fromkeys(found))

    def _texts(self, work: _Batch) -> list[str]:
        """Return the texts to embed, each once."""
        if self.embeddings is None:
            return []
        return list(dict.fromkeys(text for op in work.puts.values() for _, text in self._paths(op)))

    def _paths(self, op: PutOp) -> list[tuple[str, str]]:
        """Return the texts of an item to embed, with their paths."""
        if op.value is None or op.index is False:
            return []
        found = []
        for path in self._fields if op.index is None else op.index:
            texts = get_text_at_path(op.value, path if path == "$" else tokenize_path(path))
            found += [(f"{path}.{number}" if len(texts) > 1 else path, text) for number, text in enumerate(texts)]
        return found

    # Expiry ---------------------------------------------------------------------------------------------------

    async def _sweep_ttl(self) -> int:
        """Delete items, and other keys of the store, that have expired: they are invisible already. Returns their
        number."""
        return await self._items.delete_expired()

    sweep_ttl, asweep_ttl = make_both(_sweep_ttl)

    def start_ttl_sweeper(self, sweep_interval_minutes: float | None = None) -> Future[None]:
        """Sweep at intervals in a thread, until `stop_ttl_sweeper`. The job `delete-expired` does so for programs with
        a runner of jobs."""
        done: Future[None] = Future()
        config = self.ttl_config or {}
        seconds = 60 * float(sweep_interval_minutes or config.get("sweep_interval_minutes") or 5)
        if self._sweeper is not None and self._sweeper.is_alive() and not self._stop.is_set():
            done.set_result(None)
        else:
            self._stop = Event()
            self._sweeper = Thread(target=self._sweep_at_intervals, args=(self._stop, seconds, done), daemon=True)
            self._sweeper.start()
        return done

    def _sweep_at_intervals(self, stop: Event, seconds: float, done: Future[None]) -> None:
        try:
            while not stop.wait(seconds):
                self.sweep_ttl()
        except BaseException as error:  # noqa: BLE001 - whoever waits for the sweeper gets it
            done.set_exception(error)
        else:
            done.set_result(None)

    def stop_ttl_sweeper(self, timeout: float | None = None) -> bool:
        """End the sweeper, and wait until it has ended, at most for some seconds. Returns whether it has: if not, a
        sweep is going on, and there is no other after it."""
        self._stop.set()
        sweeper = self._sweeper
        if sweeper is None or sweeper is current_thread():
            return True
        sweeper.join(timeout)
        return not sweeper.is_alive()

    # Closing --------------------------------------------------------------------------------------------------

    async def _close(self) -> None:
        """Close the store, if it was opened together with this."""
        await BlockingCall(self.stop_ttl_sweeper)
        if self._owned and isinstance(self.store, StoreOperations):
            await StoreOperations.close(self.store)

    close, aclose = make_both(_close)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: object, error: object, trace: object) -> None:
        await self.aclose()


class _Batch:
    """The operations of a batch, and the embeddings of their texts."""

    def __init__(self, ops: Iterable[Op]) -> None:
        self.ops = list(ops)
        self.puts: dict[tuple[tuple[str, ...], str], PutOp] = {}
        """The last change of each item."""
        self.queries: dict[str, Vector] = {}
        self.vectors: dict[str, Vector] = {}
        for op in self.ops:
            validate_op_namespace(op)
            if isinstance(op, PutOp):
                if not op.namespace:
                    raise InvalidNamespaceError("Namespace cannot be empty.")
                self.puts[tuple(op.namespace), op.key] = op


def _fits(condition: MatchCondition, namespace: tuple[str, ...]) -> bool:
    """Return whether a namespace meets a condition of a listing."""
    path = tuple(condition.path)
    if condition.match_type not in ("prefix", "suffix"):
        raise InvalidError(f"there is no match type {condition.match_type!r}", hint="It is 'prefix' or 'suffix'")
    there = namespace[: len(path)] if condition.match_type == "prefix" else namespace[len(namespace) - len(path) :]
    return len(path) <= len(namespace) and all(p in ("*", n) for p, n in zip(path, there, strict=True))
