"""Where the keys come from that encrypt all others: the interface, and providers for local ones.

A store contains its own keys, encrypted by a *master key*, which is not in it. A provider encrypts and decrypts them;
it is asked once for each tenant and process, and again when what it returned is too old.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import os
import socket
import stat
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from msgspec.msgpack import encode

from holdfast._lazy import missing_extra
from holdfast.errors import ConfigError, CorruptError, DeniedError, TransientError
from holdfast.security.encryption.cipher import KEY_SIZE, Cipher, new_key

VARIABLE = "HOLDFAST_KEY"

_T = TypeVar("_T")
_UNREACHABLE = (ConnectionError, TimeoutError, socket.gaierror)


class KeyProvider(ABC):
    """Encrypts and decrypts the keys of a store with master keys.

    Methods may block. Each raises `DeniedError` with the code `key-missing` if there is no master key at all, and
    `TransientError` if the service cannot be reached; a `ConnectionError` or `TimeoutError` becomes one.
    `holdfast.testing.KeyProviderSuite` checks an implementation.
    """

    @property
    @abstractmethod
    def key_id(self) -> str:
        """The id of the master key that encrypts new keys: not secret, and at most 500 characters."""

    @abstractmethod
    def wrap(self, key: bytes, context: Mapping[str, str]) -> bytes:
        """Encrypt a key with that master key. The context, of short texts, is needed to decrypt it."""

    @abstractmethod
    def unwrap(self, wrapped: bytes, key_id: str, context: Mapping[str, str]) -> bytes:
        """Decrypt a key that the master key of this id encrypted.

        `DeniedError` with the code `key-wrong` if this provider has another master key, or if anything was altered.
        """

    def key_ids(self) -> Sequence[str]:
        """Return the ids of all master keys that can decrypt, as far as they are known."""
        return [self.key_id]


class LocalKeys(KeyProvider):
    """Master keys in the memory of this process. The first one encrypts; the others still decrypt.

    A key is 32 bytes, or text as `generate_key` returns it. Its id is derived from it.
    """

    def __init__(self, *keys: bytes | str) -> None:
        self._given = keys
        self._ciphers: dict[str, Cipher] | None = None

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"

    @property
    def key_id(self) -> str:
        return next(iter(self._load()))

    def key_ids(self) -> Sequence[str]:
        return list(self._load())

    def keys(self) -> Sequence[bytes]:
        """Return the keys themselves, for what is derived from them: digests and tokens of sensitive data."""
        keys = [_parse(key, str(self)) for key in self._read()]
        if not keys:
            raise missing_master(str(self))
        return keys

    def wrap(self, key: bytes, context: Mapping[str, str]) -> bytes:
        return self._load()[self.key_id].seal(key, associated_bytes(context))

    def unwrap(self, wrapped: bytes, key_id: str, context: Mapping[str, str]) -> bytes:
        cipher = self._load().get(key_id)
        if cipher is None:
            raise wrong_key(key_id, self.key_ids(), str(self))
        try:
            return cipher.unseal(wrapped, associated_bytes(context))
        except CorruptError:
            raise altered_key(key_id, str(self)) from None

    def _read(self) -> Sequence[bytes | str]:
        """Return the keys, the first one to encrypt with."""
        return self._given

    def _load(self) -> Mapping[str, Cipher]:
        if self._ciphers is None:
            self._ciphers = {each.key_id.hex()[:16]: each for each in map(Cipher, self.keys())}
        return self._ciphers


class EnvironmentKeys(LocalKeys):
    """Master keys in a variable of the environment, separated by blanks or commas."""

    def __init__(self, variable: str = VARIABLE) -> None:
        super().__init__()
        self._variable = variable

    def __repr__(self) -> str:
        return f"EnvironmentKeys({self._variable!r})"

    def _read(self) -> Sequence[str]:
        return os.environ.get(self._variable, "").replace(",", " ").split()


class FileKeys(LocalKeys):
    """Master keys in a file, one in each line; empty lines and those that start with `#` are skipped.

    `ConfigError` if anybody else than its owner can read or change the file.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        super().__init__()
        self._path = Path(path)

    def __repr__(self) -> str:
        return f"FileKeys({str(self._path)!r})"

    def _read(self) -> Sequence[str]:
        lines = read_private(self._path, "ascii", str(self)).splitlines()
        return [line.strip() for line in lines if line.strip() and not line.lstrip().startswith("#")]


class KeyringKeys(LocalKeys):
    """Master keys in the key ring of the operating system, as the password of a service and a name."""

    def __init__(self, name: str = "default", *, service: str = "holdfast") -> None:
        super().__init__()
        self._name, self._service = name, service

    def __repr__(self) -> str:
        return f"KeyringKeys({self._name!r}, service={self._service!r})"

    def _read(self) -> Sequence[str]:
        try:
            import keyring
            from keyring.errors import KeyringError
        except ImportError as error:
            raise missing_extra("keyring", error) from error
        try:
            return (keyring.get_password(self._service, self._name) or "").split()
        except KeyringError as error:
            raise ConfigError(f"the key ring cannot be used: {error}", where=str(self)) from None


def call_provider(provider: KeyProvider, request: Callable[[], _T]) -> _T:
    """Call a provider. `TransientError` if it lets an error of the network through."""
    try:
        return request()
    except OSError as error:
        cause = getattr(error, "reason", error)  # that of urllib has the actual one
        if not isinstance(cause, _UNREACHABLE):
            raise
        raise TransientError(
            f"the provider of keys cannot be reached: {type(cause).__name__}", where=type(provider).__name__
        ) from error


def generate_key() -> str:
    """Return a new master key, as text for a variable, a file or a key ring."""
    return base64.b64encode(new_key()).decode()


def missing_master(where: str) -> DeniedError:
    """Return the error for a provider without any key."""
    return DeniedError(
        "there is no master key",
        where=where,
        hint="Put one there; `holdfast encryption-keys add` prints a new one. A lost one cannot be replaced",
        code="key-missing",
    )


def wrong_key(key_id: str, existing: Sequence[str], where: str) -> DeniedError:
    """Return the error for a provider with other keys than the one that a store needs."""
    return DeniedError(
        f"the store needs master key {key_id}, and there is {', '.join(existing)}",
        where=where,
        hint="Add the key that the store was created with, after the others; or open another store",
        code="key-wrong",
    )


def altered_key(key_id: str, where: str) -> DeniedError:
    """Return the error for an encrypted key that does not decrypt."""
    return DeniedError(
        f"a key of the store does not decrypt with master key {key_id}: it was altered, or is another tenant's",
        where=where,
        hint="Restore the table `keys` of the store from a copy of it",
        code="key-wrong",
    )


def read_private(path: Path, encoding: str, where: str) -> str:
    """Read a file of secrets. `ConfigError` if anybody else than its owner can read or change it."""
    try:
        # Checked and read through one handle: whoever replaces the file in between changes nothing.
        with path.open(encoding=encoding) as file:
            _check_permissions(os.fstat(file.fileno()), path)
            return file.read()
    except FileNotFoundError:
        raise missing_master(where) from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"the file of keys cannot be read: {error}", where=str(path)) from None


def associated_bytes(context: Mapping[str, str]) -> bytes:
    """Return what an encrypted key is bound to."""
    return encode(sorted(context.items()))


def _parse(key: object, where: str) -> bytes:
    """Return the bytes of a key. No message contains any of it."""
    if isinstance(key, str):
        try:
            key = base64.b64decode(key, validate=True)
        except (binascii.Error, ValueError):
            key = b""
    if not isinstance(key, bytes) or len(key) != KEY_SIZE:
        raise ConfigError(
            f"a master key is {KEY_SIZE} bytes, or their base64",
            where=where,
            hint="`holdfast encryption-keys add` prints a new one",
        )
    return key


def _check_permissions(status: os.stat_result, path: Path) -> None:
    if os.name != "posix":
        return
    if status.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise ConfigError(
            f"others may read the file of keys: its mode is {stat.S_IMODE(status.st_mode):04o}",
            where=str(path),
            hint=f"chmod 600 {path}",
        )
    if status.st_uid not in (os.geteuid(), 0):
        raise ConfigError("the file of keys belongs to somebody else", where=str(path), hint=f"chown it: {path}")


# Passphrase -----------------------------------------------------------------------------------------------------------
#
# A master key that is derived from a passphrase, for recovery: a person can write it down.

_ID = "passphrase"
_SALT = 16
_COST = 1 << 15
_MEMORY = 64 << 20
_SHORTEST = 12


class PassphraseKeys(KeyProvider):
    """A master key that is derived, by scrypt, from the first line of a file that only its owner can read."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = Path(path)

    def __repr__(self) -> str:
        return f"PassphraseKeys({str(self._path)!r})"

    @property
    def key_id(self) -> str:
        return _ID

    def wrap(self, key: bytes, context: Mapping[str, str]) -> bytes:
        salt = os.urandom(_SALT)
        return salt + self._cipher(salt).seal(key, associated_bytes(context))

    def unwrap(self, wrapped: bytes, key_id: str, context: Mapping[str, str]) -> bytes:
        try:
            if key_id != _ID:
                raise CorruptError("another kind of key")
            return self._cipher(wrapped[:_SALT]).unseal(wrapped[_SALT:], associated_bytes(context))
        except CorruptError:
            raise wrong_key(key_id, ["another passphrase"], str(self)) from None

    def _cipher(self, salt: bytes) -> Cipher:
        lines = read_private(self._path, "utf-8", str(self)).splitlines()
        passphrase = lines[0].strip() if lines else ""
        if not passphrase:
            raise missing_master(str(self))
        if len(passphrase) < _SHORTEST:
            raise ConfigError(f"a passphrase has at least {_SHORTEST} characters", where=str(self))
        derived = hashlib.scrypt(passphrase.encode(), salt=salt, n=_COST, r=8, p=1, maxmem=_MEMORY, dklen=KEY_SIZE)
        return Cipher(derived)


# Aws kms --------------------------------------------------------------------------------------------------------------
#
# Master keys in AWS KMS.

_ABSENT = frozenset({"NotFoundException", "DisabledException", "KMSInvalidStateException", "InvalidKeyUsageException"})
_REFUSED = frozenset({"AccessDeniedException", "UnrecognizedClientException", "InvalidSignatureException"})


class AwsKms(KeyProvider):
    """A symmetric key in AWS KMS, by its id, ARN or alias: it never leaves the service.

    The tenant and the purpose of a key are its encryption context. `client` is one of boto3 for `kms`; by default, one
    with boto3's own settings.
    """

    def __init__(self, key: str, *, client: Any = None) -> None:
        if not key:
            raise ConfigError("a key of AWS KMS must be given by its id, ARN or alias", hint="Such as alias/holdfast")
        self._key = key
        self._client = client
        self._arn = ""

    def __repr__(self) -> str:
        return f"AwsKms({self._key!r})"

    @property
    def key_id(self) -> str:
        if not self._arn:  # an alias may be moved: what it wrapped is found by the key itself
            self._arn = str(self._call(lambda kms: kms.describe_key(KeyId=self._key))["KeyMetadata"]["Arn"])
        return self._arn

    def wrap(self, key: bytes, context: Mapping[str, str]) -> bytes:
        id = self.key_id
        answer = self._call(lambda kms: kms.encrypt(KeyId=id, Plaintext=key, EncryptionContext=dict(context)))
        return bytes(answer["CiphertextBlob"])

    def unwrap(self, wrapped: bytes, key_id: str, context: Mapping[str, str]) -> bytes:
        answer = self._call(
            lambda kms: kms.decrypt(KeyId=key_id, CiphertextBlob=wrapped, EncryptionContext=dict(context))
        )
        return bytes(answer["Plaintext"])

    def _call(self, request: Callable[[Any], Any]) -> Any:
        try:
            from botocore import exceptions
        except ImportError as error:
            raise missing_extra("aws", error) from error
        try:
            return request(self._kms())
        except exceptions.ClientError as error:
            raise self._error(str(error.response.get("Error", {}).get("Code", "")), error) from error
        except (exceptions.NoCredentialsError, exceptions.NoRegionError, exceptions.PartialCredentialsError) as error:
            raise ConfigError(f"AWS KMS cannot be used: {error}", where=str(self)) from error
        except exceptions.BotoCoreError as error:
            raise TransientError(f"AWS KMS cannot be reached: {error}", where=str(self)) from error

    def _kms(self) -> Any:
        if self._client is None:
            import boto3

            self._client = boto3.client("kms")
        return self._client

    def _error(self, code: str, error: Exception) -> Exception:
        if code in ("InvalidCiphertextException", "IncorrectKeyException"):
            return altered_key(self._key, str(self))
        if code in _ABSENT:
            return DeniedError(
                f"AWS KMS has no such key, or it is disabled: {error}",
                where=str(self),
                hint="Enable it, or name the key that the store was created with",
                code="key-missing",
            )
        if code in _REFUSED:
            return DeniedError(f"AWS KMS refuses the use of the key: {error}", where=str(self), hint="Check its policy")
        return TransientError(f"AWS KMS failed: {error}", where=str(self))
