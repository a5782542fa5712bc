"""Which schema the state of a line has, where a program declared one: the seam between the engine and schemas.

Nothing of this costs anything in a store without declared schemas, and a read of a state that has the declared version
already only compares two texts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from threading import Lock
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol, TypeAlias, TypeVar

from holdfast.backends.runtime.fork_safety import reinit_after_fork

if TYPE_CHECKING:
    from holdfast.engine.guard import Preconditions
    from holdfast.engine.model.packed_state import PackedMap
    from holdfast.engine.model.steps import PendingWriteRow
    from holdfast.engine.row_format import Line, StepRef
    from holdfast.engine.state_loader import LoadedState

K = TypeVar("K")
V = TypeVar("V")

ASIDE: Final = "__aside__"
"""The channel with the values that migrations keep aside for a downgrade. It is stored with the state, and covered by
whatever covers that: hashes, encryption, redaction, prune."""

_MAX_CACHED = 4096
"""The number of lines or values whose schema is cached."""


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


class LineSchema:
    """The schema of the states of some lines, as a program declared it. This one leaves all as it is: it stands for
    that of a line in a step that has the version it says, or else that of its parent, such as one that moves or joins
    stored states, whatever version a program has attached."""

    reference: str = ""
    """The name and the version, as in `chat@2.0.0`."""

    def prepare(self, request: SchemaRequest) -> None:
        """Let a step be saved in this version, on condition that the version may still be written."""

    def prepare_kept(self, request: SchemaRequest) -> None:
        """Let a step be saved that keeps the version of its parent, on the same condition."""

    def applies_to(self, reference: str) -> bool:  # noqa: ARG002
        """Return whether a state with this reference has the schema, in any version."""
        return False

    def renamed_nodes(self, reference: str) -> Mapping[str, str]:  # noqa: ARG002
        """Return the nodes of a graph that were renamed since a version: the new names by the old ones."""
        return {}

    async def upgrade(self, line: Line, point: StepRef, reference: str, packed: PackedMap) -> PackedMap:  # noqa: ARG002
        """Return a stored state in this version, as its reader sees it."""
        return packed

    async def upgrade_state(self, line: Line, point: StepRef, loaded: LoadedState) -> LoadedState:  # noqa: ARG002
        """Return the loaded state of a scope, whose keys are read one by one, in this version."""
        return loaded

    def upgrade_writes(
        self,
        line: Line,  # noqa: ARG002
        reference: str,  # noqa: ARG002
        rows: Sequence[PendingWriteRow],
        rename: RenameTask | None = None,  # noqa: ARG002
    ) -> list[PendingWriteRow]:
        """Return the writes that follow a checkpoint in this version. `reference` is the schema of the checkpoint."""
        return list(rows)


KEPT_SCHEMA: Final = LineSchema()
"""For a step that a writer of the line saves: one that may not write the version of its program is refused."""

MIGRATED_SCHEMA: Final = LineSchema()
"""For a step that a migration saves, whatever version the program has attached itself."""


class Bindings(Generic[K, V]):
    """Schemas that a program attached, by what has them. Later bindings go before earlier ones."""

    def __init__(self) -> None:
        self._bound: list[tuple[str, Callable[[K], bool], V]] = []
        self._cache: dict[K, V | None] = {}
        self._lock = Lock()
        reinit_after_fork(self)

    def bind(self, name: str, matches: Callable[[K], bool], schema: V) -> None:
        """Bind all that matches to a schema, in place of an earlier binding of this name."""
        with self._lock:
            self._bound = [(name, matches, schema), *(each for each in self._bound if each[0] != name)]
            self._cache = {}

    def unbind(self, name: str) -> bool:
        """Remove the binding of a name. False if there is none."""
        with self._lock:
            before = len(self._bound)
            self._bound = [each for each in self._bound if each[0] != name]
            self._cache = {}
            return len(self._bound) < before

    def get(self, name: str) -> V | None:
        """Return the schema of the binding of a name."""
        return next((schema for bound, _, schema in self._bound if bound == name), None)

    def find(self, place: K) -> V | None:
        """Return the schema of a line or a value; None if it has none."""
        try:
            return self._cache[place]
        except KeyError:
            return self._match(place)

    def _match(self, place: K) -> V | None:
        with self._lock:
            found = next((schema for _, matches, schema in self._bound if matches(place)), None)
            if len(self._cache) >= _MAX_CACHED:
                self._cache = {}
            self._cache[place] = found
            return found

    def reinit_locks(self) -> None:
        """Replace the lock in a forked child."""
        self._lock = Lock()


class SchemaBindings(Bindings["Line", LineSchema]):
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
