"""A store in object storage: Amazon S3 and what speaks its protocol, Google Cloud Storage, Azure Blob Storage.

`s3://bucket/prefix`, `gs://bucket/prefix`, `az://container/prefix`. The bucket must be there. It has to be strongly
consistent, and to honour `If-None-Match: *` when an object is put; the three do, as do most that speak S3.

Options, as arguments or in the URL's query:

- `grace`: for how many seconds what was folded or deleted stays in the bucket, 3600 by default. Machines whose clocks
  differ by more than half of it must not share a store.
- `timeout`: for how many seconds to go on trying while the service does not answer, 30 by default.
- `endpoint`: where the service is, if it is not the provider's own. An address with `http://` is used without TLS.
- `region`, `access_key_id`, `secret_access_key`, `session_token` for S3; `service_account` (a file) for Google;
  `account_name` and `account_key` for Azure. What is not said is taken from the environment (`AWS_ACCESS_KEY_ID`,
  `AWS_ENDPOINT_URL`, `GOOGLE_APPLICATION_CREDENTIALS`, `AZURE_STORAGE_ACCOUNT_NAME` …) or from the machine's role.
"""

from __future__ import annotations

import atexit
import os
import time
from collections.abc import Awaitable, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Self, TypeVar
from urllib.parse import unquote, urlsplit

import obstore
from obstore import exceptions
from obstore.store import AzureStore, GCSStore, S3Store

from holdfast.backends.async_backend import TIMEOUT, ServerInterrupted
from holdfast.backends.object_store.backend import ObjectStoreBackend
from holdfast.backends.object_store.object_storage import ObjectInfo, ObjectStorage
from holdfast.backends.urls import parse_duration, redacted_url, split_options
from holdfast.errors import ConfigError, DeniedError, UnavailableError

if TYPE_CHECKING:
    from obstore.store import ClientConfig, ObjectStore, RetryConfig

T = TypeVar("T")

GRACE = 3600.0

_SETTINGS = {
    "s3": ("endpoint", "region", "access_key_id", "secret_access_key", "session_token"),
    "gs": ("endpoint", "service_account"),
    "az": ("endpoint", "account_name", "account_key"),
}
"""What a service takes besides `grace` and `timeout`."""

_ENDPOINTS = {
    "s3": ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"),
    "gs": ("GOOGLE_BASE_URL",),
    "az": ("AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT"),
}
"""The variables that say where a service is, the first one counting most."""

_REQUEST_SECONDS = 20
_LAST_SECONDS = 0.1
"""The driver's threads let go of Python a moment after they answered; if that is gone by then, the process aborts."""
_PAGE = 1000
_NO_RANGE = "status code: 416"
"""How the driver says that an object ends before a range begins."""


class CloudBackend(ObjectStoreBackend):
    """`s3://`, `gs://`, `az://`: a store of objects."""

    schemes = ("s3", "gs", "az")

    def __init__(self, url: str, storage: ObjectStore, timeout: float, grace: float) -> None:
        super().__init__(url, timeout, grace)
        self._storage = storage

    @classmethod
    async def open(cls, url: str, **options: Any) -> CloudBackend:
        """Open a place in a bucket, and make it a store if it is empty. The module says which options there are."""
        rest, storage, given = _reached(url, ("grace", "timeout"), options)
        timeout = parse_duration(url, "timeout", given.pop("timeout", TIMEOUT), 0.001)
        grace = parse_duration(url, "grace", given.pop("grace", GRACE), 10)
        store = cls(redacted_url(rest), storage, timeout, grace)
        await store.start()
        return store

    def _blobs(self) -> ObjectStorage:
        _check_process(self._url)
        return Bucket(self._storage, self._url)


class Bucket(ObjectStorage):
    """Objects in a bucket."""

    def __init__(self, storage: ObjectStore, where: str) -> None:
        self._storage = storage
        self._where = where

    @classmethod
    def at(cls, url: str, options: Mapping[str, Any]) -> tuple[Self, str, float]:
        """The place of a URL, as it may be shown, without a store there; and for how long to go on trying."""
        rest, storage, given = _reached(url, ("timeout",), options)
        where = redacted_url(rest)
        _check_process(where)
        return cls(storage, where), where, parse_duration(url, "timeout", given.get("timeout", TIMEOUT), 0.001)

    async def create(self, name: str, data: bytes) -> bool:
        try:
            await self._answer(obstore.put_async(self._storage, name, data, mode="create"))
        except (exceptions.AlreadyExistsError, exceptions.PreconditionError):
            return False
        except FileNotFoundError as error:
            raise self._no_bucket() from error
        return True

    async def put(self, name: str, data: bytes) -> None:
        await self._answer(obstore.put_async(self._storage, name, data, use_multipart=False))

    async def get(self, name: str, start: int = 0, length: int | None = None) -> bytes | None:
        try:
            if length is None:
                return await self._answer(self._whole(name))
            return await self._answer(self._range(name, start, length))
        except FileNotFoundError:
            return None

    async def listed(self, prefix: str) -> list[ObjectInfo]:
        return await self._answer(self._all(prefix))

    async def folders(self, prefix: str) -> list[str]:
        listed = await self._answer(obstore.list_with_delimiter_async(self._storage, prefix or None))
        return [path.rstrip("/").rpartition("/")[2] for path in listed["common_prefixes"]]

    async def delete(self, names: Sequence[str]) -> None:
        for start in range(0, len(names), _PAGE):
            await self._answer(self._deleted(names[start : start + _PAGE]))

    async def _whole(self, name: str) -> bytes:
        found = await obstore.get_async(self._storage, name)
        return bytes(await found.bytes_async())

    async def _range(self, name: str, start: int, length: int) -> bytes:
        try:
            return bytes(await obstore.get_range_async(self._storage, name, start=start, length=length))
        except exceptions.GenericError as error:
            if _NO_RANGE not in str(error):
                raise
            return b""  # services refuse every range of an empty object

    async def _all(self, prefix: str) -> list[ObjectInfo]:
        found = []
        async for chunk in obstore.list(self._storage, prefix or None, chunk_size=_PAGE):
            found += [ObjectInfo(meta["path"], meta["size"], meta["last_modified"].timestamp()) for meta in chunk]
        return found

    async def _deleted(self, names: Sequence[str]) -> None:
        try:
            await obstore.delete_async(self._storage, list(names))
        except FileNotFoundError:
            # Some services say so of one that is not there, and the rest is then left. One by one, it is no failure.
            for name in names if len(names) > 1 else ():
                try:
                    await obstore.delete_async(self._storage, name)
                except FileNotFoundError:
                    continue

    async def _answer(self, asked: Awaitable[T]) -> T:
        try:
            return await asked
        except (exceptions.PermissionDeniedError, exceptions.UnauthenticatedError) as error:
            raise DeniedError(
                f"the service refuses it: {_first_line(error)}",
                where=self._where,
                hint="The key needs to get, put, list and delete objects in this bucket",
            ) from error
        except (exceptions.GenericError, exceptions.JoinError) as error:
            if "NoSuchBucket" in str(error):
                raise self._no_bucket() from error
            raise ServerInterrupted(_first_line(error), sent=True) from error
        except exceptions.NotSupportedError as error:
            raise ConfigError(f"the service cannot do it: {_first_line(error)}", where=self._where) from error

    def _no_bucket(self) -> ConfigError:
        return ConfigError("there is no such bucket", where=self._where, hint="Make it first, or correct its name")


def _reached(url: str, own: Sequence[str], options: Mapping[str, Any]) -> tuple[str, ObjectStore, dict[str, Any]]:
    """A URL without its options, the storage that it names, and those options that are not the storage's own."""
    scheme = url.partition(":")[0]
    if scheme not in _SETTINGS:
        raise ConfigError("this names no bucket", where=redacted_url(url), hint="Open s3://bucket/prefix")
    known = dict.fromkeys((*own, *_SETTINGS[scheme]))
    rest, given = split_options(url, known, options)
    parts = urlsplit(rest)
    if not parts.hostname or "@" in parts.netloc or parts.query or parts.fragment:
        raise ConfigError(
            "this names no bucket",
            where=redacted_url(url),
            hint=f"Open {scheme}://bucket/prefix; it takes {', '.join(sorted(known))}",
        )
    settings = {name: value for name, value in given.items() if name not in own}
    storage = _storage(scheme, parts.netloc, unquote(parts.path).strip("/"), settings, redacted_url(rest))
    return rest, storage, {name: value for name, value in given.items() if name in own}


def _storage(scheme: str, bucket: str, prefix: str, settings: dict[str, Any], where: str) -> ObjectStore:
    endpoint = settings.get("endpoint") or next(
        (found for name in _ENDPOINTS[scheme] if (found := os.environ.get(name))), None
    )
    # Not over the network in clear, unless the address says so.
    client: ClientConfig = {
        "allow_http": bool(endpoint and str(endpoint).startswith("http://")),
        "timeout": timedelta(seconds=_REQUEST_SECONDS),
    }
    retry: RetryConfig = {"max_retries": 0}  # tried again one level up, which looks first what the last try did
    values = {name: str(value) for name, value in settings.items()}
    try:
        if scheme == "s3":
            return S3Store(bucket, prefix=prefix or None, client_options=client, retry_config=retry, config=values)  # type: ignore[arg-type]
        if scheme == "gs":
            if "endpoint" in values:
                values["base_url"] = values.pop("endpoint")
            return GCSStore(bucket, prefix=prefix or None, client_options=client, retry_config=retry, config=values)  # type: ignore[arg-type]
        return AzureStore(bucket, prefix=prefix or None, client_options=client, retry_config=retry, config=values)  # type: ignore[arg-type]
    except (exceptions.BaseError, ValueError) as error:
        raise ConfigError(f"the storage cannot be set up: {_first_line(error)}", where=where) from error


_process: int | None = None
"""The process in which the driver has begun to work."""


def _check_process(where: str) -> None:
    """The driver's threads do not survive a fork, and it would wait for them forever."""
    global _process
    if _process is None:
        _process = os.getpid()
        atexit.register(time.sleep, _LAST_SECONDS)
    elif _process != os.getpid():
        raise UnavailableError(
            "object storage was in use when this process was forked, and cannot be used here",
            where=where,
            hint="Start processes with the method spawn or forkserver, or open stores only after the fork",
        )


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0][:300]
