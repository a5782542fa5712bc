"""The keys of an encrypted store in a repository.

Rows are in packs as the store has them: sealed. Their keys are in *key rings*, objects of their own, so that a key can
be destroyed: `prune` writes the ring anew without it, and deletes the old one. Until then, a record says that it is
destroyed, and nothing uses it any more. So what was erased in the store by its key is erased in all backups. The key of
a line that others share is encrypted anew by an erasure, and is in the ring of the next backup like that: it is lost
only if no ring has it so.

In an encrypted repository, the keys of a tenant are encrypted by the key of the repository, so that a store can be
restored from the repository alone. Otherwise they are as in the store: its master key is needed.
"""

from __future__ import annotations

import secrets
from collections.abc import Collection, Iterable, Sequence, Set
from typing import TYPE_CHECKING

from holdfast.backends.interface import Create, Row, Scan
from holdfast.backends.memory import MemoryBackend
from holdfast.backends.tables import KEYS, Key
from holdfast.engine.engine import Engine
from holdfast.errors import DeniedError
from holdfast.maintenance.backup.format import DESTROYED, KEYRINGS, KINDS, DestroyedKeys, Keyring, LineEntry, Manifest
from holdfast.maintenance.backup.line_lists import LineLists
from holdfast.maintenance.backup.repository import Repository
from holdfast.security.encryption.hidden_names import find_named
from holdfast.security.encryption.key_rows import (
    DATA,
    INDEX,
    NAMES,
    SUBJECT,
    WRAPPING,
    KeyRow,
    destroyed_ids,
)

if TYPE_CHECKING:
    from holdfast.security.encryption.encrypted_rows import EncryptedRows
    from holdfast.security.encryption.provider import KeyProvider

_KEYRING, _DESTROYED = KINDS[KEYRINGS].mark, KINDS[DESTROYED].mark
_MAX_RINGS = 16
"""How many key rings a backup refers to; then they are merged."""


class KeyringReader:
    """Reads the key rings of a store."""

    def __init__(self, repository: Repository, store: str) -> None:
        self._repository = repository
        self._store = store

    async def destroyed(self) -> set[bytes]:
        """Return the ids of keys that are recorded as destroyed."""
        found: set[bytes] = set()
        for info in await self._repository.storage.list_objects(f"{DESTROYED}/{self._store}"):
            record = await self._repository.read_object(_DESTROYED, info.name, DestroyedKeys)
            found.update(record.ids)
        return found

    async def rows(self, ring: str) -> list[KeyRow]:
        """Return the keys in a ring. `CorruptError` if it is gone."""
        names = await self.names(ring)
        name = names[-1] if names else f"{KEYRINGS}/{self._store}/{ring}/0"
        record = await self._repository.read_object(_KEYRING, name, Keyring)
        return [KeyRow(*row) for row in record.rows]

    async def names(self, ring: str) -> list[str]:
        """Return the objects of a ring, of which the last one is in use."""
        found = await self._repository.storage.list_objects(f"{KEYRINGS}/{self._store}/{ring}")
        return sorted((info.name for info in found), key=lambda name: int(name.rpartition("/")[2]))

    async def rings(self) -> list[str]:
        """Return the ids of all rings."""
        found = await self._repository.storage.list_objects(f"{KEYRINGS}/{self._store}")
        return sorted({info.name.split("/")[2] for info in found})


class KeyringWriter:
    """Writes the keys of one store into key rings."""

    def __init__(self, engine: Engine, repository: Repository, store: str) -> None:
        from holdfast.security.encryption.encrypted_rows import EncryptedRows

        rows = engine.context.rows
        self._rows = rows if isinstance(rows, EncryptedRows) else None
        self._engine = engine
        self._repository = repository
        self._store = store
        self._reader = KeyringReader(repository, store)
        self._destroyed: set[bytes] = set()
        """Keys that were destroyed in the store, and are not recorded yet."""

    async def record_destroyed(self) -> None:
        """Record in the repository which keys were destroyed in the store, once the backup exists: it has the keys of
        lines that others share, and that a destroyed one encrypted before."""
        if self._destroyed:
            name = f"{DESTROYED}/{self._store}/{secrets.token_hex(8)}"
            record = DestroyedKeys(self._engine.context.clock(), sorted(self._destroyed))
            await self._repository.create_object(_DESTROYED, name, record)

    async def write(
        self, stored: Sequence[Row], before: Sequence[str], tenants: Set[str], lists: LineLists
    ) -> tuple[str, ...]:
        """Write new rows of the table `keys` into a ring. Returns the rings that a backup of lines needs, given those
        of the one before it. The lists are only read if keys were destroyed, or there are many rings."""
        rings = tuple(before)
        in_store = await destroyed_ids(self._engine, tenants)
        self._destroyed = in_store - await self._reader.destroyed()
        entries = {}
        if self._destroyed or len(rings) >= _MAX_RINGS:
            entries = {(entry.tenant, entry.name): entry.keys async for entry in lists.walk()}
        needed = {id for keys in entries.values() for id in keys}
        if self._destroyed:
            known = [row for ring in rings for row in await self._reader.rows(ring)]
            lost = UsableKeys(known, self._destroyed).lost & needed
            lines = [line for line, keys in entries.items() if lost & {*keys}]
            stored = [*stored, *await _live_rows(self._engine, lines)]
        # Where names are hidden, the checksums of these rows cover the names. They were verified when they were read.
        hidden = self._rows is not None and self._rows.hides_names
        rows = [await self._portable(KeyRow.unchecked(row) if hidden else KeyRow.of(row)) for row in stored]
        rows += await self._subject_rows(rows)
        if len(rings) >= _MAX_RINGS:
            known = [row for ring in rings for row in await self._reader.rows(ring)]
            known = [row for row in known if row.id in needed or row.kind == SUBJECT]
            rows, rings = [*{(row.key, row.id): row for row in (*known, *rows)}.values()], ()
        if not rows:
            return rings
        ring = secrets.token_hex(8)
        await self._repository.create_object(_KEYRING, f"{KEYRINGS}/{self._store}/{ring}/0", Keyring(list(rows)))
        return (*rings, ring)

    async def _subject_rows(self, rows: Sequence[KeyRow]) -> list[KeyRow]:
        """Return the keys of persons that encrypt keys of lines."""
        found: dict[bytes, KeyRow] = {}
        for row in rows:
            if self._rows is not None and row.subject:
                keys = self._rows.store_keys
                tenant = await keys.require_tenant(row.tenant)
                subject = await keys.subjects.load(row.tenant, row.subject, row.number, tenant)
                if subject is not None:
                    found[subject.row.id] = subject.row
        return [*found.values()]

    async def _portable(self, row: KeyRow) -> KeyRow:
        """Return a key as it is stored in a ring."""
        key = self._repository.key
        if row.kind in (DATA, INDEX) or key is None or self._rows is None:
            return row
        content, provider = await self._rows.store_keys.unwrap(row), key.keyring_keys()
        return row._replace(wrapped_by=provider.key_id, wrapped=provider.wrap(content, row.context))


async def _live_rows(engine: Engine, lines: Iterable[tuple[str, str]]) -> list[Row]:
    """Return the rows of the keys that lines have in a store now, by their stored names, as they are stored."""
    scans = [Scan(KEYS, (*line, DATA)) for line in dict.fromkeys(lines)]
    named = find_named(engine.context.stored)
    stored = engine.context.stored if named is None else named.inner
    return [row for rows in await stored.read(scans) for row in rows] if scans else []


async def shred_keys(repository: Repository, store: str) -> int:
    """Remove destroyed keys from the key rings of a store for good. Returns how many there were."""
    reader = KeyringReader(repository, store)
    destroyed = await reader.destroyed()
    if not destroyed:
        return 0
    rings = {ring: await reader.rows(ring) for ring in await reader.rings()}
    usable = {row.id: row for row in UsableKeys([row for rows in rings.values() for row in rows], destroyed).rows}
    count, wrappers = 0, {id.hex() for id in destroyed}
    for ring, rows in rings.items():
        names = await reader.names(ring)
        # What a destroyed key encrypts is useless; if another key encrypts it now, it is replaced by that. If not, it
        # stays, and says that the line is erased.
        left = [usable.get(row.id, row) if row.wrapper in wrappers else row for row in rows if row.id not in destroyed]
        if left != rows:
            count += sum(row.id in destroyed for row in rows)
            number = int(names[-1].rpartition("/")[2]) + 1
            name = f"{KEYRINGS}/{store}/{ring}/{number}"
            await repository.create_object(_KEYRING, name, Keyring(list(left)))
            names.append(name)
        await repository.storage.delete(names[:-1])
    return count


async def sweep_rings(repository: Repository, store: str) -> int:
    """Delete key rings that no backup of a store needs, unless one is being made. Returns how many there were."""
    rings = await KeyringReader(repository, store).rings()
    locks, _ = await repository.locks()
    if not rings or any(lock.store == store for lock in locks):
        return 0  # one of them may have just been written
    backups, unreadable = await repository.survey(store)
    if unreadable:
        return 0
    needed = {ring for backup in backups for ring in backup.manifest.keyrings}
    unused = [ring for ring in rings if ring not in needed]
    for ring in unused:
        await repository.storage.delete(await KeyringReader(repository, store).names(ring))
    return len(unused)


class UsableKeys:
    """Some keys, without those that were destroyed."""

    def __init__(self, rows: Iterable[KeyRow], destroyed: Collection[bytes]) -> None:
        every, wrappers = list(rows), {id.hex() for id in destroyed}
        self.rows: list[KeyRow] = [row for row in every if row.id not in destroyed and row.wrapper not in wrappers]
        self.ids: set[bytes] = {row.id for row in self.rows}
        self.lost: set[bytes] = {*destroyed, *(row.id for row in every)} - self.ids
        """The ids of the others, if no other row has the same key."""


class BackupKeys:
    """The keys of one backup: which of them can be used, and the codec of its rows."""

    def __init__(self, repository: Repository, keys: UsableKeys) -> None:
        self._repository = repository
        self._usable = keys.rows
        self._ids = keys.ids
        self._data = {row.id for row in self._usable if row.kind == DATA}
        self.hides_names: bool = any(row.kind == NAMES for row in self._usable)
        """Whether the names of lines are hidden."""
        self.destroyed: set[bytes] = keys.lost

    def is_erased(self, entry: LineEntry) -> bool:
        """Return whether a line cannot be read any more because its key was destroyed."""
        if entry.name:
            return not self.destroyed.isdisjoint(entry.keys)
        # Those of the settings of a tenant are the keys of the tenant, too.
        return bool(entry.keys) and self._data.isdisjoint(entry.keys)

    def is_missing(self, entry: LineEntry) -> bool:
        """Return whether a key of a line is not there, although nobody destroyed it."""
        return not self.destroyed.issuperset(each for each in entry.keys if each not in self._ids)

    async def codec(self, entries: Iterable[LineEntry], like: Engine) -> EncryptedRows:
        """Return the codec of the rows of some lines.

        `DeniedError` if the master key of the store is needed for it, and `like`, which is open, does not have it.
        """
        from holdfast.security.encryption.encrypted_rows import EncryptedRows
        from holdfast.security.encryption.settings import Encryption

        rows = like.context.rows
        provider: KeyProvider | None = None
        if self._repository.key is not None:
            provider = self._repository.key.keyring_keys()
        elif isinstance(rows, EncryptedRows):
            provider = rows.store_keys.memory.provider
        if provider is None:
            raise DeniedError(
                "the backup is of an encrypted store, and the store's master key is needed to read it",
                where=self._repository.where,
                hint="Open the store with encryption=, or set HOLDFAST_ENCRYPTION",
                code="key-missing",
            )
        latest = self._latest(entries)
        memory = MemoryBackend()
        if self.hides_names:
            encryption = Encryption(provider, hide_names=True)
        else:
            encryption = Encryption(provider, "turning-on")
        _, codec = EncryptedRows(encryption).bind(memory)
        assert isinstance(codec, EncryptedRows)  # noqa: S101 - see above
        codec.store_keys.memory.is_listed = False
        # First the keys of tenants, then those of persons, then those of lines, which need the former to be opened.
        ranked = sorted(latest.values(), key=lambda row: (row.kind == DATA, row.kind == SUBJECT))
        for row in ranked:
            await _add_row(codec, row)
        return codec

    def _latest(self, entries: Iterable[LineEntry]) -> dict[Key, KeyRow]:
        """Return the keys that some lines need. A line that was deleted and created again, or that came back, has
        another key of the same number: it has the later one here."""
        needed = {id for entry in entries for id in entry.keys}
        return {row.key: row for row in self._usable if row.kind != DATA or row.id in needed}

    def replaced(self, entries: Sequence[LineEntry]) -> list[LineEntry]:
        """Return those of some lines of which another key has the number of theirs: they need codecs of their own."""
        found = {row.id for row in self._latest(entries).values()}
        return [entry for entry in entries if any(id in self._data and id not in found for id in entry.keys)]

    async def with_names(self, entries: Sequence[LineEntry], like: Engine) -> list[LineEntry]:
        """Return lines of a backup under their names. Those whose name cannot be known stay under the stored one."""
        if not self.hides_names:
            return [*entries]
        named = find_named((await self.codec(entries, like)).store_keys.backend)
        assert named is not None  # noqa: S101 - see above
        names = await named.names([(entry.tenant, entry.name) for entry in entries])
        return [entry.with_name(names[entry.tenant, entry.name]) for entry in entries]


async def _add_row(codec: EncryptedRows, row: KeyRow) -> None:
    """Add a key of a ring to those in memory. In the ring, the key of a line is under the stored name."""
    keys = codec.store_keys
    if codec.hides_names and row.kind == DATA and row.line:
        names = await keys.open_names([row], await keys.require_tenant(row.tenant))
        row = row._replace(line=names.get(row.line, row.line))
    await keys.backend.apply([Create(KEYS, row.stored())])


async def backup_keys(repository: Repository, manifests: Sequence[Manifest], like: Engine) -> BackupKeys | None:
    """Return the keys of backups of a store, the oldest first; None if it is not encrypted. Those that were destroyed
    in the store that is open count as destroyed, too."""
    rings = list(dict.fromkeys(ring for manifest in manifests for ring in manifest.keyrings))
    if not rings:
        return None
    reader = KeyringReader(repository, manifests[0].store)
    rows = [row for ring in rings for row in await reader.rows(ring)]
    destroyed = await reader.destroyed()
    destroyed |= await destroyed_ids(like, {row.tenant for row in rows})
    keys = UsableKeys(rows, destroyed)
    if keys.lost - destroyed:
        # A later backup may have them encrypted by another key; or the store, if there was none since.
        later = [row for ring in await reader.rings() if ring not in rings for row in await reader.rows(ring)]
        lost = [row for row in rows if row.id in keys.lost and row.kind == DATA]
        wrapping = {row.id.hex() for row in rows if row.kind == WRAPPING}
        if like.context.rows.hides_columns:
            live = map(KeyRow.unchecked, await _live_rows(like, [(row.tenant, row.line) for row in lost]))
            later += [row for row in live if row.wrapped_by in wrapping]
        keys = UsableKeys([*rows, *(row for row in later if row.id in keys.lost)], destroyed)
    return BackupKeys(repository, keys)
