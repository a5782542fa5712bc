"""Tables of records: those of one type on a system line, by name, with the links by which they are found.

Sessions, artifacts, grants, tokens, roles, schemas, erasures and archived ranges are such records. A record is read as
it is now, or as of the entries that a change of the line starts from. If another writer is first, a change is computed
again from the entries as they are then: nothing is lost, and no table needs attempts of its own.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, Generic, TypeVar

from holdfast.backends.interface import Row
from holdfast.engine.model.packed_state import Packed
from holdfast.engine.system_line import LineChange, Link, SystemLine, SystemLineEntries
from holdfast.errors import NotFoundError

R = TypeVar("R")
T = TypeVar("T")

PAGE = 256
"""The number of records in a page that is read at a time."""


class RecordTable(Generic[R]):
    """The records of one type. `load` builds one of its stored value and the number of the step that wrote it, `dump`
    returns the value to store. Errors call a record `what`, and `hint` says where others are listed."""

    def __init__(
        self,
        line: SystemLine,
        what: str,
        load: Callable[[Any, int], R],
        dump: Callable[[R], Any],
        *,
        prefix: str = "",
        hint: str = "",
        links: Callable[[R, str], Sequence[Link]] = lambda _record, _name: (),
    ) -> None:
        self.system_line = line
        self._what, self._hint = what, hint
        self._load, self._dump = load, dump
        self._prefix = prefix
        self._links = links

    # Reading ----------------------------------------------------------------------------------------------------

    async def _read(self, look: Callable[[SystemLineEntries], Awaitable[T]], entries: SystemLineEntries | None) -> T:
        return await (self.system_line.read(look) if entries is None else look(entries))

    async def get_many(self, names: Iterable[str], entries: SystemLineEntries | None = None) -> dict[str, R]:
        """Return the records of those names that have one."""
        stored = {self._prefix + name: name for name in names}
        found = await self._read(lambda entries: entries.records(stored), entries)
        return {stored[each]: self._load(*record) for each, record in found.items()}

    async def find(self, name: str, entries: SystemLineEntries | None = None) -> R | None:
        """Return the record of a name; None if there is none."""
        return (await self.get_many([name], entries)).get(name)

    async def get(self, name: str, entries: SystemLineEntries | None = None) -> R:
        """Return the record of a name. Raises `NotFoundError`."""
        found = await self.find(name, entries)
        if found is None:
            raise self.missing_error(name)
        return found

    async def all(self, within: str = "", entries: SystemLineEntries | None = None) -> dict[str, R]:
        """Return all records, or those whose names start with some text, in the order of names, by the rest of them.
        The numbers of their steps are not read."""
        found = await self._read(lambda entries: entries.with_prefix(self._prefix + within), entries)
        return {name: self._load(value, 0) for name, value in found.items()}

    async def linked(self, kind: str, name: str, after: str = "", size: int = PAGE) -> AsyncIterator[list[Row]]:
        """Yield the rows of a link, in the order of what it is linked with, a page at a time."""
        rows = await self.system_line.linked(kind, name, after, size)
        yield rows
        while len(rows) == size:
            rows = await self.system_line.linked(kind, name, str(rows[-1].key[4]), size)
            yield rows

    def missing_error(self, name: str) -> NotFoundError:
        """Build the error for a record that does not exist."""
        return NotFoundError(f"there is no such {self._what}", where=f"{self._what} {name!r}"[:120], hint=self._hint)

    # Changing ---------------------------------------------------------------------------------------------------

    def pack(self, records: Mapping[str, R]) -> dict[str, Packed]:
        """Return records as the entries of a change."""
        return self.system_line.pack({self._prefix + name: self._dump(record) for name, record in records.items()})

    def replace(self, name: str, old: R | None, new: R | None, target: str = "") -> LineChange:
        """Return the change that puts a record in the place of another, with its links. None stands for no record.
        `target` is stored with the links."""
        before, after = (() if each is None else self._links(each, name) for each in (old, new))
        rows = self.system_line.link_changes(before, after, self.system_line.engine.context.clock(), target)
        return LineChange(
            {} if new is None else self.pack({name: new}), [self._prefix + name] if new is None else (), rows=rows
        )
