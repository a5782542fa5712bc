"""The keys of an encrypted store: `store.encryption_keys.list()`, `.rotate()`, `.reencrypt()` and the rest."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.backends.runtime.drivers import AsyncApi, SyncApi, declare, operation
from holdfast.security.handle import StoreHandle, owner_handle

if TYPE_CHECKING:
    from holdfast.engine.types import Progress
    from holdfast.maintenance.keys.records import KeyCheck, KeyInfo
    from holdfast.maintenance.keys.reencryption import ReencryptReport
    from holdfast.maintenance.keys.rotation import TenantKeyring
    from holdfast.time_parser import Duration


@declare(confirm=True, not_in_scripts="Keys are the host's.")
class EncryptionKeysOperations:
    """Operations on the keys of a tenant. `EncryptionKeys` and `AsyncEncryptionKeys` have these as methods.

    All raise `ConfigError` with the code `not-encrypted` if the store is open without encryption.
    """

    def __init__(self, handle: StoreHandle) -> None:
        self._handle = owner_handle(handle)

    @operation
    async def list(self) -> list[KeyInfo]:
        """List the keys of the tenant, and how many threads and other lines each is for."""
        return await self._keyring().list_keys()

    @operation(changes=True)
    async def rotate(self) -> KeyInfo:
        """Create a new key, and encrypt the others with the provider's current master key.

        From now on a thread gets a new key when something is saved in it. `reencrypt` does all of them.
        """
        return await self._keyring().rotate()

    @operation(changes=True)
    async def reencrypt(self, *, progress: Progress | None = None) -> ReencryptReport:
        """Encrypt everything that older keys encrypt with the newest; and delete the older keys of threads.

        If the store is open with `Encryption(mode="turning-on")` or `"turning-off"`, encrypt or decrypt everything.
        Readers and writers can continue meanwhile. If it is interrupted and started again, it resumes.
        """
        from holdfast.maintenance.keys.reencryption import Reencryption

        return await Reencryption(self._handle.engine, self._handle.tenant, progress).run()

    @operation(changes=True)
    async def destroy(self, id: str, *, wait: Duration = "7d") -> KeyInfo:
        """Mark a key to be destroyed; called again after `wait`, of 7 days or more, destroy it.

        `ConflictError` with the code `key-in-use` if anything is still encrypted with it.
        """
        return await self._keyring().destroy(id, wait)

    @operation(changes=True)
    async def cancel(self, id: str) -> KeyInfo:
        """Keep a key that was to be destroyed."""
        return await self._keyring().cancel(id)

    @operation
    async def check(self) -> KeyCheck:
        """Decrypt every key, those of threads too."""
        return await self._keyring().check()

    def _keyring(self) -> TenantKeyring:
        from holdfast.maintenance.keys.rotation import TenantKeyring

        return TenantKeyring(self._handle.engine, self._handle.tenant)


class EncryptionKeys(SyncApi, EncryptionKeysOperations):
    """The keys of a `Store`."""


class AsyncEncryptionKeys(AsyncApi, EncryptionKeysOperations):
    """The keys of an `AsyncStore`: operations are awaited."""
