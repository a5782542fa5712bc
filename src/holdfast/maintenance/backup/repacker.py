"""Repacking: what backups need of packs that are mostly garbage is written into new packs.

Manifests are chained by their digests, and never change: they go on naming the old packs. A record says where the
slices of an old pack are now, and whoever does not find the pack looks there.

The record is written before the new packs, so that nobody ever sees a new pack that nothing needs. It counts as soon as
all new packs that it names exist, or were repacked in turn. From then on nothing needs the old pack, and it is deleted
as all others are: in two phases, with the grace period. A backup that is being made cannot need more of the old pack
than the one before it has.

The records of many repackings are merged into one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import TypeAlias

from holdfast.errors import CorruptError
from holdfast.maintenance.backup.format import CREATE_LEVEL, HEADER, NONCE, REPACK_LEVEL, Repack, Slice, pack_name
from holdfast.maintenance.backup.packs import PACK_BYTES, PAGES, PendingSlice
from holdfast.maintenance.backup.repository import Backup, Repository

_Moves: TypeAlias = dict[tuple[int, int, int], Slice]
"""Where the slices of a pack are now, by offset, start and size."""


class PackMap:
    """Says where the content of packs is now, given the records of repacking, and the sizes of all packs by name."""

    def __init__(self, repacks: Iterable[Repack], sizes: Mapping[str, int]) -> None:
        self.sizes = sizes
        self._moved: dict[bytes, _Moves] = {}
        self._missing: dict[bytes, set[bytes]] = {}
        """The packs that are missing, and that others, which are gone, were moved to."""
        found: list[tuple[bytes, _Moves]] = []
        for repack in repacks:
            moved: dict[bytes, _Moves] = {}
            for pack, offset, start, new in repack.slices:
                moved.setdefault(pack, {})[offset, start, new.size] = new
            found += moved.items()
        while True:  # new packs may have been repacked, too
            left = [(pack, moves) for pack, moves in found if pack not in self._moved]
            complete = [(pack, moves) for pack, moves in left if all(map(self._exists, moves.values()))]
            if complete:
                self._moved.update(complete)
            elif not self._rescue(left):
                break

    def _exists(self, part: Slice) -> bool:
        return pack_name(part.pack) in self.sizes or part.pack in self._moved

    def _rescue(self, left: Sequence[tuple[bytes, _Moves]]) -> bool:
        """Find a pack that is gone, and of which new packs are missing, too: what is in the others counts. Returns
        whether there is one."""
        for gone, _ in left:
            if pack_name(gone) not in self.sizes:
                every = [each for pack, other in left if pack == gone for each in other.items()]
                self._moved[gone] = {key: new for key, new in every if self._exists(new)}
                self._missing[gone] = {new.pack for _, new in every if not self._exists(new)}
                return True
        return False

    @property
    def is_damaged(self) -> bool:
        """Whether packs are missing that others were moved to."""
        return bool(self._missing)

    def names(self, packs: Collection[bytes]) -> set[str]:
        """Return the names of the packs that have the content of some packs, or should have it."""
        followed = self.follow(packs)
        missing = {new for pack in followed for new in self._missing.get(pack, ())}
        return {pack_name(each) for each in missing | followed if each not in self._moved}

    def follow(self, packs: Collection[bytes]) -> set[bytes]:
        """Return some packs, and all that their content was moved to, one after another."""
        left, found = {*packs}, set[bytes]()
        while left:
            found |= left
            left = {new.pack for pack in left for new in self._moved.get(pack, {}).values()} - found
        return found

    def is_moved(self, pack: bytes) -> bool:
        """Return whether the content of a pack is in others."""
        return pack in self._moved

    def locate(self, part: Slice) -> Slice:
        """Return where a slice is."""
        while (moved := self._moved.get(part.pack, {}).get((part.offset, part.start, part.size))) is not None:
            part = moved
        return part

    def has_moved(self, repack: Repack) -> bool:
        """Return whether all that a record has is where the records say."""
        return all(pack in self._moved for pack, *_ in repack.slices)

    def merge(self, packs: Collection[bytes]) -> list[tuple[bytes, int, int, Slice]]:
        """Return where the slices of some packs are that were moved, as one record has it, and also those of packs that
        they were in meanwhile: somebody may be about to read them there."""
        return [
            (pack, offset, start, new)
            for pack in sorted(self.follow(packs))
            for (offset, start, _), moved in sorted(self._moved.get(pack, {}).items())
            if pack_name((new := self.locate(moved)).pack) in self.sizes
        ]

    def size(self, packs: Collection[bytes]) -> int:
        """Return how many bytes the packs have that have the content of some packs."""
        return sum(self.sizes.get(name, 0) for name in self.names(packs))


async def pack_map(repository: Repository) -> PackMap:
    """Return where the content of packs is now."""
    repacks = await repository.repacks()
    return PackMap(repacks.values(), await repository.pack_sizes())


class SliceMover:
    """Writes slices of packs into new packs, and the record of it before them."""

    def __init__(self, repository: Repository, now: int, level: int = CREATE_LEVEL) -> None:
        self.where: str = repository.where
        self._repository = repository
        self._now = now
        self._packs: list[tuple[str, bytes]] = []
        self._writer = repository.pack_writer(self, level)
        self.moved: list[tuple[Slice, PendingSlice]] = []

    async def create(self, name: str, data: bytes) -> bool:
        """Take a pack, to be stored later."""
        self._packs.append((name, data))
        return True

    async def add(self, part: Slice, stream: str, data: bytes) -> None:
        """Move a slice, given its content."""
        self.moved.append((part, await self._writer.add(stream, data)))

    async def finish(self) -> set[bytes]:
        """Store the record, and then the packs, first the copies: a record counts as soon as all packs exist. Returns
        their ids."""
        await self._writer.flush()
        if self.moved:
            slices = [(part.pack, part.offset, part.start, new.resolve()) for part, new in self.moved]
            await self._repository.add_repack(Repack(self._now, slices))
        for name, data in sorted(self._packs):
            await self._repository.storage.create(name, data)
        return {info.id for info in self._writer.packs}


class _PackUse:
    """The slices of a pack that backups need, each with the stream that it belongs to."""

    def __init__(self) -> None:
        self.slices: dict[Slice, str] = {}

    def bytes(self) -> float:
        """Return how many bytes of the pack are needed, as far as that is known without reading it: of a block, what
        comes after the last slice that is needed counts as needed."""
        blocks: dict[int, list[Slice]] = {}
        for part in self.slices:
            blocks.setdefault(part.offset, []).append(part)
        needed = 0.0
        for parts in blocks.values():
            size, end = sum(part.size for part in parts), max(part.start + part.size for part in parts)
            needed += min(size, parts[0].length * size / end) if end else 0
        return needed


class Repacker:
    """Repacks a repository."""

    def __init__(self, repository: Repository, max_unused: float, now: int) -> None:
        """Packs of which a part greater than `max_unused` is not needed are repacked."""
        self._repository = repository
        self._max_unused = max_unused
        self._now = now

    async def repack(self, backups: Sequence[Backup], *, dry_run: bool) -> int:
        """Repack, given all backups that there are. Returns how many packs were, or would be."""
        try:
            chosen = await self._choose(backups)
        except CorruptError:
            return 0  # nobody can say what is needed
        if dry_run:
            return len(chosen)
        repacked = 0
        for batch in _batches(chosen):
            repacked += await self._move(batch)
        return repacked

    async def _choose(self, backups: Sequence[Backup]) -> list[_PackUse]:
        """Return the packs that are mostly garbage."""
        places = await pack_map(self._repository)
        used: dict[bytes, _PackUse] = {}
        seen: set[Slice] = set()

        def use(part: Slice, stream: str) -> None:
            if part not in seen:  # backups share most of theirs
                seen.add(part)
                place = places.locate(part)
                used.setdefault(place.pack, _PackUse()).slices[place] = stream

        for backup in backups:
            for part in backup.manifest.pages:
                use(part, PAGES)
            for entry in await self._repository.entries(backup.manifest):
                for chunk in entry.chunks:
                    use(chunk.keys, "index")
                    use(chunk.bodies, "bodies")
        sizes = {pack: places.sizes.get(pack_name(pack), 0) - HEADER - NONCE for pack in used}
        return [
            use
            for pack, use in sorted(used.items())
            if sizes[pack] > 0 and 1 - use.bytes() / sizes[pack] > self._max_unused
        ]

    async def _move(self, packs: Sequence[_PackUse]) -> int:
        """Write the slices of some packs into new ones. A pack with damage stays as it is."""
        mover, count = SliceMover(self._repository, self._now, REPACK_LEVEL), 0
        for pack in packs:
            try:
                pieces = [(part, await self._repository.blocks.read(part)) for part in sorted(pack.slices)]
            except CorruptError:
                continue
            for part, data in pieces:
                await mover.add(part, pack.slices[part], data)
            count += 1
        await mover.finish()
        return count


def _batches(packs: Sequence[_PackUse]) -> Iterator[list[_PackUse]]:
    """Yield packs that are written into about one new pack: those of a record are in memory at once."""
    batch, size = list[_PackUse](), 0.0
    for pack in packs:
        batch.append(pack)
        size += pack.bytes()
        if size >= PACK_BYTES:
            yield batch
            batch, size = [], 0.0
    if batch:
        yield batch
