"""Checkpoints of LangGraph: what a migration does to their bookkeeping, and to writes that are pending.

A channel that is renamed, split or merged has a version, and nodes that have seen it; a node that is renamed has a
channel that triggers it. `interfaces/langgraph/contents.py` says how a checkpoint is stored.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from holdfast.codec import Codec
from holdfast.engine.model.packed_state import Packed, PackedMap, as_map, flatten, pack_name, unpack
from holdfast.engine.model.packed_state import unpack_name as name_of
from holdfast.engine.model.steps import PendingWriteRow
from holdfast.errors import HoldfastError, UnsupportedError
from holdfast.schemas.migration import Migration
from holdfast.schemas.schema_set import SchemaSet
from holdfast.schemas.version import Version
from holdfast.schemas.version_graph import MigrationStep

_NO_WRITES, _NONE = "__no_writes__", b"\xc0"
_VERSION, _SEEN, _TRIGGER, _UPDATED = "version of ", "seen by ", "branch:to:", "updated_channels"


def is_internal(name: str) -> bool:
    """Return whether a channel of a graph is LangGraph's own, and no part of the state."""
    return name.startswith(("__", "branch:"))


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


def migrate_channels(channels: PackedMap, steps: Sequence[MigrationStep]) -> PackedMap:
    """Return LangGraph's own channels, with those that trigger renamed nodes renamed."""
    nodes = renamed_nodes(steps)
    return {pack_name(_trigger(name_of(key), nodes)): value for key, value in channels.items()} if nodes else channels


def _trigger(channel: str, nodes: Mapping[str, str]) -> str:
    node = channel.removeprefix(_TRIGGER) if channel.startswith(_TRIGGER) else ""
    return f"{_TRIGGER}{nodes[node]}" if node in nodes else channel


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
    return {_trigger(channel, nodes): version for channel, version in found.items()}


def migrate_writes(
    schemas: SchemaSet,
    name: str,
    rows: Sequence[PendingWriteRow],
    source: Version,
    target: Version,
    where: str,
    codec: Codec,
) -> list[PendingWriteRow]:
    """Return pending writes in another version, or refuse all of them: a step is never resumed with some."""
    steps = schemas.path(name, source, target)
    nodes = renamed_nodes(steps)
    return [each for row in rows for each in _migrate_write(name, row, steps, nodes, where, codec)]


def _migrate_write(
    name: str,
    row: PendingWriteRow,
    steps: tuple[MigrationStep, ...],
    nodes: Mapping[str, str],
    where: str,
    codec: Codec,
) -> list[PendingWriteRow]:
    node = row.path.rpartition(", ")[2]
    if node in nodes and row.place >= 0 and row.task:
        raise pending_error(
            where, f"the node {node!r}, which had finished, is called {nodes[node]!r} now and would run again"
        )
    reference = f"{name}@{steps[-1].target}" if steps else row.schema
    if is_internal(row.channel) or row.place < 0:
        return [row._replace(channel=_trigger(row.channel, nodes), schema=reference)]
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
                (after, aside), (without, _) = run(after, {}, codec), run(without, {}, codec)
                if aside and after == without:
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
        hint="Resume it with the release that started it, and upgrade it after that",
        code="migration-pending",
    )


__all__ = ["is_internal", "migrate_bookkeeping", "migrate_channels", "migrate_writes", "pending_error", "renamed_nodes"]
