"""Checking what a new backup reuses of those before it.

All packs that it refers to must be there, and be as large as what is needed of them. The content of some is read in
each backup, those first whose last check is the longest ago, so that all are read in turn within a month; of all, if
`verify` has found damage since the last backup. Times of checks are in the manifests, by the first byte of the ids of
packs. The lists of lines are only read if a pack is missing or damaged.
"""

from __future__ import annotations

from holdfast.engine.row_format import Line
from holdfast.errors import CorruptError
from holdfast.maintenance.backup.format import Manifest, Slice, digest_of, pack_name
from holdfast.maintenance.backup.line_lists import LineLists
from holdfast.maintenance.backup.packs import check_pack
from holdfast.maintenance.backup.repacker import PackMap, pack_map
from holdfast.maintenance.backup.repository import Repository

GROUPS = 256
"""The number of groups of packs whose checks are remembered: by the first byte of their ids."""
CHECKED_BYTES = 8 << 20
"""How many bytes are read in each backup, at least."""
_PERIOD = 30 * 86400 * 10**9
"""In how many nanoseconds all is read, if that is more."""


class ReusedPacks:
    """The packs that a new backup reuses."""

    def __init__(self, repository: Repository) -> None:
        self._repository = repository
        self.lost_lines: set[Line] = set()
        """The lines of which a part cannot be read."""
        self.is_outdated = False
        """Whether the lists themselves cannot be read where they are, or name packs that no line needs any more."""

    async def check(self, base: Manifest, now: int, *, is_all: bool) -> tuple[int, ...]:
        """Check what the last backup refers to, and read some of it, or all. Returns the times of the last checks of
        all groups; 0 for those without packs."""
        places = await pack_map(self._repository)
        ends: dict[bytes, int] = {}
        for layer in base.layers:
            for pack, end in layer.packs:
                for each in places.follow([pack]):
                    if not places.is_moved(each):
                        ends[each] = max(ends.get(each, 1), end if each == pack else 1)
        sizes = {pack: places.sizes.get(pack_name(pack), 0) for pack in ends}
        doubtful = {pack for pack in ends if sizes[pack] < ends[pack]}
        groups: dict[int, list[bytes]] = {}
        for pack in sorted(ends):
            groups.setdefault(int(pack.hex()[:2], 16), []).append(pack)
        before = base.checked or (base.time,) * GROUPS
        checked = {group: before[group] or base.time for group in groups}
        part = min(1.0, max(0, now - base.until) / _PERIOD)
        left = float("inf") if is_all else max(CHECKED_BYTES, sum(sizes.values()) * part)
        for group in sorted(groups, key=lambda each: checked[each]):
            if left <= 0:
                break
            for pack in groups[group]:
                left -= sizes[pack]
                if not await self._is_intact(pack):
                    doubtful.add(pack)
            checked[group] = now
        self.is_outdated = bool(doubtful) or places.is_damaged
        if self.is_outdated or await self._has_losses(base):
            await self._find_lost(base, places, doubtful)
        return tuple(checked.get(group, 0) for group in range(GROUPS))

    async def _has_losses(self, base: Manifest) -> bool:
        """Return whether a part of a pack was lost whose other parts a repair has moved, so that it counts as moved."""
        packs = {pack for layer in base.layers for pack, _ in layer.packs}
        return any(pack in packs for loss in await self._repository.losses() for pack, *_ in loss.slices)

    async def _find_lost(self, base: Manifest, places: PackMap, doubtful: set[bytes]) -> None:
        """Find out which lines need what cannot be read."""
        lost: dict[Slice, bool] = {}

        async def is_lost(part: Slice) -> bool:
            place = places.locate(part)._replace(start=0, size=0)
            if place.pack not in doubtful and pack_name(place.pack) in places.sizes:
                return False
            if place not in lost:
                data = await self._repository.storage.get(pack_name(place.pack), place.offset, place.length)
                lost[place] = data is None or digest_of(data) != place.digest
            return lost[place]

        async for entry in LineLists.of(self._repository, base).walk():
            for part in entry.parts:
                if await is_lost(part):
                    self.lost_lines.add(entry.line)
                    self.is_outdated = True

    async def _is_intact(self, pack: bytes) -> bool:
        name = pack_name(pack)
        try:
            check_pack(name, await self._repository.storage.get(name))
        except CorruptError:
            return False
        return True
