"""Legal holds and backups: pruning leaves a way to everything that a held thread ever had.

A hold protects a thread in its store. Backups may have more of it: checkpoints that were pruned before somebody put the
hold on it, or a thread that the store lost. Of the backups that the rules of retention do not keep, those stay that
have checkpoints of a held thread that no other one has.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TypeAlias

from holdfast.backends.interface import Scan
from holdfast.backends.tables import REFS, STEPS
from holdfast.engine.copy.line_stream import every_line
from holdfast.engine.engine import Engine
from holdfast.engine.namespaces import root_of, short_name
from holdfast.engine.row_format import HOLD, Line
from holdfast.maintenance.backup.format import Chunk, LineEntry, Slice
from holdfast.maintenance.backup.keyring import KeyringReader
from holdfast.maintenance.backup.reader import loader_of
from holdfast.maintenance.backup.repository import Backup, Repository
from holdfast.maintenance.backup.store_record import own_chains

Holds: TypeAlias = Mapping[Line, str]
"""Held threads, and why."""

_AT_ONCE = 200
_ID, _HASH = (list(STEPS.columns).index(name) for name in ("id", "hash"))


async def holds_of_store(engine: Engine, home: str) -> dict[str, Holds]:
    """Return the holds of an open store by the ids of its backups, if it has any. It was opened for the tenant
    `home`."""
    own = await own_chains(engine, home)
    if not own:
        return {}
    backend, held = engine.context.backend, dict[Line, str]()
    lines = [line async for line in every_line(backend, home or None)]
    for start in range(0, len(lines), _AT_ONCE):
        for rows in await backend.read([Scan(REFS, (*line, HOLD)) for line in lines[start : start + _AT_ONCE]]):
            held.update((Line(str(row.key[0]), str(row.key[1])), str(row.key[3])) for row in rows)
    return dict.fromkeys(own, held)


async def holds_of_backup(repository: Repository, backup: Backup) -> dict[Line, str]:
    """Return the holds that a store had when a backup was made. Of an encrypted store, their reasons are not known."""
    held, loader, sealed = dict[Line, str](), loader_of(repository), bool(backup.manifest.keyrings)
    for entry in await repository.entries(backup.manifest):
        refs = (await loader.keys(entry.line, entry.chunks)).get(REFS.name, {})
        held.update((entry.line, "" if sealed else str(key[1])) for key in refs if key[0] == HOLD)
    return held


class HeldData:
    """The checkpoints of held threads in the backups of a store."""

    def __init__(self, repository: Repository, store: str, holds: Holds) -> None:
        self._repository = repository
        self._store = store
        self._holds = holds
        self._pages: dict[Slice, list[LineEntry]] = {}
        self._steps: dict[tuple[Line, tuple[Chunk, ...]], frozenset[bytes]] = {}

    async def find_needed(self, backups: Sequence[Backup], kept: Collection[str]) -> dict[str, list[str]]:
        """Return the ids of backups that have to stay, though they are not among those that are kept, and why."""
        if not self._holds or len(kept) == len(backups):
            return {}
        destroyed = await KeyringReader(self._repository, self._store).destroyed()
        reachable = set[tuple[Line, bytes]]()
        for backup in backups:
            if backup.id in kept:
                for entry in await self._entries(backup):
                    reachable.update((entry.line, step) for step in await self._steps_of(entry))
        needed: dict[str, list[str]] = {}
        for backup in reversed([each for each in backups if each.id not in kept]):
            for entry in await self._entries(backup):
                if not destroyed.isdisjoint(entry.keys):
                    continue  # nobody can read it any more
                steps = {(entry.line, step) for step in await self._steps_of(entry)}
                if not steps <= reachable:
                    needed.setdefault(backup.id, []).append(self._reason(entry.line))
                    reachable |= steps
        return needed

    def _reason(self, line: Line) -> str:
        thread = root_of(line)
        reason = self._holds[thread]
        return f"legal hold on {short_name(thread.name)}" + (f": {reason}" if reason else "")

    async def _entries(self, backup: Backup) -> Iterable[LineEntry]:
        """Return the lines of held threads in a backup. Backups share most of their pages."""
        found: dict[Line, LineEntry] = {}
        for part in backup.manifest.pages:
            if part not in self._pages:
                page = await self._repository.page(part)
                self._pages[part] = [entry for entry in page if root_of(entry.line) in self._holds]
            found.update((entry.line, entry) for entry in self._pages[part])
        return [entry for entry in found.values() if not entry.is_removed]

    async def _steps_of(self, entry: LineEntry) -> frozenset[bytes]:
        """Return the hashes of the steps that a line has, without those that were pruned."""
        key = entry.line, entry.chunks
        if key not in self._steps:
            steps = (await loader_of(self._repository).keys(*key)).get(STEPS.name, {})
            hashes = (bytes(columns[_HASH]) for columns in steps.values() if columns[_ID])  # type: ignore[arg-type]
            self._steps[key] = frozenset(hashes)
        return self._steps[key]
