"""Agents of Holdfast in snapshots: the document of `store.agents.export`, imported elsewhere.

Values are in the JSON form of the codec, which preserves all types, even without the application's classes. It is the
agent as it was saved; its history stays in its store.
"""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.agents.snapshots import strict_json
from holdfast.agents.snapshots.secret_scan import SecretScan
from holdfast.agents.snapshots.strict_json import check_fields
from holdfast.agents.storage.agent_line import AgentLine
from holdfast.agents.storage.json_document import export_document, import_document
from holdfast.agents.storage.record import CONVERSATION, PENDING, AgentRecord
from holdfast.backends.interface import BlockingCall
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
from holdfast.security.encryption.file_key import FileKey, master_keys, new_file_key, open_file_key
from holdfast.state.api import ScopedOperations

_FIELDS = {"holdfast": str, "format": int, "id": str, "version": int, "checkpoint": str, "updated": str, "state": dict}

_SEALED, _PURPOSE = "sealed", "snapshot"
"""The field of an encrypted tree with its key, which the master key of the store encrypts."""

_SETTINGS = ("configuration", "fields", "context", "metadata")
"""The channels that hold settings."""

_DATA = (CONVERSATION, "workflow")
"""The channels that hold data, in which texts are prose."""


class StoredAgent(msgspec.Struct, frozen=True):
    """A stored agent to take a snapshot of: `snapshot(StoredAgent(store, "greeter-1"), …)`.

    It need not be live, and its class need not be registered.
    """

    store: ScopedOperations
    """The store, or the result of `store.as_identity(…)`."""
    id: str
    version: int | None = None
    """The version; by default the newest."""


async def export_agent(
    line: AgentLine, version: int | None, scan: SecretScan
) -> tuple[dict[str, Any], AgentRecord, FileKey | None]:
    """Return a version of an agent as a tree of JSON, its record, and the key to encrypt the tree with, if it is that
    of an encrypted store. Raises `NotFoundError`."""
    await line.allow("read")
    key = await new_file_key(line.handle.engine, _PURPOSE)
    point = await line.require_step(version)
    record = await line.read_record(point)
    if record.pending is not None:
        raise SnapshotInvalidError(
            f"the agent has an incomplete operation: {record.pending.trigger}",
            where=line.where,
            hint="Let it finish, or start the agent to resolve it, and try again",
        )
    document = await export_document(line, point)
    for part in _SETTINGS:
        scan.check_names(document["state"].get(part), part)
    for part in _DATA:
        scan.check_names(document["state"].get(part), part, is_message=True)
    await line.handle.guard.saw(line.scope, ())
    return document, record, key


def seal_tree(key: FileKey, tree: Any) -> dict[str, Any]:
    """Return a tree as one that is encrypted with the key of the file."""
    return {_SEALED: dict(key.wrapped), "content": key.seal(strict_json.write(tree), 0)}


async def open_tree(tree: Any, store: Any, where: str) -> Any:
    """Return a tree, decrypted with the master key of the store that it is restored into if it is encrypted."""
    if type(tree) is not dict or _SEALED not in tree:
        return tree
    check_fields(tree, {_SEALED: dict, "content": str}, where)
    keys = master_keys(_require_store(store)._handle.engine)
    call: BlockingCall[FileKey] = BlockingCall(lambda: open_file_key(tree[_SEALED], _PURPOSE, keys, where))
    return strict_json.read((await call).unseal(tree["content"], 0, where), where)


def class_of(tree: Any, where: str) -> str:
    """Return the name of the class of the agent in a tree. Raises `SnapshotCorruptError` if there is none."""
    check_fields(tree, _FIELDS, where)
    name = tree["state"].get("class")
    if type(name) is not str or PENDING in tree["state"]:
        raise SnapshotCorruptError("the content is not an agent, or is an agent with a pending change", where=where)
    return name


async def import_agent(tree: Any, line: AgentLine, where: str) -> AgentRecord:
    """Save the agent of a tree. Raises `SnapshotExistsError` if its id is in use."""
    try:
        return await import_document(line, tree)
    except ConflictError as error:
        raise SnapshotExistsError(
            error.what,
            where=line.where,
            hint="Restore it under another id: agent_id='…', or --id",
        ) from error
    except TooLargeError:
        raise  # too large for this store, and not the snapshot's fault
    except (InvalidError, CorruptError, UnsupportedError) as error:
        raise SnapshotCorruptError(f"the content is not an agent: {error}", where=where) from error


def line_of(store: Any, id: str) -> AgentLine:
    """Return the line of an agent. Raises `SnapshotInvalidError` if the store or the id is none."""
    try:
        return AgentLine(_require_store(store)._handle, id)
    except InvalidError as error:
        raise SnapshotInvalidError(error.what, where=error.where, hint=error.hint) from error


def _require_store(store: Any) -> ScopedOperations:
    if not isinstance(store, ScopedOperations):
        raise SnapshotInvalidError(
            f"a {type(store).__name__} is not a Holdfast store", hint="restore(…, store=holdfast.open(…))"
        )
    return store
