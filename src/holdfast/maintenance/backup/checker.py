"""Verifying backups: every object, every block, and if asked every state."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress

import msgspec

from holdfast._fields import Local, computed
from holdfast.backends.runtime.drivers import Pause
from holdfast.engine.engine import Engine
from holdfast.engine.integrity.findings import VerifyLevel
from holdfast.engine.integrity.verify import verify as verify_line
from holdfast.engine.namespaces import short_name
from holdfast.engine.row_format import Line
from holdfast.engine.types import Progress
from holdfast.errors import CorruptError, DeniedError, NotFoundError, UnsupportedError
from holdfast.maintenance.backup.format import (
    BACKUPS,
    COPIES,
    KEYS,
    KINDS,
    NOTICES,
    PACKS,
    REPOSITORY,
    WITHDRAWALS,
    Kind,
    LineEntry,
    copy_name,
    pack_name,
)
from holdfast.maintenance.backup.keyring import BackupKeys, backup_keys
from holdfast.maintenance.backup.packs import check_pack
from holdfast.maintenance.backup.reader import backup_engine, loader_of
from holdfast.maintenance.backup.records import list_records, noticed_names
from holdfast.maintenance.backup.repacker import PackMap, pack_map
from holdfast.maintenance.backup.repository import Backup, OpenLock, Repository
from holdfast.maintenance.backup.store_record import find_loss, own_chains
from holdfast.maintenance.progress import report_each

_NO_BACKUP = "no-backup"

_DAMAGE = (CorruptError, UnsupportedError, NotFoundError)
_PAUSE = 0.3
_AFFECTED = 20
"""How many steps of a damaged line are named."""


class BackupFinding(msgspec.Struct, frozen=True):
    """A problem of a repository: the backup, the thread and the positions of its steps that it concerns, if any."""

    code: str
    what: str
    where: str
    backup: str = ""
    thread: str = ""
    steps: tuple[str, ...] = ()


class RepositoryReport(msgspec.Struct, frozen=True):
    """The result of verifying a repository: what was checked, the findings, locks that are open, and the names of lines
    that nobody can read any more because their key was destroyed, which is no damage, or because they were lost, which
    a repair has said already."""

    backups: int
    packs: int
    lines: int
    bytes: int
    findings: tuple[BackupFinding, ...]
    locks: Local[tuple[OpenLock, ...]]
    seconds: float
    erased: tuple[str, ...] = ()
    lost: tuple[str, ...] = ()

    @property
    @computed
    def ok(self) -> bool:
        """Whether there are no findings."""
        return not self.findings

    @property
    def is_damaged(self) -> bool:
        """Whether something is not as it was written. A repository without a backup is not damaged."""
        return any(each.code != _NO_BACKUP for each in self.findings)


async def find_problems(repository: Repository, kind: Kind, name: str) -> dict[str, str]:
    """Read a small object, and its copy, if it is stored twice. Returns what is wrong with each, or nothing, by name;
    an empty result if neither exists."""
    places = (name, copy_name(name)) if kind.is_copied else (name,)
    stored = {place: await repository.storage.get(place) for place in places}
    if None in stored.values() and any(stored.values()):
        await Pause(_PAUSE)  # whoever created the one may be about to create the other, or to delete it
        stored = {place: await repository.storage.get(place) for place in places}
    found: dict[str, str] = {}
    for place, data in stored.items():
        try:
            if data is None:
                found[place] = "one of the two copies of an object is missing"
            else:
                repository.decode_object(kind.mark, name, data, kind.type, place)
                found[place] = ""
        except _DAMAGE as error:
            found[place] = error.what
    return {} if all(data is None for data in stored.values()) else found


async def missing_records(repository: Repository, backups: Sequence[Backup]) -> dict[str, str]:
    """Return the names of records and keys that notices and the newest backups name, and that are not there, and the
    backup that names each, if any."""
    newest = {each.manifest.store: each for each in backups}
    expected = {name: each.id for each in newest.values() for name in each.manifest.records}
    expected |= dict.fromkeys(await noticed_names(repository, NOTICES), "")
    known = {*await list_records(repository), *await noticed_names(repository, WITHDRAWALS)}
    return {name: backup for name, backup in expected.items() if name not in known}


class RepositoryChecker:
    """Verifies backups of a repository. Needs no store, except to know how its rows are stored."""

    def __init__(self, repository: Repository, like: Engine, progress: Progress | None) -> None:
        self._repository = repository
        self._like = like
        self._progress = progress
        self._found: list[BackupFinding] = []
        self._lines: set[LineEntry] = set()
        self._erased: set[str] = set()
        self._lost: set[str] = set()
        self._lost_slices: set[tuple[bytes, int, int]] = set()
        self._places = PackMap((), {})
        self._bytes = 0

    async def check(
        self, store: str | None, only: Backup | None, level: VerifyLevel | None, home: str = ""
    ) -> RepositoryReport:
        """Verify all backups, those of a store, or one. With a level, every line is verified as in a store. If the
        store that is open, for the tenant `home`, has backups here, they are compared with its own record."""
        start = time.monotonic()
        self._places = await pack_map(self._repository)
        self._lost_slices = {each for loss in await self._repository.losses() for each in loss.slices}
        await self._own_record(home)
        stores = await self._repository.stores() if store is None else [store]
        backups = [only] if only is not None else [each for name in stores for each in await self._chain(name)]
        packs = self._places.names({pack for each in backups for pack in await self._packs_of(each)})
        packs -= {pack_name(pack) for pack, *_ in self._lost_slices}
        if store is None and only is None:
            packs.update(info.name for info in await self._repository.storage.list_objects(PACKS))
        await self._packs(sorted(packs))
        for backup in report_each(backups, self._progress, lambda each: each.id):
            await self._backup(backup, level)
        if not backups and not self._found:
            self._add(_NO_BACKUP, "there is no backup that could be restored", self._repository.where)
        if store is None and only is None:
            await self._page_copies(backups)
            await self._objects()
            await self._records(backups)
        locks, _ = await self._repository.locks()
        return RepositoryReport(
            len(backups),
            len(packs),
            len(self._lines),
            self._bytes,
            tuple(self._found),
            tuple(locks),
            time.monotonic() - start,
            tuple(sorted(self._erased)),
            tuple(sorted(self._lost)),
        )

    def _add(
        self, code: str, what: str, where: str, backup: str = "", thread: str = "", steps: Sequence[str] = ()
    ) -> None:
        self._found.append(BackupFinding(code, what, where, backup, thread, tuple(steps)))

    async def _own_record(self, home: str) -> None:
        for own in await own_chains(self._like, home):
            try:
                problem = await find_loss(self._like, home, self._repository, own)
            except _DAMAGE:
                continue  # it is found below
            if problem is not None:
                self._add(problem.code, problem.what, problem.where)

    async def _objects(self) -> None:
        """Read all small objects, and the copies of those that are stored twice."""
        for folder, kind in KINDS.items():
            listed = await self._repository.storage.list_objects(folder)
            for name in [REPOSITORY] if folder == REPOSITORY else [info.name for info in listed]:
                problems = await find_problems(self._repository, kind, name)
                if all(problems.values()) and folder in (BACKUPS, KEYS):
                    continue  # it is found elsewhere
                code = "damaged-object" if all(problems.values()) else "damaged-copy"
                for place, what in problems.items():
                    if what:
                        self._add(code, what, f"{self._repository.where}/{place}")
        if self._repository.key is not None:
            from holdfast.maintenance.backup.repository_key import damaged_keys

            for each in await damaged_keys(self._repository.storage, self._repository.info):
                self._add("damaged-key", f"a master key of the repository cannot be read: {each.what}", each.where)

    async def _page_copies(self, backups: Sequence[Backup]) -> None:
        """Look for the copies of the lists of lines."""
        packs = {self._places.locate(part).pack for each in backups for part in each.manifest.pages}
        found = {info.name for info in await self._repository.storage.list_objects(f"{COPIES}/{PACKS}")}
        for name in sorted({copy_name(pack_name(pack)) for pack in packs} - found):
            self._add("damaged-copy", "the copy of a list of threads is missing", f"{self._repository.where}/{name}")

    async def _records(self, backups: Sequence[Backup]) -> None:
        """Compare the records and keys with what notices and the newest backups name."""
        for name, backup in sorted((await missing_records(self._repository, backups)).items()):
            what = "a suspension, a pin or a master key is missing, and nobody removed it with Holdfast"
            self._add("missing-record", what, f"{self._repository.where}/{name}", backup)

    async def _removed(self, store: str) -> dict[int, bytes]:
        found: dict[int, bytes] = {}
        for number in await self._repository.removed_numbers(store):
            with suppress(*_DAMAGE):  # what is damaged is found below
                removed = await self._repository.find_removed(store, number)
                found |= {} if removed is None or not removed.digest else {number: removed.digest}
        return found

    async def _chain(self, store: str) -> list[Backup]:
        """Check that each manifest names the one before it. Returns those that can be read."""
        digests = await self._removed(store)
        removed = await self._repository.removed_numbers(store)
        found: list[Backup] = []
        numbers = await self._repository.numbers(store)
        for number in numbers:
            try:
                backup = await self._repository.load(store, number)
            except _DAMAGE as error:
                self._add("damaged-manifest", error.what, error.where, f"{store[:8]}.{number}")
                continue
            digests[number] = backup.digest
            found.append(backup)
        for backup in found:
            before = backup.manifest.number - 1
            # One after a manifest that could not be read may not know its digest.
            parent = backup.manifest.parent or digests.get(before)
            if before in digests and digests[before] != parent:
                self._add("broken-chain", "it does not follow the backup before it", self._repository.where, backup.id)
            elif before and before not in digests and before not in numbers and before not in removed:
                what = f"backup {store[:8]}.{before} is missing, and was not removed by pruning"
                self._add("missing-backup", what, self._repository.where, backup.id)
        return [each for each in found if not each.manifest.abandoned]

    async def _packs_of(self, backup: Backup) -> set[bytes]:
        """Return the packs that a backup names: only those of its lists, if these cannot be read."""
        try:
            return await self._repository.packs_of(backup.manifest)
        except _DAMAGE:
            return {part.pack for part in backup.manifest.pages}

    async def _packs(self, names: Sequence[str]) -> None:
        """Read packs, and compare each with its name."""
        for name in report_each(names, self._progress, str):
            data = await self._repository.storage.get(name)
            try:
                self._bytes += len(data or b"")
                check_pack(name, data)
            except _DAMAGE as error:
                self._add("damaged-pack", error.what, f"{self._repository.where}/{name}")

    async def _backup(self, backup: Backup, level: VerifyLevel | None) -> None:
        lines: dict[Line, LineEntry] = {}
        for part in backup.manifest.pages:
            try:
                lines.update((entry.line, entry) for entry in await self._repository.page(part))
            except _DAMAGE as error:
                self._add("damaged-lines", f"the list of threads cannot be read: {error.what}", error.where, backup.id)
        entries = [lines[line] for line in sorted(lines) if not lines[line].is_removed]
        keys = await self._keys(backup)
        engine = None
        if keys is not None:
            with suppress(*((DeniedError,) if level is None else ())):  # checking needs no key, hidden names stay so
                entries = await keys.with_names(entries, self._like)
        if level is not None:
            engine = await backup_engine(self._repository, backup.id, entries, self._like, keys=keys)
        for entry in entries:
            if entry in self._lines:
                continue
            self._lines.add(entry)
            erased = keys is not None and keys.is_erased(entry)
            if erased:
                self._erased.add(short_name(entry.name))
            elif keys is not None and keys.is_missing(entry):
                what = "the key of the thread is not in the repository, and was not destroyed"
                self._add("missing-key", what, self._repository.where, backup.id, short_name(entry.name))
                continue
            if not self._lost_slices.isdisjoint((part.pack, part.offset, part.start) for part in entry.parts):
                self._lost.add(short_name(entry.name))
                continue
            try:
                await loader_of(self._repository).rows(entry.stored_line, entry.chunks)
            except _DAMAGE as error:
                steps = await self._affected(entry)
                self._add("damaged-thread", error.what, error.where, backup.id, short_name(entry.name), steps)
                continue
            if engine is not None and level is not None and entry.columns and not erased:
                report = await verify_line(engine.context, entry.line, level)
                for finding in report.findings:
                    self._add(finding.code.value, str(finding), entry.name, backup.id, short_name(entry.name))

    async def _keys(self, backup: Backup) -> BackupKeys | None:
        try:
            return await backup_keys(self._repository, [backup.manifest], self._like)
        except _DAMAGE as error:
            self._add("damaged-keys", error.what, error.where, backup.id)
            return None

    async def _affected(self, entry: LineEntry) -> list[str]:
        """Return the steps of a line that are in chunks that cannot be read, as far as it is known."""
        affected: list[str] = []
        for chunk in entry.chunks:
            try:
                index = await loader_of(self._repository).index(entry.stored_line, chunk)
            except _DAMAGE:
                affected.append("unknown steps: their list is damaged")
                continue
            try:
                await self._repository.blocks.read(chunk.bodies)
            except _DAMAGE:
                steps = [key for name, rows in index.rows if name == "steps" for key, _, _ in rows]
                affected += [f"branch {branch}, step {seq}" for branch, seq in steps]
        more = [f"and {len(affected) - _AFFECTED} more"] if len(affected) > _AFFECTED else []
        return affected[:_AFFECTED] + more
