"""The key of an encrypted repository. It is in the repository, encrypted by one or more master keys, which are not."""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from datetime import datetime
from functools import partial

import msgspec

from holdfast.backends.interface import BlockingCall
from holdfast.engine.types import to_datetime
from holdfast.errors import ConfigError, CorruptError, DeniedError, UnsupportedError
from holdfast.maintenance.backup.format import KEYS, KINDS, REPOSITORY, ObjectCodec, RepositoryInfo, WrappedKey
from holdfast.maintenance.backup.storage import RepositoryStorage
from holdfast.security.encryption.cipher import Cipher, derive, new_key
from holdfast.security.encryption.provider import KeyProvider, LocalKeys
from holdfast.security.encryption.settings import provider_for

_KEY = KINDS[KEYS].mark


class RepositoryKeyInfo(msgspec.Struct, frozen=True):
    """A master key that opens a repository: its id, and since when; and the name of the object."""

    master: str
    created: datetime
    name: str


class RepositoryKey:
    """The key of one repository, decrypted."""

    def __init__(self, key: bytes) -> None:
        self._key = key
        self.cipher: Cipher = Cipher(key)

    def keyring_keys(self) -> LocalKeys:
        """Return the master key of the key rings: with it, the keys of an encrypted store can be restored from the
        repository alone."""
        return LocalKeys(derive(self._key, b"keyring 1"))

    def mac(self, info: RepositoryInfo) -> bytes:
        """Return the keyed digest of what says what a repository is."""
        return self.cipher.digest(f"{info.id} {info.created}".encode())

    async def wrap(self, storage: RepositoryStorage, info: RepositoryInfo, keys: KeyProvider) -> tuple[str, str]:
        """Store the key once more, encrypted by another master key. Returns the id of that, and the object's name."""
        wrap: BlockingCall[tuple[str, bytes]] = BlockingCall(
            lambda: (keys.key_id, keys.wrap(self._key, _context(info)))
        )
        master, wrapped = await wrap
        name = f"{KEYS}/{secrets.token_hex(8)}"
        record = WrappedKey(master, wrapped, time.time_ns())
        await storage.create(name, ObjectCodec(info.id).encode(_KEY, name, record))
        return master, name


def provider_of(keys: KeyProvider | str) -> KeyProvider:
    """Return the provider that a caller names."""
    if isinstance(keys, KeyProvider):
        return keys
    if not isinstance(keys, str):
        raise ConfigError(f"keys must be a provider of keys or its name, not {type(keys).__name__}")
    return provider_for(keys)


async def create_key(storage: RepositoryStorage, info: RepositoryInfo, keys: KeyProvider) -> RepositoryInfo:
    """Create the key of a new repository, and return what says so."""
    key = RepositoryKey(new_key())
    await key.wrap(storage, info, keys)
    return RepositoryInfo(info.id, info.created, key.cipher.key_id, key.mac(info))


async def open_key(storage: RepositoryStorage, info: RepositoryInfo, keys: KeyProvider | None) -> RepositoryKey | None:
    """Return the key of a repository; None if it is not encrypted.

    `DeniedError` with the code `key-missing` or `key-wrong`; `ConfigError` if there is a key, and it is not encrypted.
    """
    if not info.key:
        if keys is not None:
            raise ConfigError(
                "the repository is not encrypted",
                where=storage.where,
                hint="Name no key; or start another repository, which is encrypted from its first backup on",
                code="not-encrypted",
            )
        return None
    if keys is None:
        raise DeniedError(
            "the repository is encrypted, and no key is given",
            where=storage.where,
            hint="Name where its key is: keys=, --keys or HOLDFAST_BACKUP_KEYS",
            code="key-missing",
        )
    found, damaged = await _load(storage, info)
    masters: list[str] = []
    for _, record in found:
        try:
            unwrap: BlockingCall[bytes] = BlockingCall(
                partial(keys.unwrap, record.wrapped, record.master, _context(info))
            )
            key = RepositoryKey(await unwrap)
        except DeniedError as error:
            if error.code != "key-wrong":
                raise
            masters.append(record.master)
            continue
        if key.cipher.key_id == info.key:
            if key.mac(info) != info.mac:
                raise CorruptError(
                    "the repository does not match its own description",
                    where=f"{storage.where}/{REPOSITORY}",
                    code="tampered",
                )
            return key
    if damaged:
        raise damaged[0]
    wanted, existing = " or ".join(dict.fromkeys(masters)), ", ".join(keys.key_ids())
    raise DeniedError(
        f"the repository needs master key {wanted}, and there is {existing}"
        if wanted
        else "the repository is encrypted, and the objects with its key are lost",
        where=storage.where,
        hint="Name the key that it was created with, or a recovery key that was added"
        if wanted
        else f"Put back {KEYS}/ from a copy of the repository",
        code="key-wrong",
    )


async def list_keys(storage: RepositoryStorage, info: RepositoryInfo) -> Sequence[RepositoryKeyInfo]:
    """Return the master keys that open a repository. `CorruptError` if one of them is damaged."""
    found, damaged = await _load(storage, info)
    if damaged:
        raise damaged[0]
    return [RepositoryKeyInfo(record.master, to_datetime(record.created), name) for name, record in found]


async def damaged_keys(storage: RepositoryStorage, info: RepositoryInfo) -> Sequence[CorruptError | UnsupportedError]:
    """Return the errors of master keys that cannot be read."""
    return (await _load(storage, info))[1]


async def _load(
    storage: RepositoryStorage, info: RepositoryInfo
) -> tuple[list[tuple[str, WrappedKey]], list[CorruptError | UnsupportedError]]:
    found, damaged = list[tuple[str, WrappedKey]](), list[CorruptError | UnsupportedError]()
    for each in await storage.list_objects(KEYS):
        decode = partial(
            ObjectCodec(info.id).decode, _KEY, each.name, type=WrappedKey, where=f"{storage.where}/{each.name}"
        )
        try:
            record = await storage.read(each.name, decode)
            found += [] if record is None else [(each.name, record)]
        except (CorruptError, UnsupportedError) as error:
            damaged.append(error)
    return found, damaged


def require_key(key: RepositoryKey | None, where: str) -> RepositoryKey:
    """Return the key of a repository. `ConfigError` if it is not encrypted, and has none."""
    if key is None:
        raise ConfigError(
            "the repository is not encrypted",
            where=where,
            hint="Start another repository, which is encrypted from its first backup on",
            code="not-encrypted",
        )
    return key


def _context(info: RepositoryInfo) -> dict[str, str]:
    return {"purpose": "holdfast-backups", "repository": info.id}
