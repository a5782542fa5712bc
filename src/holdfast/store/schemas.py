"""Schemas of a store: `store.schemas.attach(…)`, and migrations of its states."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.backends.runtime.drivers import AsyncApi, SyncApi, declare, operation
from holdfast.schemas.registry import RegisteredSchemas, SchemaRegistry
from holdfast.schemas.schema import Schema
from holdfast.schemas.schema_declaration import Declaration, ValidationMode, require_set
from holdfast.schemas.schema_set import SchemaSet
from holdfast.schemas.version import Version
from holdfast.security.handle import StoreHandle, owner_handle
from holdfast.store.schema_places import SchemaPlace

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
