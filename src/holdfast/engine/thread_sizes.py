"""The steps, branches, sizes and times of all threads of a tenant, to list them in an order that no store has.

Who asks first reads the ends of all branches. They stay in memory, unless they are very many, and whoever asks later
reads those that changed since.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from math import inf
from typing import Literal, Self, TypeAlias

from holdfast._named_tuple import NamedTuple
from holdfast.engine.context import EngineContext
from holdfast.engine.lines import LineIndex
from holdfast.engine.namespaces import is_thread
from holdfast.engine.row_format import Line, LineSummary
from holdfast.engine.validation import cursor_error

NumberOrder: TypeAlias = Literal["updated", "steps", "branches", "size"]
"""The orders in which the thread with the largest number comes first."""

ThreadOrder: TypeAlias = Literal["name", "updated", "steps", "branches", "size"]

_PAGE = 500
_LONGEST_NUMBER = 20

_MOST = 100_000
"""Of so many threads, sizes stay in memory: about 40 MB."""


class ThreadPosition(NamedTuple):
    """The place of a thread in an order: by its time or another number, the largest first. Threads without checkpoints
    come last where that is a time, by name, with the number -1."""

    number: int
    thread: str

    @classmethod
    def parse(cls, cursor: str) -> Self:
        """Return the position that a cursor is."""
        number, slash, thread = cursor.partition("/")
        if not slash or (number != "-1" and not (_is_number(number) and len(number) < _LONGEST_NUMBER)):
            raise cursor_error(cursor)
        return cls(int(number), thread)

    @classmethod
    def of(cls, summary: LineSummary, order: NumberOrder) -> Self:
        """Return the position of a thread."""
        number = getattr(summary, order)
        return cls(-1 if order == "updated" and not summary.steps else number, summary.line.name)

    def __str__(self) -> str:
        return f"{self.number}/{self.thread}"

    def follows(self, other: ThreadPosition | None) -> bool:
        """Return whether it comes after another position."""
        if other is None:
            return True
        if self.number == other.number == -1:
            return self.thread > other.thread
        return self < other


def in_order(found: Iterable[ThreadPosition], after: ThreadPosition | None) -> list[ThreadPosition]:
    """Return positions in their order, those after one."""
    left = [each for each in found if each.follows(after)]
    with_number = sorted((each for each in left if each.number >= 0), reverse=True)
    return with_number + sorted(each for each in left if each.number < 0)


class ThreadSizes:
    """Knows the sizes of the threads of one store."""

    def __init__(self, context: EngineContext, lines: LineIndex) -> None:
        self._backend = context.backend
        self._lines = lines
        self._known: _Known | None = None
        self._large: set[str] = set()
        """The tenants with too many threads."""

    async def known(self, tenant: str) -> Mapping[str, LineSummary] | None:
        """Return the threads of a tenant by name, with their sizes and times and nothing of their latest steps; None if
        they are too many to stay in memory."""
        if tenant in self._large:
            return None
        known = self._known if self._known is not None and self._known.tenant == tenant else None
        changes = await self._backend.changes(None if known is None else known.token)
        sizes: Mapping[str, LineSummary]
        if known is None or not changes.complete:
            sizes = await self._read_all(tenant, _MOST)
        else:
            changed = [Line(*each) for each in changes.lines if each[0] == tenant and each[1] and is_thread(each[1])]
            sizes = await self._read_again(known.sizes, changed) if changed else known.sizes
        if len(sizes) > _MOST:
            self._large.add(tenant)
            self._known = None
            return None
        self._known = _Known(tenant, changes.token, sizes)
        return sizes

    async def _read_all(self, tenant: str, most: float = inf) -> dict[str, LineSummary]:
        """Read the threads of a tenant; not many more than so many."""
        sizes: dict[str, LineSummary] = {}
        name = ""
        while len(sizes) <= most and (some := await self._lines.list_sizes(tenant, name, _PAGE)):
            sizes |= {each.line.name: each for each in some}
            name = some[-1].line.name
        return sizes

    async def _read_again(self, known: Mapping[str, LineSummary], changed: list[Line]) -> dict[str, LineSummary]:
        sizes = dict(known)
        for start in range(0, len(changed), _PAGE):
            some = changed[start : start + _PAGE]
            for line in some:
                sizes.pop(line.name, None)
            sizes |= {
                each.line.name: each._replace(latest=None, status=None) for each in await self._lines.list_named(some)
            }
        return sizes

    async def pages(
        self,
        tenant: str,
        order: NumberOrder,
        after: ThreadPosition | None,
        may_match: Callable[[LineSummary], bool] | None = None,
    ) -> AsyncIterator[list[ThreadPosition]]:
        """Yield the positions of threads after another one, some at a time: those that may match."""
        sizes = await self.known(tenant)
        if sizes is None:
            sizes = await self._read_all(tenant)
        found = [ThreadPosition.of(each, order) for each in sizes.values() if may_match is None or may_match(each)]
        ordered = in_order(found, after)
        for start in range(0, len(ordered), _PAGE):
            yield ordered[start : start + _PAGE]


class _Known(NamedTuple):
    """What is known of the threads of a tenant. With the token, one asks what changed since."""

    tenant: str
    token: str
    sizes: Mapping[str, LineSummary]


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal()
