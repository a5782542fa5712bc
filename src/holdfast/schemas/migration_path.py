"""The way from one version of a schema to another, prepared once for many states."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Final, Literal

from holdfast.codec import Codec
from holdfast.engine.model.packed_state import Packed, pack_name, unpack, unpack_state
from holdfast.errors import InvalidError
from holdfast.schemas.definition import encode
from holdfast.schemas.migration import MigratedState
from holdfast.schemas.operations import Move
from holdfast.schemas.schema import Schema
from holdfast.schemas.validator import Problem, Validator
from holdfast.schemas.version_graph import MigrationStep


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
        validate: bool = True,
        whole: Literal["complete", "partial"] | None = None,
    ) -> MigratedState:
        """Migrate a packed state. Channels that no operation touches are neither decoded nor copied.

        The result is checked against the schema of its version: as far as it may have changed, or as a whole, if nobody
        checked the state before. Of a `partial` one, required channels may be missing.
        """
        result = MigratedState(dict(state), dict(aside))
        for run in self._runs:
            result = run(result.state, result.aside, codec)
        if validate and self._target is not None and (self.steps or whole):
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
