"""A migration: operations that lead from one version of a schema to another, and back."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import cached_property
from typing import Any, Final

import msgspec

from holdfast.codec import Codec, default_codec
from holdfast.engine.model.packed_state import Packed, PackedMap, as_map, flatten, pack_name
from holdfast.engine.paths import path_text
from holdfast.errors import HoldfastError, InvalidError, TooLargeError
from holdfast.schemas.functions import MAX_SECONDS, TIME_LIMIT, OverTime, function_failed
from holdfast.schemas.operations import Operation
from holdfast.schemas.packed_document import PackedDocument
from holdfast.schemas.version import Version, require_name


def require_nodes(nodes: object, where: str) -> dict[str, str]:
    """Require the new names of nodes by the old ones, each once. Raises `InvalidError`."""
    if nodes is None:
        return {}
    if not isinstance(nodes, Mapping) or not all(
        isinstance(each, str) and each for pair in nodes.items() for each in pair
    ):
        raise InvalidError(
            "nodes must be a dict with the new names of nodes by the old ones",
            where=where,
            hint='Write nodes={"old": "new"}',
        )
    twice = {new for new in nodes.values() if list(nodes.values()).count(new) > 1}
    if twice:
        raise InvalidError(
            f"two nodes are renamed to {min(twice)!r}, and a downgrade could not tell them apart",
            where=where,
            hint="Give each its own name, or leave out one that is gone",
        )
    return dict(nodes)


MAX_ASIDE = 1 << 20
"""How many bytes the values of one state that are kept aside may have."""


class MigratedState(msgspec.Struct, frozen=True):
    """A packed state, and what was kept aside on the way to it: store both, and give both to the next migration."""

    state: PackedMap
    aside: PackedMap


class Migration:
    """Operations that convert states from one version of a schema to another: `Migration("chat", "1", "2", add(…))`.

    `nodes` are the nodes of a LangGraph graph that were renamed, by their old names.
    """

    def __init__(
        self,
        name: str,
        source: str | Version,
        target: str | Version,
        *operations: Operation,
        nodes: Mapping[str, str] | None = None,
        description: str = "",
    ) -> None:
        self.name: Final = require_name(name)
        self.source: Final = Version.parse(source)
        self.target: Final = Version.parse(target)
        self.operations: Final = operations
        self.nodes: Final = require_nodes(nodes, f"{name} {source} -> {target}")
        self.description: Final = description
        if self.source == self.target:
            raise InvalidError(
                f"the migration {self} leads to the version that it starts from", where=name, code="schema-cycle"
            )
        for operation in operations:
            if not isinstance(operation, Operation):
                raise InvalidError(
                    f"a migration consists of operations, not of {type(operation).__name__}",
                    where=str(self),
                    hint="Write add(…), rename(…), convert(…) and so on; custom(…) takes functions",
                )

    def __str__(self) -> str:
        return f"{self.name} {self.source} -> {self.target}"

    def __repr__(self) -> str:
        return f"<Migration {self}: {', '.join(map(str, self.operations))}>"

    @property
    def lossy(self) -> bool:
        """Whether a downgrade may not restore everything."""
        return any(operation.lossy for operation in self.operations)

    @property
    def reversible(self) -> bool:
        """Whether there is a way down at all."""
        return all(operation.reversible for operation in self.operations)

    @cached_property
    def fingerprint(self) -> str:
        """The hash of the operations with their arguments, and of the source of their functions."""
        parts = [[operation.kind, operation.lossy, _plain(operation.arguments())] for operation in self.operations]
        about = [self.name, str(self.source), str(self.target), parts, sorted(self.nodes.items())]
        return hashlib.sha256(b"holdfast migration 1\n" + default_codec.pack(_plain(about))).hexdigest()

    @cached_property
    def _calls_code(self) -> bool:
        return any(operation.calls_code for operation in self.operations)

    def in_direction(self, *, up: bool) -> tuple[Operation, ...]:
        """Return the operations in the order in which they are applied."""
        return self.operations if up else self.operations[::-1]

    @cached_property
    def _names(self) -> tuple[bytes, ...]:
        return tuple(pack_name(f"{self}, {place}") for place in range(len(self.operations)))

    def upgrade(
        self,
        state: Mapping[bytes, Packed],
        aside: Mapping[bytes, Packed] | None = None,
        codec: Codec = default_codec,
        instance: Packed | None = None,
    ) -> MigratedState:
        """Convert a packed state to the newer version. The state that is passed is not changed. `instance` is the
        instance of a class whose fields are passed."""
        return self._apply(PackedDocument(state, codec, instance), aside, up=True)

    def downgrade(
        self,
        state: Mapping[bytes, Packed],
        aside: Mapping[bytes, Packed] | None = None,
        codec: Codec = default_codec,
        instance: Packed | None = None,
    ) -> MigratedState:
        """Convert a packed state to the older version. The state that is passed is not changed. `instance` is the
        instance of a class whose fields are passed."""
        return self._apply(PackedDocument(state, codec, instance), aside, up=False)

    def _apply(self, document: PackedDocument, aside: Mapping[bytes, Packed] | None, *, up: bool) -> MigratedState:
        kept = dict(aside or {})
        place, thread = 0, 0
        places = range(len(self.operations))
        try:
            thread = TIME_LIMIT.begin() if self._calls_code else 0
            try:
                for place in places if up else reversed(places):
                    notes = dict(as_map(kept.pop(self._names[place], b"\x80")) or {}) if kept else {}
                    self._apply_one(place, document, notes, up=up)
                    if notes:
                        kept[self._names[place]] = notes
            finally:
                TIME_LIMIT.end(thread)
        except OverTime:
            TIME_LIMIT.end(thread)
            raise self._over_time(place, up=up) from None
        if kept:
            self._check_size(kept)
        return MigratedState(document.close(), kept)

    def _apply_one(self, place: int, document: PackedDocument, notes: PackedMap, *, up: bool) -> None:
        operation = self.operations[place]
        try:
            (operation.upgrade if up else operation.downgrade)(document, notes)
        except HoldfastError as error:
            raise self._located(error, place, up=up) from error
        except Exception as error:
            raise function_failed(error, self._where(place, up=up)) from error

    def _over_time(self, place: int, *, up: bool) -> InvalidError:
        return InvalidError(
            f"a migration of one state takes longer than {MAX_SECONDS:g} s",
            where=self._where(place, up=up),
            hint="Do less in its functions: they convert one state at a time",
            code="migration-failed",
        )

    def _check_size(self, kept: PackedMap) -> None:
        size = len(flatten(kept))
        if size > MAX_ASIDE:
            raise TooLargeError(
                f"the migration {self} would keep {size:,} bytes of a state aside; the limit is {MAX_ASIDE:,}",
                where=str(self),
                hint="Remove the field with keep=False and lossy=True, or move it elsewhere first",
            )

    def _where(self, place: int, path: str = "", *, up: bool) -> str:
        """Return migration and operation, and last the path in the state."""
        operation = self.operations[place]
        path = path or next((path_text(keys) for keys in operation.paths()), "")
        where = f"{self}, {'' if up else 'down, '}operation {place + 1}: {operation}"
        return f"{where}; {path}" if path else where

    def _located(self, error: HoldfastError, place: int, *, up: bool) -> HoldfastError:
        """Return an error with the operation in it, and the path below that."""
        code = error.code if error.code.startswith("migration-") else "migration-failed"
        kind = type(error) if code == error.code else InvalidError
        return kind(error.what, where=self._where(place, error.where, up=up), hint=error.hint, code=code)


def _plain(value: Any) -> Any:
    """Return lists for tuples, and pairs for dicts, so that one form is hashed whatever wrote it."""
    if isinstance(value, dict):
        return [[_plain(key), _plain(each)] for key, each in value.items()]
    return [_plain(each) for each in value] if isinstance(value, tuple | list) else value
