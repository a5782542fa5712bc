"""Agents of Holdfast's: the document that `store.agents.export` makes of one, frozen, and imported elsewhere.

Values are in the JSON form of the codec, in which every type comes back, also in a program that has not the
application's classes. It is the agent as it was saved; its history stays in its store.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from holdfast.agents.snapshots.json_values import check_fields
from holdfast.agents.snapshots.secret_scan import SecretScan
from holdfast.agents.storage.agent_line import AgentLine
from holdfast.agents.storage.json_document import exported, imported
from holdfast.agents.storage.record import PENDING, AgentRecord
from holdfast.errors import (
    ConflictError,
    CorruptError,
    InvalidError,
    SnapshotCorruptError,
    SnapshotExistsError,
    SnapshotInvalidError,
    TooLargeError,
    UnsupportedError,
)
from holdfast.state.api import ScopedOperations

_FIELDS = {
    "holdfast": str,
    "format": int,
    "id": str,
    "version": int,
    "checkpoint": str,
    "updated": str,
    "state": dict,
}


_SETTINGS = ("configuration", "fields", "context", "metadata")
"""Where text may be secret by the name that it has. Elsewhere names are of tools and steps, or of what was said."""


class StoredAgent(NamedTuple):
    """An agent as a store has it, of which to take a snapshot: `snapshot(Saved(store, "greeter-1"), …)`.

    It need not live, and its class need not be known.
    """

    store: ScopedOperations
    """The store, or what `store.as_identity(…)` returns."""
    id: str
    version: int | None = None
    """Which version of it; the newest, if nothing is said."""


async def freeze(line: AgentLine, version: int | None, gathering: SecretScan) -> tuple[dict[str, Any], AgentRecord]:
    """An agent as a version left it, as a tree of JSON; and its record. Raises `NotFoundError`."""
    await line.allow("read")
    point = await line.point(version)
    record = await line.record(point)
    if record.pending is not None:
        raise SnapshotInvalidError(
            f"the agent is in the middle of something: {record.pending.trigger}",
            where=line.where,
            hint="Let it come to its end, or start the agent to have it resolved, and try again",
        )
    document = await exported(line, point)
    for part in _SETTINGS:
        gathering.check_names(document["state"].get(part), part)
    await line.handle.guard.saw(line.scope, ())
    return document, record


def class_of(tree: Any, where: str) -> str:
    """The name of the class of the agent in a tree. Raises `SnapshotCorruptError` if that is none."""
    check_fields(tree, _FIELDS, where)
    name = tree["state"].get("class")
    if type(name) is not str or PENDING in tree["state"]:
        raise SnapshotCorruptError("the content is no agent that was at rest", where=where)
    return name


async def thaw(tree: Any, line: AgentLine, where: str) -> AgentRecord:
    """Save the agent of a tree under an id that is free. Raises `SnapshotExistsError` if it is not."""
    try:
        return await imported(line, tree)
    except ConflictError as error:
        raise SnapshotExistsError(
            error.what, where=line.where, hint="Restore it under another id: agent_id='…', or --id"
        ) from error
    except TooLargeError:
        raise  # for this store, and not by the snapshot's fault
    except (InvalidError, CorruptError, UnsupportedError) as error:
        raise SnapshotCorruptError(f"the content is no agent: {error}", where=where) from error


def line_of(store: Any, id: str) -> AgentLine:
    """Where an agent is kept. Raises `SnapshotInvalidError` for what is no store or no id."""
    if not isinstance(store, ScopedOperations):
        raise SnapshotInvalidError(
            f"a {type(store).__name__} is no store of Holdfast's", hint="restore(…, store=holdfast.open(…))"
        )
    try:
        return AgentLine(store._handle, id)
    except InvalidError as error:
        raise SnapshotInvalidError(error.what, where=error.where, hint=error.hint) from error
