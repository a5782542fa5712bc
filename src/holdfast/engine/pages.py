"""Pages of a listing."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Sequence
from functools import wraps
from typing import Any, Generic, ParamSpec, TypeAlias, TypeVar

from holdfast.backends.interface import reads_may_lag
from holdfast.backends.runtime.drivers import arun, read_behind, run

P = ParamSpec("P")
T = TypeVar("T")

ReadPage: TypeAlias = "Callable[[str], Coroutine[Any, Any, Page[T]]]"
"""Reads the page at a cursor."""


class Page(list[T]):
    """A page of a listing: a list of its items.

    `next` is the cursor of the next page, to be given as `cursor`; None if this is the last. `all()` goes through the
    items of this page and of all that follow.
    """

    def __init__(self, items: Iterable[T] = (), next: str | None = None, read: ReadPage[T] | None = None) -> None:  # noqa: A002 - the name of the attribute
        super().__init__(items)
        self.next = next
        self._read = read

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {len(self)}{'' if self.next is None else ', more follow'}>"

    def _repr_html_(self) -> str:
        from holdfast._views import html_listing

        return html_listing(self)

    @classmethod
    def cut(
        cls, items: Sequence[T], limit: int, cursor: Callable[[T], str], read: ReadPage[T] | None = None
    ) -> Page[T]:
        """Return a page of `limit` items. `items` has one more if there is a next page. A listing that is `paged` needs
        no function that reads it."""
        return cls(items[:limit], cursor(items[limit - 1]) if 0 < limit < len(items) else None, read)

    def all(self) -> Items[T]:
        """Iterate over the items of this page and of all that follow: `for`, or `async for` on an async store."""
        return Items(self)


def paged(function: Callable[P, Coroutine[Any, Any, Page[T]]]) -> Callable[P, Coroutine[Any, Any, Page[T]]]:
    """Let the pages of a listing read those that follow: by the same call, with their cursor as `cursor`, and from a
    replica if the first one was."""

    @wraps(function)
    async def listed(*args: P.args, **kwargs: P.kwargs) -> Page[T]:
        page = await function(*args, **kwargs)
        lags = reads_may_lag.get()
        page._read = lambda cursor: read_behind(listed(*args, **{**kwargs, "cursor": cursor}), lags)  # type: ignore[arg-type]
        return page

    return listed


class Items(Generic[T]):
    """The items of a listing from one page on. Pages are read when the iteration reaches them."""

    def __init__(self, page: Page[T]) -> None:
        self._page = page

    def __iter__(self) -> Iterator[T]:
        page = self._page
        yield from page
        while page.next is not None and page._read is not None:
            page = run(page._read(page.next))
            yield from page

    async def __aiter__(self) -> AsyncIterator[T]:
        page = self._page
        for item in page:
            yield item
        while page.next is not None and page._read is not None:
            page = await arun(page._read(page.next))
            for item in page:
                yield item
