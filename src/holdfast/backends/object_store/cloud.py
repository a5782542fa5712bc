"""A store in object storage: Amazon S3 and what speaks its protocol, Google Cloud Storage, Azure Blob Storage.

`s3://bucket/prefix`, `gs://bucket/prefix`, `az://container/prefix`. The bucket must be there. It has to be strongly
consistent, and to honour `If-None-Match: *` when an object is put; the three do, as do most that speak S3.

Options, as arguments or in the URL's query:

- `grace`: for how many seconds folded and deleted objects stay in the bucket, 3600 by default. Machines whose clocks
  differ by more than half of it must not share a store.
- `timeout`: for how many seconds to retry while the service does not answer, 30 by default.
- `connect_timeout`: for how long opening retries to reach the service, as `30` or `30s`; by default it does not.
- `endpoint`: where the service is, if it is not the provider's own. An address with `http://` is used without TLS.
- `ca_file`: a file of certificates, in PEM format, of authorities that are trusted besides those of the system.
- `region`, `access_key_id`, `secret_access_key`, `session_token` for S3; `service_account` (a file) for Google;
  `account_name` and `account_key` for Azure. What is not said is taken from the environment (`AWS_ACCESS_KEY_ID`,
  `AWS_ENDPOINT_URL`, `GOOGLE_APPLICATION_CREDENTIALS`, `AZURE_STORAGE_ACCOUNT_NAME` …) or from the machine's role.
"""

from __future__ import annotations

import atexit
import os
import re
import ssl
import time
from collections.abc import Awaitable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self, TypeVar
from urllib.parse import unquote, urlsplit

from holdfast._lazy import missing_extra
from holdfast.backends.async_backend import TIMEOUT, ServerInterrupted, ServerUnreachable
from holdfast.backends.connection_errors import (
    certificate_error,
    certificate_file_error,
    login_error,
    plain_server_error,
    tls_server_error,
    uses_tls,
)
from holdfast.backends.object_store.backend import ObjectStoreBackend
from holdfast.backends.object_store.object_storage import PAGE, ObjectInfo, ObjectStorage, gather_limited
from holdfast.backends.urls import check_address, parse_duration, redacted_url, split_options
from holdfast.errors import ConfigError, DeniedError, UnavailableError

try:
    import obstore
    from obstore import exceptions
    from obstore.store import AzureStore, GCSStore, S3Store
except ImportError as error:
    raise missing_extra("objects", error) from error

if TYPE_CHECKING:
    from obstore.store import ClientConfig, ObjectStore, RetryConfig

T = TypeVar("T")

GRACE = 3600.0

_SERVICE_OPTIONS = {
    "s3": ("endpoint", "ca_file", "region", "access_key_id", "secret_access_key", "session_token"),
    "gs": ("endpoint", "ca_file", "service_account"),
    "az": ("endpoint", "ca_file", "account_name", "account_key"),
}
"""The options of each service."""

_ENDPOINTS = {
    "s3": ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"),
    "gs": ("GOOGLE_BASE_URL",),
    "az": ("AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT"),
}
"""The environment variables for the endpoint of a service; the first that is set applies."""

_KEY_OPTIONS = {"s3": "access_key_id and secret_access_key", "gs": "service_account", "az": "account_key"}
"""The options for the keys of each service."""

_REQUEST_SECONDS = 20
_LAST_SECONDS = 0.1
"""The driver's threads use Python for a moment after their answer; if it has ended by then, the process aborts."""
_NO_RANGE = "status code: 416"
"""How the driver says that an object ends before a range begins."""

# How the driver's errors are written.
_NO_CONNECTION = "kind: Connect,"
_NO_REPLY = "HTTP error: "
_TLS_FAILURE = re.compile("InvalidContentType|InvalidCertificate|AlertReceived|PeerIncompatible|NotValidForName")
_NOT_TLS = "InvalidContentType"
_CERTIFICATE = re.compile(r"InvalidCertificate\(\s*(\w+)")
_CERTIFICATE_REASONS = {
    "Expired": "the certificate has expired",
    "NotValidYet": "the certificate is not yet valid",
    "NotValidForName": "the certificate is for another host",
    "UnknownIssuer": "the authority of the certificate is not trusted",
}
"""The fault of a certificate, by the start of the driver's word for it."""
_AUTHORITY_HINT = "Name the authority of its certificate with ca_file, or have the system trust it"
_METADATA = re.compile(r"169\.254\.169\.254|metadata\.google\.internal|/latest/(api/token|meta-data)")
"""The addresses at which a machine is asked for its role: the driver does so if there are no keys."""
_WRONG_LOGIN = re.compile(
    "InvalidAccessKeyId|SignatureDoesNotMatch|AuthenticationFailed|InvalidToken|ExpiredToken|InvalidSecurity"
    "|Server failed to authenticate"
)
_NO_BUCKET = re.compile("NoSuchBucket|ContainerNotFound")
_CODE = re.compile("<Code>([^<]+)</Code>")
_MESSAGE = re.compile("<Message>([^<\n]+)")
"""The first line of a message; further ones of Azure have the number and the time of the request."""
_ADDRESS = re.compile(r"https?://([^/\s]+)")
_REASON = re.compile(r'(?:message|error): "([^"]+)"')


class CloudBackend(ObjectStoreBackend):
    """`s3://`, `gs://`, `az://`: a store of objects."""

    schemes: ClassVar[tuple[str, ...]] = ("s3", "gs", "az")

    def __init__(
        self, url: str, storage: CloudStorage, timeout: float, grace: float, connect_timeout: float = 0.0
    ) -> None:
        super().__init__(url, timeout, grace, connect_timeout)
        self._storage = storage

    @classmethod
    async def open(cls, url: str, **options: Any) -> CloudBackend:
        """Open a prefix of a bucket, and create a store if it is empty. The module documents the options."""
        rest, storage, chosen = _connect(url, ("grace", "timeout", "connect_timeout"), options)
        timeout = parse_duration(url, "timeout", chosen.pop("timeout", TIMEOUT), 0.001)
        grace = parse_duration(url, "grace", chosen.pop("grace", GRACE), 10)
        connect_timeout = parse_duration(url, "connect_timeout", chosen.pop("connect_timeout", 0))
        store = cls(redacted_url(rest), storage, timeout, grace, connect_timeout)
        await store.start()
        return store

    def _open_storage(self) -> ObjectStorage:
        _check_process(self._url)
        return Bucket(self._storage, self._url)


class CloudStorage(NamedTuple):
    """A prefix of a bucket as the driver sees it, and the endpoint, if it is not the provider's own."""

    objects: ObjectStore
    endpoint: str


class Bucket(ObjectStorage):
    """Objects in a bucket."""

    remote = True

    def __init__(self, storage: CloudStorage, where: str) -> None:
        self._storage = storage.objects
        self._endpoint = storage.endpoint
        self._where = where
        self._was_used = False

    @classmethod
    def at(cls, url: str, options: Mapping[str, Any]) -> tuple[Self, str, float]:
        """Open the prefix of a URL that is not a store. Returns also the URL without secrets, and the timeout."""
        rest, storage, chosen = _connect(url, ("timeout",), options)
        where = redacted_url(rest)
        _check_process(where)
        return cls(storage, where), where, parse_duration(url, "timeout", chosen.get("timeout", TIMEOUT), 0.001)

    async def create(self, name: str, data: bytes) -> bool:
        try:
            await self._request(obstore.put_async(self._storage, name, data, mode="create"))
        except (exceptions.AlreadyExistsError, exceptions.PreconditionError):
            return False
        except FileNotFoundError as error:
            raise self._missing_bucket_error() from error
        return True

    async def put(self, name: str, data: bytes) -> None:
        await self._request(obstore.put_async(self._storage, name, data, use_multipart=False))

    async def get(self, name: str, start: int = 0, length: int | None = None) -> bytes | None:
        try:
            if length is None:
                return await self._request(self._read_whole(name))
            return await self._request(self._read_range(name, start, length))
        except FileNotFoundError:
            return None

    async def list_objects(self, prefix: str) -> list[ObjectInfo]:
        return await self._request(self._list(prefix))

    async def list_page(self, prefix: str, after: str = "") -> list[ObjectInfo]:
        return await self._request(self._list(prefix, after, pages=1))

    async def list_folders(self, prefix: str) -> list[str]:
        listed = await self._request(obstore.list_with_delimiter_async(self._storage, prefix or None))
        return [path.rstrip("/").rpartition("/")[2] for path in listed["common_prefixes"]]

    async def delete(self, names: Sequence[str]) -> None:
        for start in range(0, len(names), PAGE):
            await self._request(self._delete_page(names[start : start + PAGE]))

    async def delete_temporary(self, before: float) -> None:
        """Does nothing: objects are created atomically."""

    async def close(self) -> None:
        """Does nothing: idle connections are closed automatically."""

    async def _read_whole(self, name: str) -> bytes:
        result = await obstore.get_async(self._storage, name)
        return bytes(await result.bytes_async())

    async def _read_range(self, name: str, start: int, length: int) -> bytes:
        try:
            return bytes(await obstore.get_range_async(self._storage, name, start=start, length=length))
        except exceptions.GenericError as error:
            if _NO_RANGE not in str(error):
                raise
            return b""  # services refuse every range of an empty object

    async def _list(self, prefix: str, after: str = "", pages: int | None = None) -> list[ObjectInfo]:
        result: list[ObjectInfo] = []
        chunks = obstore.list(self._storage, prefix or None, offset=after or None, chunk_size=PAGE)
        async for chunk in chunks:
            result += [ObjectInfo(meta["path"], meta["size"], meta["last_modified"].timestamp()) for meta in chunk]
            if len(result) == PAGE * (pages or 0):
                break
        return result

    async def _delete_page(self, names: Sequence[str]) -> None:
        try:
            await obstore.delete_async(self._storage, list(names))
        except FileNotFoundError:
            # Some services report a missing object and leave the others; by itself, a missing object is no error.
            if len(names) > 1:
                await gather_limited([self._delete_page([name]) for name in names])

    async def _request(self, request: Awaitable[T]) -> T:
        try:
            result = await request
        except (exceptions.PermissionDeniedError, exceptions.UnauthenticatedError) as error:
            if isinstance(error, exceptions.UnauthenticatedError) or _WRONG_LOGIN.search(str(error)):
                raise login_error(_reply(error), self._where, "Check the keys") from error
            raise DeniedError(
                f"the service refuses this: {_reply(error)}",
                where=self._where,
                hint="The key needs to get, put, list and delete objects in this bucket",
            ) from error
        except (exceptions.GenericError, exceptions.JoinError) as error:
            if _NO_BUCKET.search(str(error)):
                raise self._missing_bucket_error() from error
            if not self._was_used:
                await self._check_first_error(str(error))
            if _NO_CONNECTION in str(error) or (not self._was_used and _NO_REPLY in str(error)):
                raise ServerUnreachable(_connect_failure(str(error)), sent=True) from error
            raise ServerInterrupted(_reply(error), sent=True) from error
        except exceptions.NotSupportedError as error:
            raise ConfigError(f"the service cannot do it: {_reply(error)}", where=self._where) from error
        self._was_used = True
        return result

    async def _check_first_error(self, text: str) -> None:
        """Raise if the settings are the reason for the failure of a first request."""
        if _METADATA.search(text):
            what = "there are no keys in the options or the environment, and this machine has no role"
            options = _KEY_OPTIONS[self._where.partition(":")[0]]
            raise login_error(what, self._where, f"Pass {options}, or set variables of the environment")
        if _NO_CONNECTION in text and (failure := _TLS_FAILURE.search(text)):
            if failure[0] == _NOT_TLS:
                raise plain_server_error(self._where, "Write the endpoint with http://")
            raise certificate_error(_certificate_failure(text) or failure[0], self._where, _AUTHORITY_HINT)
        parts = urlsplit(self._endpoint)
        if parts.scheme == "http" and _NO_CONNECTION not in text and parts.hostname:
            if await uses_tls(parts.hostname, parts.port or 80):
                raise tls_server_error(self._where, "Write the endpoint with https://")

    def _missing_bucket_error(self) -> ConfigError:
        return ConfigError("there is no such bucket", where=self._where, hint="Create it first, or correct its name")


def _connect(url: str, own: Sequence[str], options: Mapping[str, Any]) -> tuple[str, CloudStorage, dict[str, Any]]:
    """Open the storage of a URL. Returns the URL without options, the storage, and the options in `own`."""
    scheme = url.partition(":")[0]
    if scheme not in _SERVICE_OPTIONS:
        raise ConfigError("this is not the URL of a bucket", where=redacted_url(url), hint="Open s3://bucket/prefix")
    known = dict.fromkeys((*own, *_SERVICE_OPTIONS[scheme]))
    rest, chosen = split_options(url, known, options)
    parts = urlsplit(rest)
    if not parts.hostname or "@" in parts.netloc or parts.query or parts.fragment:
        raise ConfigError(
            "this is not the URL of a bucket",
            where=redacted_url(url),
            hint=f"Open {scheme}://bucket/prefix; it takes {', '.join(sorted(known))}",
        )
    settings = {name: value for name, value in chosen.items() if name not in own}
    storage = _storage(scheme, parts.netloc, unquote(parts.path).strip("/"), settings, redacted_url(rest))
    return rest, storage, {name: value for name, value in chosen.items() if name in own}


def _storage(scheme: str, bucket: str, prefix: str, settings: dict[str, Any], where: str) -> CloudStorage:
    endpoint = str(settings.get("endpoint") or "") or next(
        (result for name in _ENDPOINTS[scheme] if (result := os.environ.get(name))), ""
    )
    if endpoint:
        _check_endpoint(endpoint, where)
    return CloudStorage(_open_driver(scheme, bucket, prefix, settings, endpoint, where), endpoint)


def _check_endpoint(endpoint: str, where: str) -> None:
    if urlsplit(endpoint).scheme not in ("http", "https") or not urlsplit(endpoint).netloc:
        raise ConfigError("the endpoint is not a URL", where=where, hint="It looks like https://host:9000")
    check_address(endpoint)


def _open_driver(
    scheme: str, bucket: str, prefix: str, settings: dict[str, Any], endpoint: str, where: str
) -> ObjectStore:
    # Without TLS only if the address says so.
    client: ClientConfig = {
        "allow_http": endpoint.startswith("http://"),
        "timeout": timedelta(seconds=_REQUEST_SECONDS),
    }
    retry: RetryConfig = {"max_retries": 0}  # retried one level up, which first checks what the last attempt did
    values = {name: str(value) for name, value in settings.items()}
    if "ca_file" in values:
        client["root_certificate"] = _read_authorities(values.pop("ca_file"), where)
    try:
        if scheme == "s3":
            return S3Store(bucket, prefix=prefix or None, client_options=client, retry_config=retry, config=values)  # type: ignore[arg-type]
        if scheme == "gs":
            if "endpoint" in values:
                values["base_url"] = values.pop("endpoint")
            return GCSStore(bucket, prefix=prefix or None, client_options=client, retry_config=retry, config=values)  # type: ignore[arg-type]
        return AzureStore(bucket, prefix=prefix or None, client_options=client, retry_config=retry, config=values)  # type: ignore[arg-type]
    except (exceptions.BaseError, ValueError) as error:
        raise ConfigError(f"the storage cannot be set up: {_reply(error)}", where=where) from error


_process: int | None = None
"""The process in which the driver was first used."""


def _check_process(where: str) -> None:
    """Refuse a forked process: the driver's threads do not survive a fork, and it would wait for them forever."""
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


def _read_authorities(path: str, where: str) -> bytes:
    try:
        ssl.create_default_context(cafile=path)
        return Path(path).read_bytes()
    except OSError as error:
        raise certificate_file_error(error, where, "ca_file") from error


def _certificate_failure(text: str) -> str | None:
    """Return what is wrong with the certificate, from the driver's error."""
    found = _CERTIFICATE.search(text)
    if found is None:
        return None
    return next((words for start, words in _CERTIFICATE_REASONS.items() if found[1].startswith(start)), found[1])


def _connect_failure(text: str) -> str:
    """The address and the reason, from the driver's error."""
    address, reasons = _ADDRESS.search(text), _REASON.findall(text)
    return f"{address[1] if address else 'the service'}: {reasons[-1] if reasons else 'no connection'}"


def _reply(error: Exception) -> str:
    """The code and the message of the service; or the first line of the driver's error."""
    text = str(error)
    code, message = _CODE.search(text), _MESSAGE.search(text)
    if code is not None:
        return f"{code[1]}: {message[1]}" if message else code[1]
    return text.partition("\n")[0][:300]
