"""The graph of the versions of a schema: which migrations lead from one to another."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from itertools import pairwise
from typing import Final, Literal

import msgspec

from holdfast.codec import Codec
from holdfast.engine.model.packed_state import Packed, pack_name, unpack, unpack_state
from holdfast.errors import ConflictError, InvalidError, NotFoundError, UnsupportedError
from holdfast.schemas.compatibility import Compatibility, SchemaChange
from holdfast.schemas.definition import Node, encode
from holdfast.schemas.migration import MigratedState, Migration
from holdfast.schemas.operations import Move
from holdfast.schemas.schema import Schema
from holdfast.schemas.validator import Problem, Validator
from holdfast.schemas.version import Version

# Skeleton -------------------------------------------------------------------------------------------------------------
#
# The skeleton of a migration, ready to paste: what the difference of two schemas suggests.

_EMPTY = {
    "str": '""',
    "int": "0",
    "float": "0.0",
    "bool": "False",
    "bytes": 'b""',
    "any": "None",
    "null": "None",
    "list": "[]",
    "map": "{}",
    "set": "set()",
    "tuple": "()",
    "record": "{}",
}


def migration_skeleton(
    name: str,
    source: Version,
    target: Version,
    old: Schema | None,
    new: Schema | None,
    compare: Callable[[Schema, Schema], Compatibility],
) -> str:
    """Return the source of a migration."""
    lines = (
        _operations(old, new, compare) if old is not None and new is not None else ["# add(…), rename(…), convert(…)"]
    )
    body = "".join(f"    {line}\n" for line in lines)
    return f'Migration(\n    "{name}", "{source}", "{target}",\n{body})'


def _operations(old: Schema, new: Schema, compare: Callable[[Schema, Schema], Compatibility]) -> list[str]:
    changes = [each for each in compare(old, new).changes if "[" not in each.path and "{" not in each.path]
    renamed = _find_renamed(changes)
    lines = []
    for each in changes:
        if each.path in renamed:
            lines.append(f'rename("{each.path}", "{renamed[each.path].rpartition(".")[2]}"),  # or remove and add')
        elif each.path in renamed.values():
            continue
        elif each.kind in ("added", "required"):
            lines.append(f'add("{each.path}", default={_default(new, each)}),')
        elif each.kind == "removed":
            lines.append(f'remove("{each.path}"),')
        elif each.kind in ("type", "constraint"):
            lines.append(f'convert("{each.path}", up=lambda value: value, down=lambda value: value),  # {each.reason}')
    inside = [each for each in compare(old, new).changes if "[" in each.path]
    lines += [f"# each(…): {each.path} ({each.kind}: {each.reason})" for each in inside]
    return lines or ["# nothing to do"]


def _find_renamed(changes: list[SchemaChange]) -> dict[str, str]:
    """Return fields that went while exactly one of the same type came beside them, as in a rename."""
    found = {}
    for gone in (each for each in changes if each.kind == "removed" and each.old is not None):
        parent = gone.path.rpartition(".")[0]
        beside = [each for each in changes if each.path.rpartition(".")[0] == parent]
        same = [each for each in beside if each.kind == "added" and each.new and encode(each.new) == encode(gone.old)]
        others = [
            each for each in beside if each.kind == "removed" and each.old and encode(each.old) == encode(gone.old)
        ]
        if len(same) == len(others) == 1:
            found[gone.path] = same[0].path
    return found


def _default(schema: Schema, change: SchemaChange) -> str:
    node: Node = schema.definition
    for name in change.path.split("."):
        node = node["of"] if node["type"] == "recursive" else node
        field = node.get("fields", {}).get(name, {}) if node["type"] == "record" else {}
        if "default" in field:
            return repr(field["default"])
        node = field.get("type", {"type": "any"})
    kind = change.new or {"type": "any"}
    if kind["type"] == "union":
        members = {each["type"] for each in kind["of"]}
        return "None" if "null" in members else _EMPTY.get(kind["of"][0]["type"], "None")
    return repr(kind["values"][0]) if kind["type"] in ("literal", "enum") else _EMPTY.get(kind["type"], "None")


_LOSSY = 1_000
"""The cost of a lossy step: any way around it is taken."""


class MigrationStep(msgspec.Struct, frozen=True):
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


# Migration path -------------------------------------------------------------------------------------------------------
#
# The way from one version of a schema to another, prepared once for many states.


class MigrationPath:
    """The steps between two versions, and what of a result is checked. The schemas of both need not be known."""

    def __init__(
        self,
        steps: tuple[MigrationStep, ...],
        source: Schema | None,
        target: Schema | None,
        validator: Callable[[Schema], Validator],
    ) -> None:
        self.steps: Final = steps
        self._source = source
        self._target = target
        self._find_validator = validator
        self._runs = [
            step.migration.upgrade if step.up else step.migration.downgrade
            for step in steps
            if step.migration is not None
        ]

    def migrate(
        self,
        state: Mapping[bytes, Packed],
        aside: Mapping[bytes, Packed],
        codec: Codec,
        *,
        whole: Literal["complete", "partial"] | None = None,
    ) -> MigratedState:
        """Migrate a packed state. Channels that no operation touches are neither decoded nor copied.

        The result is checked against the schema of its version: as far as it may have changed, or as a whole, if nobody
        checked the state before. Of a `partial` one, required channels may be missing.
        """
        result = MigratedState(dict(state), dict(aside))
        for run in self._runs:
            result = run(result.state, result.aside, codec)
        if self._target is not None and (self.steps or whole):
            if whole is None:
                problems = self._problems(state, result.state, codec)
            else:
                problems = self._validator.check(unpack_state(codec, result.state), partial=whole == "partial")
            if problems:
                raise wrong_shape(self._target, self.steps, problems)
        return result

    def _problems(self, before: Mapping[bytes, Packed], after: dict[bytes, Packed], codec: Codec) -> list[Problem]:
        """Return what does not fit. Channels whose type is the same, and that no step touched, fit if they did."""
        partial = not all(map(before.__contains__, self._required))
        changed = self._changed
        if changed is None:
            return self._validator.check(unpack_state(codec, after), partial=partial)
        values = {name: unpack(codec, after[packed]) for name, packed in changed.items() if packed in after}
        return self._validator.check(values, changed, partial=partial)

    @cached_property
    def _validator(self) -> Validator:
        assert self._target is not None  # noqa: S101 - nothing is checked otherwise
        return self._find_validator(self._target)

    @cached_property
    def _required(self) -> list[bytes]:
        """The channels that a complete state of the source has, packed. Of a state that lacks one, any may be
        missing."""
        return [] if self._source is None else [*map(pack_name, self._find_validator(self._source).required)]

    @cached_property
    def _changed(self) -> dict[str, bytes] | None:
        """The channels of the result that may not fit, with their packed names; None if that may be all."""
        channels = find_channels(self.steps, self._source, self._target)
        return None if channels is None else {name: pack_name(name) for name in sorted(channels)}


def find_channels(
    steps: tuple[MigrationStep, ...], source: Schema | None, target: Schema | None
) -> frozenset[str] | None:
    """Return the channels that steps touch, or whose type differs; None if that may be all."""
    before, after = (None if each is None else each.canonical for each in (source, target))
    if before is None or after is None or before["type"] != "record" or after["type"] != "record":
        return None
    touched: set[str] = set()
    origins = {name: name for name in before["fields"]}
    for step in steps:
        for operation in () if step.migration is None else step.migration.in_direction(up=step.up):
            if isinstance(operation, Move) and all(len(keys) == 1 for keys in operation.paths()):
                (old,), (new,) = operation.paths() if step.up else operation.paths()[::-1]
                origins[new] = origins.pop(old, new)  # moved as it is
                touched = {new if each == old else each for each in touched}
            elif operation.paths():
                touched |= {keys[0] for keys in operation.paths()}
            else:
                return None
    differing = {
        name
        for name in {*origins, *after["fields"]}
        if encode(before["fields"].get(origins.get(name))) != encode(after["fields"].get(name))
    }
    return frozenset(touched | differing)


def wrong_shape(schema: Schema, steps: tuple[MigrationStep, ...], problems: list[Problem]) -> InvalidError:
    """Return the error for a result of a migration that does not fit."""
    more = f", and {len(problems) - 1} more" if len(problems) > 1 else ""
    versions = f"{steps[0].source} -> {steps[-1].target}" if steps else str(schema.version)
    return InvalidError(
        f"the migration gives a state that does not fit {schema.schema_reference}: "
        f"{problems[0].path or 'the state'}: {problems[0].reason}{more}",
        where=f"{schema.name} {versions}; {problems[0].path}",
        hint="Correct the migration, or the schema; the state is unchanged",
        code="migration-shape",
    )
