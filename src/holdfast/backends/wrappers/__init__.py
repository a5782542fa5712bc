"""Backends around backends: behaviour for any store, by the URL of a composition."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, ClassVar, TypeVar
from urllib.parse import parse_qsl

from holdfast.backends.distribution import Distribution
from holdfast.backends.fsutil import no_store_error, path_exists, read_only_error
from holdfast.backends.interface import (
    Backend,
    Batch,
    Capabilities,
    Changes,
    Expect,
    Query,
    Row,
    RowCheck,
    Scan,
    WordMatch,
    WordMatches,
)
from holdfast.backends.registry import backend_for
from holdfast.backends.urls import (
    COMPOSITIONS,
    compose,
    is_url,
    path_to_url,
    redacted_url,
    store_parts,
    url_to_path,
)
from holdfast.errors import ConfigError

T = TypeVar("T")


class ForwardingBackend(Backend):
    """Forwards the calls that wait to another backend, all of them through `_forward`."""

    schemes: ClassVar[tuple[str, ...]] = ()

    @classmethod
    async def open(cls, url: str, **options: Any) -> Backend:  # noqa: ARG003 - the interface's signature
        """A wrapper without a scheme is put around an open store."""
        raise ConfigError(
            f"{cls.__name__} cannot be opened by URL", where=url, hint="Open the store inside, and wrap it"
        )

    @abstractmethod
    async def _forward(self, call: Callable[[Backend], Coroutine[Any, Any, T]]) -> T:
        """Make a call of the other backend."""

    async def read(self, queries: Sequence[Query]) -> list[list[Row]]:
        return await self._forward(lambda inner: inner.read(queries))

    async def apply(self, batch: Batch) -> int | None:
        return await self._forward(lambda inner: inner.apply(batch))

    async def changes(self, since: str | None = None) -> Changes:
        return await self._forward(lambda inner: inner.changes(since))

    async def match_words(self, match: WordMatch) -> WordMatches:
        return await self._forward(lambda inner: inner.match_words(match))

    async def count_rows(self, scans: Sequence[Scan]) -> list[int] | None:
        return await self._forward(lambda inner: inner.count_rows(scans))

    async def announce(self, topic: str) -> None:
        await self._forward(lambda inner: inner.announce(topic))

    async def listen(self, topic: str, heard: Callable[[], None]) -> Callable[[], None] | None:
        return await self._forward(lambda inner: inner.listen(topic, heard))

    async def size(self) -> int:
        return await self._forward(lambda inner: inner.size())

    async def check(self) -> list[str]:
        return await self._forward(lambda inner: inner.check())

    async def heal(self) -> list[str]:
        return await self._forward(lambda inner: inner.heal())

    async def rebuild_line(self, tenant: str, line: str) -> bool:
        return await self._forward(lambda inner: inner.rebuild_line(tenant, line))

    async def tidy(self) -> None:
        await self._forward(lambda inner: inner.tidy())

    async def purge(self) -> list[str]:
        return await self._forward(lambda inner: inner.purge())


class Wrapper(ForwardingBackend):
    """Forwards every call to the backend inside. A subclass overrides what is to be different."""

    def __init__(self, inner: Backend) -> None:
        self.inner = inner

    @property
    def url(self) -> str:
        return self.inner.url

    @property
    def capabilities(self) -> Capabilities:
        return self.inner.capabilities

    async def _forward(self, call: Callable[[Backend], Coroutine[Any, Any, T]]) -> T:
        return await call(self.inner)

    def set_row_check(self, check: RowCheck) -> None:
        self.inner.set_row_check(check)

    def group_sizes(self) -> Sequence[Distribution]:
        return self.inner.group_sizes()

    async def status(self) -> dict[str, int | float | str]:
        return await self.inner.status()

    async def close(self) -> None:
        await self.inner.close()


class ReadOnlyBackend(Wrapper):
    """`readonly:?store=agents.db`: refuses every change. A batch of conditions alone is answered."""

    schemes: ClassVar[tuple[str, ...]] = ("readonly",)
    takes_tenant = True
    takes_read_only = True

    @classmethod
    async def open(
        cls,
        url: str,
        *,
        tenant: str | None = None,
        read_only: bool = True,  # noqa: ARG003 - it always is
        **options: Any,
    ) -> ReadOnlyBackend:
        part = parse_composition(url, "readonly", (), options)["store"]
        (store,) = await open_parts(part, tenant=tenant, read_only=True, may_lag=True)
        return cls(store)

    @property
    def url(self) -> str:
        return compose("readonly", store=self.inner.url)

    async def apply(self, batch: Batch) -> int | None:
        if not all(isinstance(change, Expect) for change in batch):
            raise read_only_error(self.url, "To write, open the store inside, without readonly:")
        return await self.inner.apply(batch)

    async def rebuild_line(self, tenant: str, line: str) -> bool:  # noqa: ARG002 - the interface's signature
        return False

    async def tidy(self) -> None:
        """Do nothing, and refuse if the store is closed."""
        await self.inner.apply([])


def parse_composition(url: str, kind: str, options: tuple[str, ...], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parts and options of a composition: from the query, or from `overrides`."""
    address, _, query = url.partition("?")
    if address not in (f"{kind}:", f"{kind}://"):
        raise ConfigError(f"this is not the URL of a {kind} store", where=redacted_url(url), hint=f"Write {kind}:?…")
    stores = COMPOSITIONS[kind]
    parts: dict[str, Any] = dict(parse_qsl(query, keep_blank_values=True))
    parts.update({name.rstrip("_"): value for name, value in overrides.items()})
    unknown = sorted(parts.keys() - {*stores, *options})
    if unknown:
        raise ConfigError(
            f"a {kind} store does not accept the option {unknown[0]!r}",
            where=redacted_url(url),
            hint=f"It takes {', '.join([*stores, *options])}. In a part's URL, & is written %26, and ? %3F",
        )
    for name in stores:
        if name != "in" and not parts.get(name):
            raise ConfigError(f"a {kind} store needs {name!r}", where=redacted_url(url), hint=f"{name} must be a URL")
    return parts


async def open_parts(
    *urls: str, tenant: str | None = None, read_only: bool = False, may_lag: bool = False
) -> list[Backend]:
    """Open stores by URL or path: all of them, or none. Those that take a tenant get it.

    A store with a replica is refused unless it `may_lag`: what compositions compare, copy and cache must be the latest.
    With `read_only` files must exist: `NotFoundError` with the code `no-store` if they do not.
    """
    opened: list[Backend] = []
    try:
        for text in urls:
            url = text if is_url(text) else path_to_url(text)
            kind = backend_for(url)
            options: dict[str, Any] = {"tenant": tenant} if kind.takes_tenant and tenant is not None else {}
            if read_only and kind.takes_read_only:
                options["read_only"] = True
            elif read_only:
                require_files(url)
            opened.append(await kind.open(url, **options))
            if opened[-1].capabilities.lags and not may_lag:
                raise ConfigError(
                    "a part of a composition cannot read from a standby",
                    where=redacted_url(url),
                    hint="Leave out read_from, or open the store by itself",
                )
    except BaseException:
        for backend in reversed(opened):
            await backend.close()
        raise
    return opened


def require_files(url: str) -> None:
    """Raise `NotFoundError` if the file or directory of a store, or of a part of a composition, does not exist."""
    for part in store_parts(url):
        path = url_to_path(part)
        if path is not None and not path_exists(path, part):
            raise no_store_error(str(path.absolute()))
