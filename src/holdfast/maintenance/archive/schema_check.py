"""Whether the states in a file fit the schemas that they say they have, before they are imported."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.engine.delta_channels import KEPT
from holdfast.engine.engine import Engine
from holdfast.engine.model.packed_state import PackedMap, unpack, unpack_name, unpack_state
from holdfast.engine.namespaces import is_thread
from holdfast.engine.row_format import Line, StepRef
from holdfast.engine.schema_bindings import ASIDE
from holdfast.maintenance.line_documents import Document, find_documents
from holdfast.schemas.external_states import ExternalStates
from holdfast.schemas.graph_checkpoint import is_internal
from holdfast.schemas.registry import LINE


async def check_schemas(
    scratch: Engine, engine: Engine, tenant: str, lines: Sequence[Line], file: str
) -> ExternalStates:
    """Check the last states of the branches of some lines of a file, which is read into a scratch store, against the
    versions that the store has registered. Raises `InvalidError`."""
    incoming = ExternalStates(engine, tenant)
    if any(line.name == LINE for line in lines) or await engine.lines.load_tip(Line(tenant, LINE)) is None:
        return incoming
    for line in lines:
        newest = await scratch.lines.latest_step(line)
        others = [await scratch.lines.head(line, each.branch) for each in await scratch.lines.branches(line)]
        points = {(each.branch, each.seq): each for each in (newest, *others) if each is not None}
        for point in points.values():
            if not point.pruned:
                await _check_step(scratch, engine, incoming, line, point, file)
    return incoming


async def _check_step(
    scratch: Engine, engine: Engine, incoming: ExternalStates, line: Line, point: StepRef, file: str
) -> None:
    reference = (await scratch.step_info.head(line, point)).header.schema
    codec = scratch.context.codec
    if is_thread(line.name):
        if reference:
            state = await scratch.states.values(line, point)
            is_graph = any(unpack_name(key) == KEPT for key in state)
            values = unpack_state(codec, _own_channels(state, is_graph=is_graph))
            attached = None if engine.schemas is None else engine.schemas.find(line)
            where = f"thread {line}, checkpoint {point.id}, in {file}"
            await incoming.check(reference, values, where, attached, partial=is_graph)
        else:
            await incoming.add_unversioned(line.name)
        return
    for document in find_documents(codec, line, reference, await scratch.states.values(line, point)):
        if document.mark.reference:
            value = document.value
            whole = document.kind == "scope" and isinstance(value, dict)
            plain = unpack_state(codec, value) if whole and isinstance(value, dict) else unpack(codec, value)
            where = f"{document.kind} {document.name or document.owner!r}"
            where += f" of {document.owner}, in {file}" if document.kind == "key" else f", in {file}"
            await incoming.check(
                document.mark.reference, plain, where, _attached(engine, line, document), partial=whole
            )


def _own_channels(state: PackedMap, *, is_graph: bool) -> PackedMap:
    names = {key: unpack_name(key) for key in state}
    return {key: state[key] for key, name in names.items() if name != ASIDE and not (is_graph and is_internal(name))}


def _attached(engine: Engine, line: Line, document: Document) -> object:
    """Return the schema that this program attached to a state."""
    if document.kind == "scope":
        return None if engine.schemas is None else engine.schemas.find(line)
    values = engine.value_schemas
    name = document.name if document.kind == "key" else ""
    return None if values is None else values.find(line.tenant, document.kind, document.owner, name)
