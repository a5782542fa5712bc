"""Schemas of a store: `store.schemas.attach(…)`, and migrations of its states."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, cast

from holdfast.backends.runtime.drivers import AsyncApi, SyncApi, declare, operation
from holdfast.engine.model.scopes import GLOBAL, KINDS, MARK, Scope
from holdfast.engine.namespaces import is_thread, line_kind
from holdfast.engine.patterns import matcher
from holdfast.engine.row_format import Line
from holdfast.engine.schema_bindings import Bindings
from holdfast.engine.value_schemas import ValueKind, ValuePlace
from holdfast.errors import InvalidError
from holdfast.schemas.attached_version import AttachedVersion, LineAttachment, attach
from holdfast.schemas.attachment import Attachment, ScopeAttachment, ValueAttachment
from holdfast.schemas.registry import RegisteredSchemas, SchemaRegistry
from holdfast.schemas.schema import Schema
from holdfast.schemas.schema_declaration import Declaration, ValidationMode, require_set
from holdfast.schemas.schema_set import SchemaSet
from holdfast.schemas.version import Version
from holdfast.security.handle import StoreHandle, owner_handle

if TYPE_CHECKING:
    from holdfast.engine.types import Progress
    from holdfast.maintenance.migration.bulk import MigrationReport, OnError
    from holdfast.maintenance.migration.heads import BranchPolicy
    from holdfast.maintenance.migration.plan import MigrationPlan, SchemaStatus


@declare(
    not_remote="See /api/v1/schemas, or `holdfast schema` where the store is.",
    not_in_scripts="Schemas are classes of the program.",
)
class SchemasOperations:
    """Operations on the schemas of a store. `Schemas` and `AsyncSchemas` have these as methods."""

    def __init__(self, handle: StoreHandle) -> None:
        self._handle = owner_handle(handle)

    @operation(changes=True)
    async def attach(
        self,
        schemas: SchemaSet | Schema,
        reference: str | None = None,
        *,
        threads: str | None = None,
        scopes: str | None = None,
        key: str | None = None,
        artifacts: str | None = None,
        sessions: str | None = None,
        validate: ValidationMode = "refuse",
        unversioned: str | Version | None = None,
    ) -> str:
        """Declare the schema of some states, in this program. Returns it as `chat@2.0.0`.

        They are those of the threads that match a pattern, by default of all; or of scopes, such as `user:*`: a scope
        is a record of its keys, or with `key`, a pattern of keys, the value of each such key has the schema. Of
        artifacts, by a pattern of their types, and of sessions, by one of their ids, it is the metadata. Classes of
        agents declare the schema of their fields themselves.

        `reference` names the schema, `chat`, or one of its versions; it can be left out if there is only one. The
        version is registered in the store. From now on states of older versions are upgraded when they are read, and
        stored so at the next step; what is saved is validated: what does not fit is refused, or warned of, or with
        `off` not checked. `unversioned` is the version of states that were saved before there was a schema, by default
        the oldest. If neither that nor a pattern of threads is given, any thread may have them, and they are left as
        they are until they are saved anew.

        Raises `NotFoundError` with the skeleton of a migration if states of some version cannot be upgraded, and
        `ConflictError` if the store has states of a version that this program does not get along with.
        """
        declaration = Declaration.of(schemas, reference, validate, unversioned)
        place = SchemaPlace.of(threads, scopes, key, artifacts, sessions)
        bound = place.bound(self._handle)
        if bound is not None and bound.declaration.is_like(declaration):
            return bound.reference
        return (await place.attach(self._handle, declaration)).reference

    @operation(changes=True)
    async def detach(
        self,
        *,
        threads: str | None = None,
        scopes: str | None = None,
        key: str | None = None,
        artifacts: str | None = None,
        sessions: str | None = None,
    ) -> bool:
        """Remove the schema of a pattern from this program. The registry stays as it is."""
        return SchemaPlace.of(threads, scopes, key, artifacts, sessions).detach(self._handle)

    @operation
    async def registered(self) -> RegisteredSchemas:
        """Read what the store knows of schemas: versions, those that are written now, and applied migrations."""
        return await SchemaRegistry(self._handle.engine, self._handle.tenant).load()

    @operation
    async def status(
        self, schemas: SchemaSet | Schema | None = None, *, progress: Progress | None = None
    ) -> list[SchemaStatus]:
        """Count the latest states of each version of each schema, and find what `schemas` would have to migrate."""
        from holdfast.maintenance.migration.plan import schema_status

        declared = SchemaSet() if schemas is None else require_set(schemas)
        return await schema_status(self._handle.engine, self._handle.tenant, declared, progress)

    # Migrations ----------------------------------------------------------------------------------------------------

    @operation
    async def plan(
        self,
        schemas: SchemaSet | Schema,
        reference: str | None = None,
        *,
        to: str | Version | None = None,
        branches: BranchPolicy = "all",
        threads: str | None = None,
        samples: int = 3,
        progress: Progress | None = None,
    ) -> MigrationPlan:
        """Say what a migration of all latest states would do. Nothing is written.

        All states are checked against their schemas and migrated in memory; those that do not fit are listed. `to` is
        the version to migrate to, by default the newest of `schemas`, and may be an older one.
        """
        from holdfast.maintenance.migration.plan import MigrationTarget, make_plan

        target = await MigrationTarget.of(self._handle.engine, self._handle.tenant, require_set(schemas), reference, to)
        return await make_plan(target, branches=branches, threads=threads, samples=samples, progress=progress)

    @operation(changes=True)
    async def up(
        self,
        schemas: SchemaSet | Schema,
        reference: str | None = None,
        *,
        to: str | Version | None = None,
        branches: BranchPolicy = "all",
        threads: str | None = None,
        on_error: OnError = "stop",
        check_first: bool = True,
        accept_edited: bool = False,
        progress: Progress | None = None,
    ) -> MigrationReport:
        """Migrate all latest states to a version, by default the newest of `schemas`.

        One step of kind `migrate` is appended to each: to the last state of every branch, of `named` ones, or of the
        `newest`, HEAD. Nothing that is stored changes. First all states are checked as by `plan`, unless
        `check_first=False`; if one does not fit, nothing is written. A state that fails later stops the run, which
        leaves the states before it migrated, or with `rollback` undoes what it wrote; with `skip` it is left as it is.
        A migration that was edited after it was applied is refused, unless `accept_edited`.

        A run that was stopped or killed continues when it is started again. Several processes that run it at a time
        share the work. What was written is read again and compared.
        """
        from holdfast.maintenance.migration.bulk import BulkMigration
        from holdfast.maintenance.migration.plan import MigrationTarget, make_plan

        target = await MigrationTarget.of(self._handle.engine, self._handle.tenant, require_set(schemas), reference, to)
        run = BulkMigration(
            target,
            branches=branches,
            threads=threads,
            on_error=on_error,
            accept_edited=accept_edited,
            progress=progress,
        )
        run.check_direction(down=False)
        if check_first and on_error != "skip":
            plan = await make_plan(target, branches=branches, threads=threads, samples=0)
            plan.require(accept_edited=accept_edited)
        return await run.run()

    @operation(changes=True)
    async def down(
        self,
        schemas: SchemaSet | Schema,
        reference: str | None = None,
        *,
        to: str | Version,
        branches: BranchPolicy = "all",
        threads: str | None = None,
        on_error: OnError = "stop",
        check_first: bool = True,
        progress: Progress | None = None,
    ) -> MigrationReport:
        """Take all latest states back to an older version: the way back from `up`.

        States that were not changed since are exactly what they were; others are downgraded by the migrations. As by
        `up`, all are checked first, and if one cannot be downgraded, nothing is written; `on_error` is as there. The
        version stays the one to write until `up` is called: a program with a newer one cannot attach.
        """
        from holdfast.maintenance.migration.bulk import BulkMigration
        from holdfast.maintenance.migration.plan import MigrationTarget, make_plan

        target = await MigrationTarget.of(self._handle.engine, self._handle.tenant, require_set(schemas), reference, to)
        run = BulkMigration(target, branches=branches, threads=threads, on_error=on_error, progress=progress)
        run.check_direction(down=True)
        if check_first and on_error != "skip":
            plan = await make_plan(target, branches=branches, threads=threads, samples=0)
            plan.require(accept_edited=True)
        return await run.run(down=True)


class Schemas(SyncApi, SchemasOperations):
    """The schemas of a `Store`."""


class AsyncSchemas(AsyncApi, SchemasOperations):
    """The schemas of an `AsyncStore`."""


# Places that schemas are attached to: threads, scopes, keys of scopes, and the metadata of artifacts and sessions.


_ALL = "**"
"""The pattern of all threads."""

_KINDS: dict[str, ValueKind] = {"keys": "key", "artifacts": "artifact", "sessions": "session"}
"""The kinds of values, as the engine calls them."""

_CLASSES: dict[str, type[LineAttachment]] = {"threads": Attachment, "scopes": ScopeAttachment}


class SchemaPlace(NamedTuple):
    """The states that a program attaches a schema to: of which kind, and which of them."""

    kind: str
    """`threads`, `scopes`, `keys`, `artifacts` or `sessions`."""
    pattern: str
    key: str = ""

    @classmethod
    def of(
        cls, threads: str | None, scopes: str | None, key: str | None, artifacts: str | None, sessions: str | None
    ) -> SchemaPlace:
        """Return the place that a caller names; by default it is all threads. Raises `InvalidError`."""
        if key is not None and scopes is None:
            raise InvalidError(
                "a key can only be given with scopes", where=f"key={key!r}"[:80], hint='Give scopes="user:*" with it'
            )
        named = {"threads": threads, "scopes": scopes, "artifacts": artifacts, "sessions": sessions}
        given = {kind: pattern for kind, pattern in named.items() if pattern is not None}
        if len(given) > 1:
            raise InvalidError(
                f"a schema can be attached to {' or '.join(given)}, not to both at once", hint="Attach it twice"
            )
        kind, pattern = next(iter(given.items()), ("threads", _ALL))
        matcher(pattern)
        if kind == "scopes":
            _require_scopes(pattern)
        if key is None:
            return cls(kind, pattern)
        matcher(key)
        return cls("keys", pattern, key)

    def __str__(self) -> str:
        return f"{self.kind} {self.pattern}\t{self.key}" if self.key else f"{self.kind} {self.pattern}"

    def bound(self, handle: StoreHandle) -> AttachedVersion | None:
        """Return the schema that is attached there."""
        bindings = self._bindings(handle)
        return None if bindings is None else cast(AttachedVersion | None, bindings.get(self._name(handle)))

    async def attach(self, handle: StoreHandle, declaration: Declaration) -> AttachedVersion:
        """Check a version against what the store has, register it, and bind what matches to it."""
        engine, tenant, matches, keys = handle.engine, handle.tenant, matcher(self.pattern), matcher(self.key or _ALL)
        is_thread_place = self.kind == "threads"
        attached: AttachedVersion = await attach(
            declaration,
            engine,
            tenant,
            handle.guard.actor,
            (self.pattern,) if is_thread_place else (),
            () if is_thread_place else (str(self),),
            kind=_CLASSES.get(self.kind, ValueAttachment),
            takes_unversioned=not is_thread_place or self.pattern != _ALL or declaration.unversioned is not None,
        )

        def has_line(line: Line) -> bool:
            is_one = is_thread(line.name) if is_thread_place else _is_scope(line.name)
            return line.tenant == tenant and is_one and matches(line.name.removeprefix(MARK))

        def has_value(value: ValuePlace) -> bool:
            if value[:2] != (tenant, _KINDS[self.kind]) or not matches(value.owner) or not keys(value.key):
                return False
            return self.kind != "keys" or _is_scope(MARK + value.owner)

        if isinstance(attached, ValueAttachment):
            engine.bind_value_schemas().bind(self._name(handle), has_value, attached)
        elif isinstance(attached, LineAttachment):
            engine.bind_schemas().bind(self._name(handle), has_line, attached)
        return attached

    def detach(self, handle: StoreHandle) -> bool:
        """Remove the schema that is attached there from this program. False if there is none."""
        bindings = self._bindings(handle)
        return bindings is not None and bindings.unbind(self._name(handle))

    def _bindings(self, handle: StoreHandle) -> Bindings[Any, Any] | None:
        return handle.engine.value_schemas if self.kind in _KINDS else handle.engine.schemas

    def _name(self, handle: StoreHandle) -> str:
        return f"{handle.tenant} {self}"


def _require_scopes(pattern: str) -> None:
    """Require a pattern that may match a scope: its parts are of known kinds, as far as it names them."""
    for part in pattern.split("/"):
        kind, colon, _ = part.partition(":")
        if not (set("*?") & set(kind) or (colon and kind in KINDS) or pattern == GLOBAL):
            raise InvalidError(
                f"no scope has a part {part!r}",
                where=f"scopes={pattern!r}"[:80],
                hint=f"A part is a kind and a name, such as user:*; the kinds are {', '.join(KINDS)}",
            )


def _is_scope(name: str) -> bool:
    return line_kind(name) in ("scope", "session") and Scope.of_line(name) is not None
