"""Checkpoints of LangGraph: what a migration does to their bookkeeping, and to writes that are pending.

A channel that is renamed, split or merged has a version, and nodes that have seen it; a node that is renamed has a
channel that triggers it. `interfaces/langgraph/contents.py` says how a checkpoint is stored.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from typing import Any

from holdfast.codec import Codec
from holdfast.engine.model.packed_state import Packed, PackedMap, as_map, flatten, pack_name, unpack
from holdfast.engine.model.packed_state import unpack_name as name_of
from holdfast.engine.model.steps import PendingWriteRow
from holdfast.engine.schema_bindings import RenameTask
from holdfast.errors import HoldfastError, UnsupportedError
from holdfast.schemas.migration import Migration
from holdfast.schemas.version_graph import MigrationStep

_NO_WRITES, _NONE = "__no_writes__", b"\xc0"
_VERSION, _SEEN, _UPDATED = "version of ", "seen by ", "updated_channels"
_TRIGGER, _JOIN, _SENDS = "branch:to:", "join:", "__pregel_tasks"


def is_internal(name: str) -> bool:
    """Return whether a channel of a graph is LangGraph's own, and no part of the state."""
    return name.startswith(("__", "branch:", _JOIN))


def renamed_nodes(steps: Iterable[MigrationStep]) -> dict[str, str]:
    """Return the nodes that steps rename: the new names by the old ones."""
    renamed: dict[str, str] = {}
    for step in steps:
        if step.migration is not None and step.migration.nodes:
            nodes = step.migration.nodes
            nodes = nodes if step.up else {new: old for old, new in nodes.items()}
            renamed = {old: nodes.get(new, new) for old, new in renamed.items()} | {
                old: new for old, new in nodes.items() if old not in renamed.values()
            }
    return renamed


def migrate_channels(codec: Codec, channels: PackedMap, steps: Sequence[MigrationStep]) -> PackedMap:
    """Return LangGraph's own channels, with those that trigger renamed nodes renamed, and what they say of nodes."""
    nodes = renamed_nodes(steps)
    if not nodes:
        return channels
    return {
        pack_name(renamed_channel(name_of(key), nodes)): _rename_in_value(name_of(key), value, nodes, codec)
        for key, value in channels.items()
    }


def renamed_channel(channel: str, nodes: Mapping[str, str]) -> str:
    """Return the name of a channel that triggers a node, or waits for several, under the new names of nodes."""
    if channel.startswith(_TRIGGER):
        node = channel.removeprefix(_TRIGGER)
        return f"{_TRIGGER}{nodes.get(node, node)}"
    if channel.startswith(_JOIN):
        starts, _, end = channel.removeprefix(_JOIN).rpartition(":")
        return f"{_JOIN}{'+'.join(nodes.get(each, each) for each in starts.split('+'))}:{nodes.get(end, end)}"
    return channel


def _rename_in_value(channel: str, packed: Packed, nodes: Mapping[str, str], codec: Codec) -> Packed:
    """Return the value of a channel of LangGraph's own under the new names of nodes: who has come to a join, and whom
    packets are sent to."""
    if not nodes or not (channel == _SENDS or channel.startswith(_JOIN)):
        return packed
    return codec.pack(_rename_nodes(unpack(codec, packed), nodes))


def _rename_nodes(value: Any, nodes: Mapping[str, str]) -> Any:
    if isinstance(value, str):
        return nodes.get(value, value)
    if isinstance(value, list | tuple | set | frozenset):
        return type(value)(_rename_nodes(each, nodes) for each in value)
    if getattr(value, "node", None) in nodes and hasattr(value, "arg"):
        value = copy(value)
        value.node = nodes[value.node]
    return value


def migrate_bookkeeping(codec: Codec, kept: Packed, steps: Sequence[MigrationStep]) -> Packed:
    """Return the bookkeeping of a checkpoint after some migrations: versions of channels, and what nodes have seen."""
    entries: dict[str, Any] = {name_of(key): unpack(codec, value) for key, value in (as_map(kept) or {}).items()}
    nodes = renamed_nodes(steps)
    versions = {name[len(_VERSION) :]: value for name, value in entries.items() if name.startswith(_VERSION)}
    seen = {name[len(_SEEN) :]: dict(value) for name, value in entries.items() if name.startswith(_SEEN)}
    rest = {name: value for name, value in entries.items() if not name.startswith((_VERSION, _SEEN))}
    versions = _migrate_versions(versions, steps, nodes)
    if isinstance(rest.get(_UPDATED), list):
        rest[_UPDATED] = list(_migrate_versions(dict.fromkeys(rest[_UPDATED], 1), steps, nodes))
    result = rest | {f"{_VERSION}{channel}": value for channel, value in versions.items()}
    for node, channels in seen.items():
        result[f"{_SEEN}{nodes.get(node, node)}"] = _migrate_versions(channels, steps, nodes)
    names = list(result)
    return dict(zip(map(pack_name, names), codec.pack_items(result.values()), strict=True))


def _migrate_versions(
    versions: Mapping[str, Any], steps: Sequence[MigrationStep], nodes: Mapping[str, str]
) -> dict[str, Any]:
    """Return versions by channel. A channel that comes of others has the greatest of theirs."""
    found = dict(versions)
    for step in steps:
        if step.migration is None:
            continue
        operations = step.migration.operations
        for operation in operations if step.up else reversed(operations):
            channels = {keys[0] for keys in operation.paths()}
            known = [found[channel] for channel in channels if channel in found]
            if known and len(channels) > 1:
                for channel in channels:
                    found.setdefault(channel, max(known))
    return {renamed_channel(channel, nodes): version for channel, version in found.items()}


def migrate_writes(
    name: str,
    rows: Sequence[PendingWriteRow],
    steps: tuple[MigrationStep, ...],
    where: str,
    codec: Codec,
    rename: RenameTask | None = None,
) -> list[PendingWriteRow]:
    """Return pending writes in another version, or refuse all of them: a step is never resumed with some. `rename`
    gives tasks of nodes that were renamed their new ids."""
    nodes = renamed_nodes(steps)
    if nodes:
        rows = [_rename_task(row, nodes, where, rename) for row in rows]
    return [each for row in rows for each in _migrate_write(name, row, steps, nodes, where, codec)]


def _rename_task(
    row: PendingWriteRow, nodes: Mapping[str, str], where: str, rename: RenameTask | None
) -> PendingWriteRow:
    node = row.path.rpartition(", ")[2]
    found = rename(row, nodes) if rename is not None else None if node in nodes and row.task else row
    if found is None:
        raise pending_error(
            where,
            f"a task of the node {node!r}, which was renamed, cannot be found under its new name, and would run again",
        )
    return found


def _migrate_write(
    name: str,
    row: PendingWriteRow,
    steps: tuple[MigrationStep, ...],
    nodes: Mapping[str, str],
    where: str,
    codec: Codec,
) -> list[PendingWriteRow]:
    reference = f"{name}@{steps[-1].target}" if steps else row.schema
    if is_internal(row.channel) or row.place < 0:
        packed = _rename_in_value(row.channel, row.packed, nodes, codec)
        channel = renamed_channel(row.channel, nodes)
        return [row._replace(channel=channel, packed=flatten(packed), schema=reference)]
    key = pack_name(row.channel)
    try:
        after: PackedMap = {key: row.packed}
        without: PackedMap = {}
        for step in steps:
            if step.migration is not None:
                if not all(operation.paths() for operation in step.migration.operations):
                    raise pending_error(
                        where, f"the whole state is converted by a function, and not {row.channel!r} alone"
                    )
                run = step.migration.upgrade if step.up else step.migration.downgrade
                converted, without = run(after, {}, codec), run(without, {}, codec).state
                after = converted.state
                if converted.aside and after == without:
                    if not _is_removed(step.migration, row.channel):
                        raise pending_error(where, f"{row.channel!r} becomes part of another channel")
                    # LangGraph would run a task again of which nothing is left.
                    return [row._replace(channel=_NO_WRITES, packed=_NONE, schema=reference)]
    except HoldfastError as error:
        if error.code == "migration-pending":
            raise
        raise pending_error(where, f"{row.channel!r}: {error.what}") from error
    written = [(each, value) for each, value in after.items() if flatten(value) != flatten(without.get(each, b""))]
    if not written and after:
        written = [(each, value) for each, value in after.items() if each == key]
    return [
        row._replace(channel=name_of(each), packed=flatten(value), schema=reference, place=row.place + 1000 * number)
        for number, (each, value) in enumerate(written)
    ]


def _is_removed(migration: Migration, channel: str) -> bool:
    kinds = {each.kind for each in migration.operations if any(keys[0] == channel for keys in each.paths())}
    return kinds == {"remove"}


def pending_error(where: str, why: str) -> UnsupportedError:
    """Return the error for a thread that cannot be resumed in another version."""
    return UnsupportedError(
        f"the thread stopped in the middle of a step, and what its tasks did cannot be migrated: {why}",
        where=where,
        hint="Finish it with the release that started it, and upgrade after that. If that release is refused by now "
        "(schema-outdated), downgrade the states first: holdfast migrate down",
        code="migration-pending",
    )
