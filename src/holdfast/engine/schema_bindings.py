"""Which schema the state of a line has, where a program declared one: the seam between the engine and schemas.

Nothing of this costs anything in a store without declared schemas, and a read of a state that has the declared version
already only compares two texts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from threading import Lock
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol, TypeAlias, TypeVar

from holdfast.backends.runtime.fork_safety import reinit_after_fork
from holdfast.engine.row_format import Line

if TYPE_CHECKING:
    from holdfast.engine.guard import Preconditions
    from holdfast.engine.model.packed_state import PackedMap
    from holdfast.engine.model.steps import PendingWriteRow
    from holdfast.engine.row_format import StepRef
    from holdfast.engine.state_loader import LoadedState

K = TypeVar("K")
S = TypeVar("S")

ASIDE: Final = "__aside__"
"""The channel with the values that migrations keep aside for a downgrade. It is stored with the state, and covered by
whatever covers that: hashes, encryption, redaction, prune."""

_MAX_CACHED = 4096
"""The number of lines, or values, whose schema is cached."""


RenameTask: TypeAlias = "Callable[[PendingWriteRow, Mapping[str, str]], PendingWriteRow | None]"
"""Returns what a task wrote as that of a node that was renamed, given the new names by the old ones. None if the task
cannot be found under the new name."""


class SchemaRequest(Protocol):
    """The schema of the state of an `AppendRequest`."""

    line: Line
    parent: Any
    permit: Preconditions | None
    schema: str
    convert: Any
    line_schema: LineSchema | None
    is_unversioned: bool


class LineSchema(Protocol):
    """The schema of the states of some lines, as a program declared it."""

    @property
    def reference(self) -> str:
        """The name and the version, as in `chat@2.0.0`."""

    def prepare(self, request: SchemaRequest) -> None:
        """Let a step be saved in this version, on condition that the version may still be written."""

    def prepare_kept(self, request: SchemaRequest) -> None:
        """Let a step be saved that keeps the version of its parent, on the same condition."""

    def applies_to(self, reference: str) -> bool:
        """Return whether a state with this reference has the schema, in any version."""

    def renamed_nodes(self, reference: str) -> Mapping[str, str]:
        """Return the nodes of a graph that were renamed since a version: the new names by the old ones."""

    async def upgrade(self, line: Line, point: StepRef, reference: str, packed: PackedMap) -> PackedMap:
        """Return a stored state in this version, as its reader sees it."""

    def upgrade_writes(
        self, line: Line, reference: str, rows: Sequence[PendingWriteRow], rename: RenameTask | None = None
    ) -> list[PendingWriteRow]:
        """Return the writes that follow a checkpoint in this version. `reference` is the schema of the checkpoint."""


class ScopeSchema(LineSchema, Protocol):
    """The schema of scopes, whose keys are read one by one."""

    async def upgrade_state(self, line: Line, point: StepRef, loaded: LoadedState) -> LoadedState:
        """Return a loaded state in this version."""


class KeptSchema:
    """Stands for the schema of a line, in a step that has the version it says, or else that of its parent: one that
    moves or joins stored states, whatever version a program has attached."""

    reference: Final = ""

    def prepare(self, request: SchemaRequest) -> None:
        """Leave the request as it is."""

    def prepare_kept(self, request: SchemaRequest) -> None:
        """Leave the request as it is."""

    def applies_to(self, reference: str) -> bool:  # noqa: ARG002
        """Return that nothing is upgraded."""
        return False

    def renamed_nodes(self, reference: str) -> Mapping[str, str]:  # noqa: ARG002
        """Return no nodes."""
        return {}

    async def upgrade(self, line: Line, point: StepRef, reference: str, packed: PackedMap) -> PackedMap:  # noqa: ARG002
        """Return the state as it is."""
        return packed

    def upgrade_writes(
        self,
        line: Line,  # noqa: ARG002
        reference: str,  # noqa: ARG002
        rows: Sequence[PendingWriteRow],
        rename: RenameTask | None = None,  # noqa: ARG002
    ) -> list[PendingWriteRow]:
        """Return the writes as they are."""
        return list(rows)


KEPT_SCHEMA: Final = KeptSchema()
"""For a step that a writer of the line saves: one that may not write the version of its program is refused."""

MIGRATED_SCHEMA: Final = KeptSchema()
"""For a step that a migration saves, whatever version the program has attached itself."""


class Bindings(Generic[K, S]):
    """Schemas by the names of their bindings, each with what it is bound to. Later bindings go before earlier ones."""

    def __init__(self) -> None:
        self._bound: list[tuple[object, Callable[[K], bool], S]] = []
        self._cache: dict[K, S | None] = {}
        self.reinit_locks()
        reinit_after_fork(self)

    def reinit_locks(self) -> None:
        """Replace the lock in a forked child."""
        self._lock = Lock()

    def bind(self, name: object, matches: Callable[[K], bool], schema: S) -> None:
        """Bind all that matches to a schema, in place of an earlier binding of this name."""
        with self._lock:
            self._bound = [(name, matches, schema), *(each for each in self._bound if each[0] != name)]
            self._cache = {}

    def unbind(self, name: object) -> bool:
        """Remove the binding of a name. False if there is none."""
        with self._lock:
            before = len(self._bound)
            self._bound = [each for each in self._bound if each[0] != name]
            self._cache = {}
            return len(self._bound) < before

    def get(self, name: object) -> S | None:
        """Return the schema of the binding of a name."""
        return next((schema for bound, _, schema in self._bound if bound == name), None)

    def find(self, place: K) -> S | None:
        """Return the schema that something is bound to; None if there is none."""
        try:
            return self._cache[place]
        except KeyError:
            return self._match(place)

    def _match(self, place: K) -> S | None:
        with self._lock:
            found = next((schema for _, matches, schema in self._bound if matches(place)), None)
            if len(self._cache) >= _MAX_CACHED:
                self._cache = {}
            self._cache[place] = found
            return found


class SchemaBindings(Bindings[Line, LineSchema]):
    """The schemas of a store's lines: `engine.schemas`, once a program attached one."""

    def prepare(self, request: SchemaRequest) -> None:
        """Apply the schema of a line to a step that is saved."""
        if request.line_schema is KEPT_SCHEMA:
            bound = self.find(request.line)
            if bound is not None:
                bound.prepare_kept(request)
            return
        schema = request.line_schema or self.find(request.line)
        if schema is not None:
            schema.prepare(request)
