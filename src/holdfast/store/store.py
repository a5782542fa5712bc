"""The store: threads of checkpoints, scoped state, agents, and what belongs to them.

`Store` and `AsyncStore` have the same operations, written once; those of `AsyncStore` are awaited.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Self, TypeVar, Unpack, overload

from holdfast._lazy import unknown_attribute
from holdfast.backends.interface import BlockingCall
from holdfast.backends.runtime.drivers import AsyncApi, Part, SyncApi, arun, operation, run, sync_or_async
from holdfast.backends.urls import redacted_url
from holdfast.engine.engine import Engine
from holdfast.engine.guard import OWNER, acting
from holdfast.engine.namespaces import LineKinds, count_stored, missing_line_error, parse_kinds
from holdfast.engine.paths import Path
from holdfast.engine.types import Checkpoint, S, StoreStatus
from holdfast.errors import InvalidError
from holdfast.security.access.identity import Identity, parse_identity
from holdfast.security.handle import ScopeParts, StoreHandle
from holdfast.state.api import ATTEMPTS, ScopedOperations, StateTransaction
from holdfast.store.checkpoint_fields import CheckpointFields
from holdfast.store.thread import AsyncThread, Thread, ThreadOperations, check_schema
from holdfast.store.thread_access import ThreadListing, refresh_known
from holdfast.time_parser import Duration

if TYPE_CHECKING:
    from holdfast.agents.runs.api import AsyncRuns, Runs
    from holdfast.agents.runs.worker import AsyncWorker, Worker
    from holdfast.engine.append import AppendRequest
    from holdfast.hooks.api import AsyncHooks, Hooks
    from holdfast.maintenance.jobs.api import AsyncJobs, Jobs
    from holdfast.security.access.identity_guard import GuardMode, IdentityGuard, Mode
    from holdfast.security.access.policy import Policy
    from holdfast.security.audit.recorder import AuditRecorder
    from holdfast.security.encryption.provider import KeyProvider
    from holdfast.state.access_api import AsyncStoreAccess, StoreAccess
    from holdfast.state.writer import WrittenKey
    from holdfast.store.alerts import Alerts, AsyncAlerts
    from holdfast.store.audit import AsyncAudit, Audit
    from holdfast.store.backups import AsyncBackups, Backups
    from holdfast.store.encryption_keys import AsyncEncryptionKeys, EncryptionKeys
    from holdfast.store.erasure import AsyncErasure, Erasure
    from holdfast.store.identity_view import AsyncIdentityView, IdentityView
    from holdfast.store.maintenance import AsyncMaintenance, Maintenance
    from holdfast.store.redaction import AsyncRedaction, Redaction
    from holdfast.store.schemas import AsyncSchemas, Schemas


T = TypeVar("T")

_COUNTED = 1_000
"""How many lines `status` reads where the store cannot count them."""

_WINDOW = 5.0


def _on_store(kind: Any, store: StoreOperations) -> Any:
    return kind(store)


def _with_recorder(kind: Any, store: StoreOperations) -> Any:
    return kind(store._handle, store._recorder())


def _with_redaction(kind: Any, store: StoreOperations) -> Any:
    from holdfast.security.sensitive.recorded_values import redact

    return kind(store._engine, store.tenant, redact)


class StoreOperations(ThreadListing, ScopedOperations):
    """Operations on a store. `Store` and `AsyncStore` have these as methods."""

    _opened_recorder: AuditRecorder | None = None

    def __init__(self, engine: Engine, tenant: str) -> None:
        super().__init__(StoreHandle(engine, tenant))

    if not TYPE_CHECKING:  # a type checker knows better
        __getattr__ = unknown_attribute("STORE_WORDS")

        def __getitem__(self, key: object) -> Any:
            raise TypeError(f"a store is no dict: store.thread({key!r}).get().state, or store.state(agent={key!r})")

    def __repr__(self) -> str:
        tenant = f", tenant {self.tenant!r}" if self.tenant else ""
        return f"<{type(self).__name__} {redacted_url(self._engine.context.backend.url)}{tenant}>"

    @property
    def tenant(self) -> str:
        """The tenant that the store was opened for; empty for none."""
        return self._handle.tenant

    # Threads --------------------------------------------------------------------------------------------------

    @overload
    def transaction(self) -> Transaction: ...
    @overload
    def transaction(self, function: Callable[[Transaction], T], *, attempts: int = ...) -> T: ...
    def transaction(self, function: Callable[[Any], Any] | None = None, *, attempts: int = ATTEMPTS) -> Any:
        """Change several keys and save several checkpoints, all or none: in a block, or by a function.

        ::

            with store.transaction() as together:  # async with, on an AsyncStore
                together.put("planner", {"plan": plan})
                together.update("worker", {"task": plan[0]})
                together.state(agent="worker")["busy"] = True

        The changes are made when the block ends without an error. If a key that was read in it
        (`together.state(…)["budget"]`) has changed by then, it raises `ConflictError`, and nothing is changed.

        `store.transaction(function)` calls a function with the transaction, and again while others change what it has
        read, up to `attempts` times; it returns the function's result. The function must do nothing that cannot be
        repeated. On an `AsyncStore`, both are awaited.
        """
        return self._run(function, attempts)

    def _begin(self) -> Transaction:
        return Transaction(self._handle, self)

    # Agents, hooks, identities, the audit ---------------------------------------------------------------------

    access: Part[StoreAccess, AsyncStoreAccess] = Part(
        "holdfast.state.access_api.StoreAccess", "Rights of identities: grants, roles, groups.", _with_recorder
    )

    hooks: Part[Hooks, AsyncHooks] = Part(
        "holdfast.hooks.api.Hooks", "Functions that are called before and after changes.", _with_redaction
    )

    redaction: Part[Redaction, AsyncRedaction] = Part(
        "holdfast.store.redaction.Redaction", "Protection of credentials and personal data."
    )

    def _as_identity(
        self,
        identity: Identity | str | None = None,
        /,
        *,
        mode: Mode = "strict",
        policy: Policy | str | None = None,
        children: str | None = "read",
        read_window: Duration = _WINDOW,
        **parts: Unpack[ScopeParts],
    ) -> IdentityView:
        """Return the store as an identity sees it: `store.as_identity(agent="researcher")`, or by its text.

        The view has threads, scoped state, sessions, artifacts, agents, search and the timeline, each as far as the
        identity has rights, and nothing else of the store. In the mode `strict`, an identity has
        access to the scope of its own path; to those below it whose further parts are steps, tools, hooks or custom; to
        what was granted to it, its groups and its roles; and it can read its children's scopes if
        `store.access.allow_children` allows that and `children` is not None. `read-only` is the same without changes.
        In `custom`, a policy decides on everything: a `Policy`, or the name of a role as it is stored at the time.

        Everything the identity does is in the audit: changes and denials at once, reads after `read_window` seconds at
        the latest; with 0, before the value is returned.
        """
        from holdfast.store.identity_view import IdentityView, guard_mode

        how = guard_mode(mode, policy, children, read_window, waits=True)
        return IdentityView(self._handle, self._guard_of(identity, parts, how))

    @sync_or_async(_as_identity)
    def as_identity(
        self,
        identity: Identity | str | None = None,
        /,
        *,
        mode: Mode = "strict",
        policy: Policy | str | None = None,
        children: str | None = "read",
        read_window: Duration = _WINDOW,
        **parts: Unpack[ScopeParts],
    ) -> AsyncIdentityView:
        from holdfast.store.identity_view import AsyncIdentityView, guard_mode

        how = guard_mode(mode, policy, children, read_window, waits=False)
        return AsyncIdentityView(self._handle, self._guard_of(identity, parts, how))

    audit: Part[Audit, AsyncAudit] = Part(
        "holdfast.store.audit.Audit",
        "The audit: all changes, grants, reads of identities, and denials.",
        _with_recorder,
    )

    schemas: Part[Schemas, AsyncSchemas] = Part(
        "holdfast.store.schemas.Schemas", "Schemas of states, and migrations between their versions."
    )

    encryption_keys: Part[EncryptionKeys, AsyncEncryptionKeys] = Part(
        "holdfast.store.encryption_keys.EncryptionKeys", "The keys of an encrypted store."
    )

    erasure: Part[Erasure, AsyncErasure] = Part(
        "holdfast.store.erasure.Erasure", "Erasing the data of one person, and whose data it is.", _on_store
    )

    # The whole store ------------------------------------------------------------------------------------------

    maintenance: Part[Maintenance, AsyncMaintenance] = Part(
        "holdfast.store.maintenance.Maintenance",
        "Maintenance: copies, exports, pruning, verification, repair, indexes, metrics.",
    )

    def _backups(
        self, repository: str | os.PathLike[str], /, *, keys: KeyProvider | str | None = None, **options: Any
    ) -> Backups[Store]:
        """Backups of this store in a repository: a directory, or a bucket by its URL, with its options. `keys` is where
        the master key of an encrypted one is (a provider or `file:/etc/backup.key`), or `$HOLDFAST_BACKUP_KEYS`."""
        from holdfast.store.backups import Backups

        return Backups(self._handle, repository, options, Store, self, keys)

    @sync_or_async(_backups)
    def backups(
        self, repository: str | os.PathLike[str], /, *, keys: KeyProvider | str | None = None, **options: Any
    ) -> AsyncBackups[AsyncStore]:
        from holdfast.store.backups import AsyncBackups

        return AsyncBackups(self._handle, repository, options, AsyncStore, self, keys)

    jobs: Part[Jobs, AsyncJobs] = Part("holdfast.maintenance.jobs.api.Jobs", "Scheduled jobs.", _on_store)

    runs: Part[Runs, AsyncRuns] = Part(
        "holdfast.agents.runs.api.Runs", "Runs of graphs and workflows, which workers do."
    )

    def _worker(self, /, *graphs: Any, **options: Any) -> Worker:
        """Return a worker that does the runs of these graphs and workflows: `with store.worker(graph):`, or `work()`.
        A graph is known by the name that it was compiled with, or by the one that it is given here: `support=graph`.

        Options are `concurrency`, how many runs at a time; `limits`, how many of each graph; `lease`, after how long
        without a sign of life others take a run over; `look_every`, how often it looks for runs that were submitted on
        other machines; `code`, the version of the code; and `on_end`, called with each run after an attempt.
        """
        from holdfast.agents.runs.worker import Worker

        return Worker(self, *graphs, **options)

    @sync_or_async(_worker)
    def worker(self, /, *graphs: Any, **options: Any) -> AsyncWorker:
        from holdfast.agents.runs.worker import AsyncWorker

        return AsyncWorker(self, *graphs, **options)

    alerts: Part[Alerts, AsyncAlerts] = Part("holdfast.store.alerts.Alerts", "Alerts about what needs attention.")

    @operation
    async def status(self, *, kinds: LineKinds = "all", exact: bool = False) -> StoreStatus:
        """Return the status of the store: its size, this tenant's threads, agents and scopes, what is cached, what the
        backend guarantees, and details such as pending copies, hooks that are off, and the last backup and drill.

        Only lines of these `kinds` are counted; the numbers of the others are 0.

        SQLite, PostgreSQL, MongoDB and Redis count by themselves. Files and object storage cannot: there, counting
        stops after 1,000, and `complete` is False, unless `exact` is set.
        """
        from holdfast.maintenance.backup_status import backup_status

        cache, backend, hooks = self._engine.context.cache, self._engine.context.backend, self._engine.hooks
        limit = None if exact else _COUNTED
        counts, complete = await count_stored(backend, self._handle.tenant, parse_kinds(kinds), limit)
        details = await backend.status() | await backup_status(self._engine, self._handle.tenant)
        if self._engine.context.project:
            behind, seconds = await self._engine.projector.lag(self._handle.tenant)
            details |= {"readable_rows_behind": behind, "readable_rows_lag_seconds": round(seconds, 3)}
        return StoreStatus(
            url=backend.url,
            bytes=await backend.size(),
            **counts,
            complete=complete,
            cache_bytes=cache.size,
            cache_limit=cache.max_bytes,
            cache_hits=cache.hits,
            cache_misses=cache.misses,
            capabilities=backend.capabilities,
            details=details if hooks is None else details | hooks.status(),
        )

    @operation(changes=True, local="The store is closed where it is open.")
    async def close(self) -> None:
        """Close the store. Closing again does nothing.

        Waits for saves under way, and some seconds for after-hooks. Agents that run are saved.
        """
        for worker in self._engine.workers:
            await worker.close()
        if self._engine.hooks is not None:
            await BlockingCall(self._engine.hooks.close)
        try:
            await self._flush_audit()
            if self._engine.follower is not None:
                await self._engine.follower.close()
        finally:
            await self._engine.context.backend.close()
            self._engine.context.cache.clear()

    # Inside ---------------------------------------------------------------------------------------------------

    @property
    def _engine(self) -> Engine:
        return self._handle.engine

    def _for_jobs(self) -> Store:
        return Store(self._engine, self.tenant)

    def _recorder(self) -> AuditRecorder:
        from holdfast.security.audit.recorder import AuditRecorder

        if self._opened_recorder is None:
            self._opened_recorder = AuditRecorder(self._handle.engine, self._handle.tenant)
        return self._opened_recorder

    async def _flush_audit(self) -> None:
        """Write the collected reads of identities to the audit."""
        if self._opened_recorder is not None:
            await self._opened_recorder.flush()

    def _guard_of(self, identity: Identity | str | None, parts: ScopeParts, how: GuardMode) -> IdentityGuard:
        from holdfast.security.access.identity_guard import IdentityGuard

        if identity is not None and parts:
            raise InvalidError("an identity must be given as text or as parts, not both", where=str(identity)[:80])
        who = Identity.of(**parts) if identity is None else parse_identity(identity)
        return IdentityGuard(self._handle.engine, self._handle.tenant, who, how, self._recorder())


class Store(SyncApi, StoreOperations):
    """A store whose operations return when they are done. Safe to use from many threads at a time."""

    @overload
    def thread(self, name: str) -> Thread: ...
    @overload
    def thread(self, name: str, schema: type[S]) -> Thread[S]: ...
    def thread(self, name: str, schema: type[Any] | None = None) -> Thread[Any]:
        """Return the handle of a thread. With a `TypedDict` as its schema, type checkers know its states."""
        check_schema(schema)
        return Thread(self._handle, name)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self.close()

    def _repr_html_(self) -> str:
        from holdfast._views import html_listing

        return html_listing(self.threads(), repr(self))


class AsyncStore(AsyncApi, StoreOperations):
    """A store whose operations are awaited."""

    @overload
    def thread(self, name: str) -> AsyncThread: ...
    @overload
    def thread(self, name: str, schema: type[S]) -> AsyncThread[S]: ...
    def thread(self, name: str, schema: type[Any] | None = None) -> AsyncThread[Any]:
        """Return the handle of a thread. With a `TypedDict` as its schema, type checkers know its states."""
        check_schema(schema)
        return AsyncThread(self._handle, name)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: object, error: object, trace: object) -> None:
        await self.close()


class Transaction(StateTransaction):
    """Changes keys and saves checkpoints together when it ends. See `Store.transaction`."""

    written: list[WrittenKey]

    def __init__(self, handle: StoreHandle, owner: object) -> None:
        super().__init__(handle, owner)
        self._handle = handle
        self._requests: list[AppendRequest] = []
        self.checkpoints: list[Checkpoint] = []
        """The saved checkpoints, in the order of the calls; empty until the transaction ends."""

    def get(self, thread: str) -> Any:
        """Return the latest checkpoint of a thread with its state; on an `AsyncStore`, awaited. Raises `NotFoundError`.

        If others save to the thread before the transaction ends, it raises `ConflictError` and saves nothing. A thread
        is read before it is saved in the same transaction.
        """
        reading = self._get(thread)
        return run(reading) if self._is_sync else arun(reading)

    async def _get(self, thread: str) -> Checkpoint:
        handle = ThreadOperations[Any](self._handle, thread)
        line = handle._line
        if any(request.line == line for request in self._requests):
            raise InvalidError(
                "the thread was saved in this transaction, and has that checkpoint only after it",
                where=f"thread {line}",
                hint="Read it first",
            )
        point = await self._pending.read_thread(line)
        if point is None:
            raise missing_line_error(line)
        return await handle._read(point)

    def put(
        self, thread: str, state: Mapping[str, Any], *, if_changed: bool = False, **fields: Unpack[CheckpointFields]
    ) -> None:
        """Save the state of a thread, as `Thread.put` does. The state is packed now: later changes of the object are
        not saved."""
        self._pending.check_open()
        handle = ThreadOperations[Any](self._handle, thread)
        self._requests.append(
            handle._put_request(state, if_changed, handle._append_fields("Transaction.put", _checked(fields)))
        )

    def update(
        self,
        thread: str,
        changes: Mapping[Path, Any],
        *,
        remove: Iterable[Path] = (),
        **fields: Unpack[CheckpointFields],
    ) -> None:
        """Change parts of a thread's state, as `Thread.update` does."""
        self._pending.check_open()
        handle = ThreadOperations[Any](self._handle, thread)
        edit = handle._edit(changes, remove)
        self._requests.append(handle._edit_request("Transaction.update", edit, _checked(fields)))

    async def _commit(self) -> None:
        requests, self._requests = self._requests, []
        with acting(OWNER):  # also inside of an operation of an identity, as in a function that resolves conflicts
            self.written, heads = await self._pending.commit(requests)
        self.checkpoints = [
            Checkpoint.from_step(request.line, head, self._handle.codec)
            for request, head in zip(requests, heads, strict=True)
        ]
        for line in dict.fromkeys(request.line for request in requests):
            await refresh_known(self._handle.engine, line)


def _checked(fields: CheckpointFields) -> CheckpointFields:
    how = fields.get("on_conflict")
    if how == "merge" or callable(how):
        raise InvalidError("a transaction cannot merge: on_conflict is 'raise', 'branch' or 'overwrite' in one")
    return fields
