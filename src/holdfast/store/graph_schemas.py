"""The schemas of a graph and its subgraphs, as a saver declares them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from holdfast._named_tuple import NamedTuple
from holdfast.engine.delta_channels import KEPT
from holdfast.engine.model.packed_state import PackedMap, pack_name, unpack
from holdfast.engine.namespaces import split_name, thread_name
from holdfast.engine.row_format import Line
from holdfast.errors import InvalidError

if TYPE_CHECKING:
    from holdfast.codec import Codec
    from holdfast.engine.engine import Engine
    from holdfast.engine.model.steps import PendingWriteRow
    from holdfast.engine.schema_bindings import LineSchema, RenameTask
    from holdfast.engine.step_info import StepInfo
    from holdfast.schemas.schema_declaration import Declaration, ValidationMode
    from holdfast.security.handle import StoreHandle

INTERRUPTS: Final = "__interrupt__"
"""The channel of the interrupts of a task."""

_SENDS: Final = "__pregel_tasks"
_VERSION: Final = "version of "


class GraphSchemas:
    """The schemas of a graph and of its subgraphs, which are attached when a thread is used first.

    `schema` is a `SchemaSet`, a `Schema`, or a class, whose version is its `__schema_version__` or 1.0.0. `subgraphs`
    names the schemas of subgraphs by their nodes: `research`, or `research|search` for one inside of another.
    """

    def __init__(self, schema: Any, subgraphs: Mapping[str, str], validate: ValidationMode = "refuse") -> None:
        from holdfast.schemas.schema import Schema
        from holdfast.schemas.schema_declaration import Declaration
        from holdfast.schemas.schema_set import SchemaSet

        if isinstance(schema, type):
            schema = Schema(schema.__name__, getattr(schema, "__schema_version__", "1.0.0"), schema)
        reference = None
        if isinstance(schema, SchemaSet):
            names = {each.name for each in schema} - set(subgraphs.values())
            if len(names) != 1:
                raise InvalidError(
                    f"a saver needs the schema of one graph, and there are {len(names)}",
                    hint="Give schemas of subgraphs in subgraphs=, and one more, that of the graph",
                )
            (reference,) = names
        self._declarations: dict[str, Declaration] = {
            "": Declaration.of(schema, reference, validate),
            **{node: Declaration.of(schema, name, validate) for node, name in subgraphs.items()},
        }
        self._attached: dict[tuple[int, str, str], LineSchema] = {}

    async def find(self, engine: Engine, handle: StoreHandle, line: Line) -> LineSchema | None:
        """Return the schema of a thread or of a namespace; None for that of a subgraph that has none."""
        node = _node(split_name(line.name)[1])
        declaration = self._declarations.get(node)
        if declaration is None:
            return None
        key = (id(engine), handle.tenant, node)
        found = self._attached.get(key)
        if found is None:
            from holdfast.schemas.attached_version import attach
            from holdfast.schemas.attachment import Attachment

            engine.bind_schemas()  # lets the writer apply it
            found = self._attached[key] = await attach(
                declaration, engine, handle.tenant, handle.guard.actor, kind=Attachment
            )
        return found

    def nodes_with_renamed(self, namespace: str) -> list[str]:
        """Return the nodes of a graph whose subgraphs, or those inside of them, have renamed nodes."""
        node = _node(namespace)
        start = f"{node}|" if node else ""
        return sorted(
            {
                below.removeprefix(start).partition("|")[0]
                for below, declaration in self._declarations.items()
                if below != node
                and below.startswith(start)
                and any(each.nodes for each in declaration.schemas.migrations(declaration.schema.name))
            }
        )


def _node(namespace: str) -> str:
    """Return the node of a namespace by its name in the graph: `research|search`."""
    return "|".join(part.partition(":")[0] for part in namespace.split("|") if not part.isdigit())


class TaskPlace(NamedTuple):
    """Where tasks ran: the checkpoint that they follow, as it was stored."""

    id: str
    namespace: str
    step: int
    version: int
    """The version of the format of the checkpoint."""
    channels: Collection[str]
    sends: Sequence[str]
    """The nodes that packets were sent to."""
    rename_channel: Callable[[str, Mapping[str, str]], str]
    """Returns the name of a channel that triggers nodes, under their new names."""


class RenamedTask(NamedTuple):
    """A task under the new name of its node."""

    id: str
    path: str
    interrupts: Callable[[Any], Any] | None = None
    """Gives the interrupts of the task the ids that they have now."""


FindTask: TypeAlias = Callable[[TaskPlace, str, str, Mapping[str, str]], RenamedTask | None]
"""Returns a task under the new name of its node, given its path, its id, and the new names by the old ones."""


def rename_tasks(codec: Codec, line: Line, head: StepInfo, stored: PackedMap, find: FindTask) -> RenameTask:
    """Return the function that gives tasks of renamed nodes their new ids, which depend on the names."""
    place: TaskPlace | None = None

    def rename(row: PendingWriteRow, nodes: Mapping[str, str]) -> PendingWriteRow | None:
        nonlocal place
        if not row.task:
            return row
        if place is None:
            place = _place(codec, line, head, stored)
        found = find(place, row.path, row.task, nodes)
        if found is None:
            return None
        packed = row.packed
        if row.channel == INTERRUPTS and found.interrupts is not None:
            packed = codec.pack(found.interrupts(codec.unpack(packed)))
        return row._replace(task=found.id, path=found.path, packed=packed)

    return rename


def _place(codec: Codec, line: Line, head: StepInfo, stored: PackedMap) -> TaskPlace:
    from holdfast.schemas.graph_checkpoint import renamed_channel

    kept: Mapping[str, Any] = unpack(codec, stored.get(pack_name(KEPT), b"\x80"))
    sends = unpack(codec, stored[pack_name(_SENDS)]) if pack_name(_SENDS) in stored else ()
    version, step = kept.get("v", 1), codec.unpack(head.header.metadata).get("step")
    return TaskPlace(
        head.header.id,
        split_name(line.name)[1],
        step + 1 if isinstance(step, int) else 0,
        version if isinstance(version, int) else 1,
        [name.removeprefix(_VERSION) for name in kept if name.startswith(_VERSION)],
        [str(getattr(each, "node", "")) for each in sends] if isinstance(sends, list | tuple) else (),
        renamed_channel,
    )


async def require_no_subgraph(engine: Engine, line: Line, id: str, nodes: Mapping[str, str]) -> None:
    """Refuse to resume a checkpoint after which a subgraph was started in a node that is called otherwise now.

    The name of the node and an id that depends on it are parts of the subgraph's namespace: today's graph would not
    find it, and start it again. `nodes` are the new names by the old ones.
    """
    thread, namespace = split_name(line.name)
    for old, new in nodes.items():
        prefix = thread_name(thread, f"{namespace}|{old}:" if namespace else f"{old}:")
        for other in await engine.lines.names(line.tenant, prefix):
            latest = await engine.lines.latest_step(other)
            if latest is None:
                continue
            header = (await engine.step_info.head(other, latest)).header
            parents = engine.context.codec.unpack(header.metadata).get("parents")
            if isinstance(parents, Mapping) and parents.get(namespace) == id:
                from holdfast.schemas.graph_checkpoint import pending_error

                raise pending_error(
                    f"thread {line}",
                    f"a subgraph is at work in the node {old!r}, which is called {new!r} now and would start again",
                )
