"""Checking what a new backup reuses of those before it.

All packs that it refers to must be there, and be as large as what is needed of them. The content of some is read in
each backup, those first whose last check is the longest ago, so that all are read in turn; of all, if `verify` has
found damage since the last backup. Times of checks are in the manifests, by the first byte of the ids of packs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from holdfast.errors import CorruptError
from holdfast.maintenance.backup.format import LineEntry, Manifest, Slice, digest_of, pack_name
from holdfast.maintenance.backup.packs import check_pack
from holdfast.maintenance.backup.repacker import pack_map
from holdfast.maintenance.backup.repository import Repository

GROUPS = 256
"""The number of groups of packs whose checks are remembered: by the first byte of their ids."""
CHECKED_BYTES, _PART = 64 << 20, 0.02
"""How much is read in each backup: so many bytes, or this part of all, if that is more."""


class ReusedPacks:
    """The packs that a new backup reuses."""

    def __init__(self, repository: Repository) -> None:
        self._repository = repository
        self._lost: set[Slice] = set()

    async def check(self, base: Manifest, entries: Iterable[LineEntry], now: int, *, is_all: bool) -> tuple[int, ...]:
        """Check what the last backup refers to, and read some of it, or all. Returns the times of the last checks of
        all groups; 0 for those without packs."""
        places = await pack_map(self._repository)
        parts = [*base.pages, *(part for entry in entries for part in entry.parts)]
        blocks: dict[bytes, dict[Slice, list[Slice]]] = {}
        for part in parts:
            place = places.locate(part)._replace(start=0, size=0)
            blocks.setdefault(place.pack, {}).setdefault(place, []).append(part)
        sizes = {pack: places.sizes.get(pack_name(pack), 0) for pack in blocks}
        ends = {pack: max(each.offset + each.length for each in found) for pack, found in blocks.items()}
        doubtful = {pack for pack in blocks if sizes[pack] < ends[pack]}
        groups: dict[int, list[bytes]] = {}
        for pack in sorted(blocks):
            groups.setdefault(int(pack.hex()[:2], 16), []).append(pack)
        before = base.checked or (base.time,) * GROUPS
        left = float("inf") if is_all else max(CHECKED_BYTES, sum(sizes.values()) * _PART)
        checked = {group: before[group] or base.time for group in groups}
        for group in sorted(groups, key=lambda each: checked[each]):
            if left <= 0:
                break
            for pack in groups[group]:
                left -= sizes[pack]
                if not await self._is_intact(pack):
                    doubtful.add(pack)
            checked[group] = now
        for pack in doubtful:
            for place, found in blocks[pack].items():
                data = await self._repository.storage.get(pack_name(pack), place.offset, place.length)
                if data is None or digest_of(data) != place.digest:
                    self._lost.update(found)
        return tuple(checked.get(group, 0) for group in range(GROUPS))

    async def _is_intact(self, pack: bytes) -> bool:
        name = pack_name(pack)
        try:
            check_pack(name, await self._repository.storage.get(name))
        except CorruptError:
            return False
        return True

    def is_lost(self, parts: Sequence[Slice]) -> bool:
        """Return whether one of some parts cannot be read where it is."""
        return not self._lost.isdisjoint(parts)

    def is_damaged(self, entry: LineEntry) -> bool:
        """Return whether a part of a line cannot be read."""
        return self.is_lost(entry.parts)
