"""The graph of the versions of a schema: which migrations lead from one to another."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Mapping
from itertools import pairwise
from typing import NamedTuple

from holdfast.errors import ConflictError, InvalidError, NotFoundError, UnsupportedError
from holdfast.schemas.compatibility import Compatibility
from holdfast.schemas.migration import Migration
from holdfast.schemas.schema import Schema
from holdfast.schemas.skeleton import migration_skeleton
from holdfast.schemas.version import Version

_LOSSY = 1_000
"""The cost of a lossy step: any way around it is taken."""


class MigrationStep(NamedTuple):
    """A step of a path: a migration in one direction; none, if the states fit the next version as they are."""

    source: Version
    target: Version
    migration: Migration | None
    up: bool = True

    @property
    def lossy(self) -> bool:
        """Whether what this step does cannot be undone completely, or undoes what was declared lossy."""
        return self.migration is not None and self.migration.lossy

    def __str__(self) -> str:
        how = "as it is" if self.migration is None else "" if self.up else "down"
        return f"{self.source} -> {self.target}{f' ({how})' if how else ''}"


class VersionGraph:
    """The versions of one schema, and the migrations between them."""

    def __init__(
        self,
        name: str,
        schemas: Mapping[Version, Schema],
        migrations: Iterable[Migration],
        compare: Callable[[Schema, Schema], Compatibility],
    ) -> None:
        self.name = name
        self._schemas = schemas
        self._compare = compare
        self._edges: dict[Version, dict[Version, Migration]] = {}
        for migration in migrations:
            edges = self._edges.setdefault(migration.source, {})
            if migration.target in edges:
                raise ConflictError(
                    f"there are two migrations of {migration}",
                    where=self.name,
                    hint="Remove one of them, or join their operations",
                    code="migration-duplicate",
                )
            edges[migration.target] = migration
        targets = {target for edges in self._edges.values() for target in edges}
        self.versions: list[Version] = sorted({*schemas, *self._edges, *targets})
        self._refuse_cycles()
        self._steps: dict[Version, list[tuple[int, MigrationStep]]] | None = None
        self._paths: dict[tuple[Version, Version], tuple[MigrationStep, ...]] = {}

    @property
    def migrations(self) -> list[Migration]:
        """The migrations, in the order of versions."""
        return [self._edges[source][target] for source in sorted(self._edges) for target in sorted(self._edges[source])]

    def _refuse_cycles(self) -> None:
        done: set[Version] = set()
        for start in self.versions:
            trail: dict[Version, None] = {}
            stack = [(start, False)]
            while stack:
                version, left = stack.pop()
                if left:
                    del trail[version]
                    done.add(version)
                elif version in trail:
                    circle = [str(each) for each in [*trail][[*trail].index(version) :]]
                    raise InvalidError(
                        f"the migrations of {self.name} lead in a circle: {' -> '.join([*circle, str(version)])}",
                        where=self.name,
                        hint="Each migration has its inverse already: remove the one that leads back",
                        code="schema-cycle",
                    )
                elif version not in done:
                    trail[version] = None
                    stack.append((version, True))
                    stack += [(target, False) for target in self._edges.get(version, ())]

    def require(self, version: Version) -> Version:
        """Require a version that is known. Raises `NotFoundError`, or `UnsupportedError` for one that is newer."""
        if version in self.versions:
            return version
        if self.versions and version > self.versions[-1]:
            raise UnsupportedError(
                f"version {version} of {self.name} is newer than this program knows: its newest is {self.versions[-1]}",
                where=f"{self.name}@{version}",
                hint="Run the release of the application that wrote it, or downgrade the states with it",
                code="schema-newer",
            )
        known = ", ".join(map(str, self.versions)) or "none"
        raise NotFoundError(
            f"{self.name} has no version {version}",
            where=f"{self.name}@{version}",
            hint=f"There are: {known}",
            code="schema-version-unknown",
        )

    def path(self, source: Version, target: Version) -> tuple[MigrationStep, ...]:
        """Return the steps from one version to another: those that lose least, then the fewest.

        Raises `NotFoundError` with the skeleton of the migration to write, if there is no way.
        """
        found = self._paths.get((source, target))
        if found is None:
            found = self._paths[source, target] = self._search(self.require(source), self.require(target))
        return found

    def _search(self, source: Version, target: Version) -> tuple[MigrationStep, ...]:
        if self._steps is None:
            self._steps = self._collect_steps()
        best: dict[Version, int] = {source: 0}
        queue: list[tuple[int, int, Version, tuple[MigrationStep, ...]]] = [(0, 0, source, ())]
        count = 0
        while queue:
            cost, _, version, steps = heapq.heappop(queue)
            if version == target:
                return steps
            for step_cost, step in self._steps.get(version, ()):
                total = cost + step_cost
                if total < best.get(step.target, total + 1):
                    best[step.target] = total
                    count += 1
                    heapq.heappush(queue, (total, count, step.target, (*steps, step)))
        raise self._missing(source, target, set(best))

    def _collect_steps(self) -> dict[Version, list[tuple[int, MigrationStep]]]:
        steps: dict[Version, list[tuple[int, MigrationStep]]] = {version: [] for version in self.versions}
        for migration in self.migrations:
            cost = _LOSSY if migration.lossy else 2
            steps[migration.source].append((2, MigrationStep(migration.source, migration.target, migration)))
            if migration.reversible:
                back = MigrationStep(migration.target, migration.source, migration, up=False)
                steps[migration.target].append((cost, back))
        known = [version for version in self.versions if version in self._schemas]
        for older, newer in pairwise(known):
            if newer in self._edges.get(older, ()):
                continue
            result = self._compare(self._schemas[older], self._schemas[newer])
            if result.backward:
                steps[older].append((3, MigrationStep(older, newer, None)))
            if result.forward:
                steps[newer].append((3, MigrationStep(newer, older, None, up=False)))
        return steps

    def _missing(self, source: Version, target: Version, reached: set[Version]) -> NotFoundError:
        """Return the error for a way that does not exist. It names the step nearest to the target."""
        up = target > source
        older, newer = (source, target) if up else (target, source)
        if up:
            older = max((version for version in reached if version <= target), default=source)
        irreversible = [each for each in self.migrations if not each.reversible and each.target == source]
        if not up and irreversible:
            return NotFoundError(
                f"{self.name} cannot be downgraded from {source} to {target}: {irreversible[0]} has no way back",
                where=self.name,
                hint="Give its operations functions for the way down",
                code="migration-missing",
            )
        text = migration_skeleton(
            self.name, older, newer, self._schemas.get(older), self._schemas.get(newer), self._compare
        )
        return NotFoundError(
            f"there is no migration of {self.name} from {older} to {newer}",
            where=f"{self.name} {source} -> {target}",
            hint=f"Add it to the module of the schemas:\n{text}",
            code="migration-missing",
        )
