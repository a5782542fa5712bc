"""Export an agent as one JSON document that people can read and edit, and import it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from holdfast.agents.storage.agent_line import AgentLine, Delta, require_parts
from holdfast.agents.storage.record import CONVERSATION, DICTS, AgentPosition, AgentRecord, build_record
from holdfast.backends.interface import BlockingCall
from holdfast.engine.events import Event
from holdfast.engine.ids import new_id
from holdfast.engine.model.operations import Set
from holdfast.engine.model.packed_state import flatten, pack_name, pack_state, unpack_name, unpack_state
from holdfast.engine.row_format import StepRef
from holdfast.engine.types import to_datetime
from holdfast.engine.value_schemas import ValuePlace
from holdfast.errors import ConflictError, HoldfastError, InvalidError, UnsupportedError

FORMAT = 1


async def export_document(line: AgentLine, point: StepRef) -> dict[str, Any]:
    """Export an agent at a step. Values are in the form of `Codec.to_json`: JSON, with marks for types that JSON does
    not have."""
    record = await line.read_record(point)
    state = unpack_state(line.handle.codec, await line.read_channels(point))
    state[CONVERSATION] = await line.read_messages(point)
    # In a thread: a long conversation takes seconds.
    tree: BlockingCall[dict[str, Any]] = BlockingCall(
        lambda: {name: line.handle.codec.to_json(value) for name, value in state.items()}
    )
    return {
        "holdfast": "agent",
        "format": FORMAT,
        "id": line.id,
        "version": record.version,
        "checkpoint": record.checkpoint,
        "updated": record.updated.isoformat(),
        "state": await tree,
    }


async def import_document(line: AgentLine, document: Mapping[str, Any]) -> AgentRecord:
    """Save a new agent from a document."""
    codec, where = line.handle.codec, f"document of agent {line.id!r}"
    tree = check_document(document)["state"]
    if not isinstance(tree, Mapping) or not all(isinstance(name, str) for name in tree):
        raise InvalidError("the state of the agent must be a dict of channels", where=where)
    state = {name: codec.from_json(value) for name, value in tree.items()}
    messages = state.pop(CONVERSATION, [])
    if not isinstance(messages, list):
        raise InvalidError("the conversation of the agent must be a list", where=where)
    now = to_datetime(line.handle.now())
    try:
        state["counts"] = {**state.get("counts", {}), "messages": len(messages)}
        record = build_record(line.id, state, 1, now, "", {})
    except (HoldfastError, TypeError) as error:
        raise InvalidError(f"this is not the state of an agent: {error}", where=where) from None
    position = AgentPosition(record.status, record.state, record.pending)
    permit = await line.allow("write")
    if await line.latest_step() is not None:
        raise agent_exists_error(line)
    if "@" in record.schema:
        await _check_schema(line, record, where)
    metadata = {"class": record.kind, "status": record.status, "state": record.state}
    hooks = await line.call_hooks("agent.create", metadata, {name: state[name] for name in DICTS})
    packed = pack_state(codec, state | require_parts(hooks.value))
    delta = Delta(
        {unpack_name(name): Set(flatten(value)) for name, value in packed.items()},
        messages=codec.pack_items(messages),
    )
    summary = line.summarize(record.kind, position, len(messages), packed[pack_name("metadata")])
    events = [Event("agent", line.handle.guard.actor, "import", line.id), *hooks.events]
    request = line.build_request("import", delta, None, summary, events, permit, new_id(line.handle.now()))
    try:
        (point,) = await line.save(request)
    except ConflictError as error:
        raise agent_exists_error(line) from error
    hooks.call_after(1, point.id)
    return await line.read_record(point)


async def _check_schema(line: AgentLine, record: AgentRecord, where: str) -> None:
    """Raise `InvalidError` if the fields do not have the form of the schema that the document says they have."""
    from holdfast.schemas.attached_version import ExternalStates

    engine, tenant = line.handle.engine, line.handle.tenant
    values = engine.value_schemas
    attached = None if values is None else values.find(ValuePlace(tenant, "agent", record.kind))
    incoming = ExternalStates(engine, tenant, line.handle.guard.actor)
    await incoming.check(record.schema, dict(record.fields), where, attached)
    await incoming.register()


def check_document(document: object) -> Mapping[str, Any]:
    """Return a document of an agent. Raises `InvalidError` if it is none."""
    if not isinstance(document, Mapping) or document.get("holdfast") != "agent" or "state" not in document:
        raise InvalidError("this is not an exported agent", hint="Pass a document of store.agents.export(id)")
    if document.get("format") != FORMAT:
        raise UnsupportedError(
            f"the document has the format {document.get('format')!r}, and this release supports {FORMAT}",
            hint="Read it with the release that wrote it, or a later one",
        )
    return document


def agent_exists_error(line: AgentLine) -> ConflictError:
    """Build the error for an id that is in use."""
    return ConflictError(
        "there is already an agent with this id",
        where=line.where,
        hint="Restore it with store.agents.restore, delete it, or use another id",
        code="agent-exists",
    )
