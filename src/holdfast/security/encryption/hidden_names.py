"""Names of lines that are digests in the store: of threads, scopes, agents and the rest.

A name is hidden part by part: `chat-1␟child` becomes two digests, and so does `␞user:u1/session:s2`, whose kinds of
parts stay as they are. So lines that belong together have names with the same start in the store, too. A digest covers
the parts before it: equal names in different places look different.

`NamedBackend` is the store below, with names as everybody knows them. The name of a line is in the row of its key,
encrypted; so it is gone with the key, and a line without one has its digest for a name.

Names are ordered differently in the store. A scan over many lines reads the names of all, and answers in the order of
the names. It is not as of one moment: lines that come or go meanwhile may be in it or not. The names of threads are
cached in order, and the feed of the store says which came or went since, so that a page of a list costs a page.
"""

from __future__ import annotations

from base64 import urlsafe_b64encode
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

from msgspec.msgpack import encode

from holdfast.backends.interface import (
    Backend,
    Batch,
    Change,
    Changes,
    Delete,
    Expect,
    Get,
    Query,
    Row,
    RowCheck,
    Scan,
)
from holdfast.backends.tables import KEYS, LINES, Key, Scalar, Table
from holdfast.backends.wrappers import Wrapper
from holdfast.engine.checked_rows import select_rows
from holdfast.engine.model.scopes import MARK as STATE
from holdfast.engine.namespaces import AGENTS, MARK
from holdfast.errors import UnsupportedError

HIDDEN = "\ufdd0"
"""The start of a part that is a digest: a character that no text has. Threads are stored after all other lines."""

SUBJECT_LINE = f"{MARK}subject:"
"""The beginning of what stands for the name of a line in the row of a person's key. A keyed digest follows, which needs
not be hidden."""

_AFTER_HIDDEN = "\ufdd1"
_AFTER_STATE = chr(ord(STATE) + 1)
_DIGEST_SIZE = 15
_MAX_NAMES = 100_000
_LINES_AT_ONCE = 100

_WIDE: tuple[tuple[Key, Key], ...] = ((("",), (_AFTER_HIDDEN,)), ((HIDDEN,), (_AFTER_HIDDEN,)), ((), ()))
"""The bounds of stored names between which threads are, or all lines."""

Digest = Callable[[bytes], bytes]


class NameCodec:
    """Hides the names of lines of one tenant."""

    def __init__(self, digest: Digest) -> None:
        self._digest = digest
        self._stored: dict[str, str] = {}
        self._names: dict[str, str] = {}
        self._lost: set[str] = set()

    def hide(self, name: str) -> str:
        """Return a name as it is stored. The digest that stands for a lost name stays as it is; any other text that
        looks like one is a name, or it would be a second name of somebody else's line."""
        if name in self._lost or name.startswith(SUBJECT_LINE):
            return name
        found = self._stored.get(name)
        if found is None:
            found = self._hide_state(name) if name.startswith(STATE) else self._hide_thread(name)
            self.learn(found, name)
        return found

    def learn(self, stored: str, name: str) -> None:
        """Remember the name of a line."""
        if len(self._names) >= _MAX_NAMES:
            self._names.clear()
            self._stored.clear()
        self._names[stored], self._stored[name] = name, stored
        self._lost.discard(stored)

    def lose(self, stored: str) -> None:
        """Remember that the name of a line cannot be known: its key is gone."""
        self._lost.add(stored)

    def known(self, stored: str) -> str | None:
        """Return the name of a line by the stored one, if it is known."""
        return stored if stored.startswith(SUBJECT_LINE) else self._names.get(stored)

    def hide_start(self, start: str) -> str:
        """Return how all stored names start whose names start with a text, which ends where a part does; as far as it
        can be told."""
        if not start.startswith(STATE):
            root = start[: -len(MARK)]
            return self._hide_thread(root) + MARK if start.endswith(MARK) and root and MARK not in root else HIDDEN
        if start.startswith(AGENTS):
            return AGENTS
        whole, slash, last = start.rpartition("/")
        if not slash:
            kind, colon, _ = start.partition(":")
            return kind + colon if colon else STATE
        kind, colon, _ = last.partition(":")
        return self._hide_state(whole) + slash + (kind + colon if colon else "")

    def _hide_thread(self, name: str) -> str:
        at = 0
        while (at := name.find(MARK, at)) >= 0 and name[at + 1 : at + 2] == MARK:
            at += 2
        if at < 0:
            return self._part("", name) if name else ""
        root = self._part("", name[:at])
        return f"{root}{MARK}{self._part(root + MARK, name[at + 1 :])}"

    def _hide_state(self, name: str) -> str:
        if name.startswith(AGENTS):  # an id may contain anything
            return AGENTS + self._part(AGENTS, name[len(AGENTS) :])
        first, *others = name.split("/")
        kind, colon, rest = first.partition(":")
        stored = kind + colon + (self._part(kind, rest) if colon else "")
        for part in others:
            kind, colon, rest = part.partition(":")
            stored += f"/{kind}:" if colon else "/"
            stored += self._part(stored, rest if colon else part)
        return stored

    def _part(self, before: str, part: str) -> str:
        digest = self._digest(encode(("line", before, part)))
        return HIDDEN + urlsafe_b64encode(digest[:_DIGEST_SIZE]).decode()


class HasNames(Protocol):
    """The keys of a tenant."""

    names: NameCodec | None


class NameKeys(Protocol):
    """The keys of a store, with which names are hidden and read."""

    def known_tenant(self, tenant: str, /) -> HasNames | None:
        """Return the keys of a tenant, if they are in memory."""
        ...

    async def tenant(self, tenant: str, /) -> HasNames | None:
        """Return the keys of a tenant; None if the store has none."""
        ...

    async def read_names(self, stored: Backend, tenant: str, names: Sequence[str], /) -> dict[str, str]:
        """Return the names of lines by the stored ones, of those whose keys are there."""
        ...

    async def load_ids(self, ids: Mapping[bytes, tuple[str, str]], /) -> None:
        """Read the keys with these ids, which rows of lines have."""


class _NameList(NamedTuple):
    """The names of all lines of a tenant, in order, as of when a token was issued; and by the stored ones."""

    token: str
    names: list[str]
    by_stored: dict[str, str]

    def between(self, first: str, last: str | None) -> list[str]:
        """Return the names from one on, and up to another."""
        start = bisect_left(self.names, first)
        return self.names[start : None if last is None else bisect_left(self.names, last)]


class NamedBackend(Wrapper):
    """A store whose lines have hidden names, by their names."""

    def __init__(self, inner: Backend) -> None:
        super().__init__(inner)
        self.keys: NameKeys | None = None
        self._lists: dict[str, _NameList] = {}
        """By tenant."""

    async def _codec(self, tenant: str) -> NameCodec | None:
        """Return how names of a tenant are stored; None if it has no keys yet."""
        if self.keys is None:
            return None
        found = self.keys.known_tenant(tenant) or await self.keys.tenant(tenant)
        return None if found is None else found.names

    # Writing --------------------------------------------------------------------------------------------------

    async def apply(self, batch: Batch) -> int | None:
        return await self.inner.apply([await self._hidden_change(change) for change in batch])

    async def _hidden_change(self, change: Change) -> Change:
        if isinstance(change, Delete):
            return Delete(change.space, await self._hidden_key(change.prefix))
        if isinstance(change, Expect):
            return change._replace(key=await self._hidden_key(change.key))
        return change._replace(row=change.row._replace(key=await self._hidden_key(change.row.key)))

    async def _hidden_key(self, key: Key) -> Key:
        if len(key) < 2 or not key[1]:
            return key
        codec = await self._codec(str(key[0]))
        return key if codec is None else (key[0], codec.hide(str(key[1])), *key[2:])

    async def rebuild_line(self, tenant: str, line: str) -> bool:
        _, stored = await self._hidden_key((tenant, line))
        return await self.inner.rebuild_line(tenant, str(stored))

    # Reading --------------------------------------------------------------------------------------------------

    async def read(self, queries: Sequence[Query]) -> list[list[Row]]:
        hidden: list[Query] = []
        wide: dict[int, Scan] = {}
        for number, query in enumerate(queries):
            if isinstance(query, Get):
                hidden.append(query._replace(keys=[await self._hidden_key(key) for key in query.keys]))
            elif len(query.prefix) >= 2:
                hidden.append(query._replace(prefix=await self._hidden_key(query.prefix)))
            else:
                wide[number] = query
        answers = iter(await self.inner.read(hidden) if hidden else ())
        return [
            await self._scan(wide[number]) if number in wide else await self.with_names(next(answers))
            for number, query in enumerate(queries)
        ]

    async def with_names(self, rows: list[Row]) -> list[Row]:
        """Return rows as they are stored, with the names of their lines."""
        if not rows:
            return rows
        names = await self.names((str(row.key[0]), str(row.key[1])) for row in rows)
        return [row._replace(key=(row.key[0], names[row.key[0], row.key[1]], *row.key[2:])) for row in rows]  # type: ignore[index]

    async def names(self, lines: Iterable[tuple[str, str]]) -> dict[tuple[str, str], str]:
        """Return the names of lines by the stored ones."""
        names: dict[tuple[str, str], str] = {}
        unknown: dict[str, list[str]] = {}
        for tenant, stored in dict.fromkeys(lines):
            codec = await self._codec(tenant) if stored else None
            found = stored if codec is None else codec.known(stored)
            names[tenant, stored] = stored if found is None else found
            if found is None:
                unknown.setdefault(tenant, []).append(stored)
        for tenant, missing in unknown.items():
            codec = await self._codec(tenant)
            assert self.keys is not None and codec is not None  # noqa: S101, PT018 - or nothing was unknown
            found_names = await self.keys.read_names(self.inner, tenant, missing)
            for stored in missing:
                if stored in found_names and codec.hide(found_names[stored]) == stored:
                    names[tenant, stored] = found_names[stored]
                else:
                    codec.lose(stored)
        return names

    async def _scan(self, query: Scan) -> list[Row]:
        """Answer a scan over many lines."""
        table, tenants = query.space, query.prefix
        codec = await self._codec(str(tenants[0])) if tenants else None
        if not tenants:
            (rows,) = await self.inner.read([Scan(table, (), by=query.by, bodies=query.bodies)])
            return select_rows(query, await self.with_names(rows))
        if codec is None:
            return (await self.inner.read([query]))[0]
        tenant = str(tenants[0])
        names = await self._lines_between(codec, query)
        if query.reverse:
            names.reverse()
        found: list[Row] = []
        while names and (query.limit is None or len(found) < query.limit):
            count = min(_LINES_AT_ONCE, query.limit or _LINES_AT_ONCE)
            some, names = names[:count], names[count:]
            scans: list[Query] = [
                query._replace(prefix=(tenant, codec.hide(name)), start=(), stop=(), limit=_line_limit(query, name))
                for name in some
            ]
            if table is LINES:
                scans = [Get(table, [each.prefix]) for each in scans]  # type: ignore[union-attr]
            for name, rows in zip(some, await self.inner.read(scans), strict=True):
                found += (row._replace(key=(tenant, name, *row.key[2:])) for row in rows)
        return select_rows(query, found)

    async def _lines_between(self, codec: NameCodec, query: Scan) -> list[str]:
        """Return the names of the lines between the bounds of a scan, in order."""
        tenant, first = str(query.prefix[0]), str(query.start[0]) if query.start else ""
        last = str(query.stop[0]) if query.stop else None
        bounds = _stored_bounds(codec, first, last)
        if query.space is LINES and len(query.stop) < 2 and bounds in _WIDE:
            listed = await self._list(tenant)
            if listed is not None:
                return listed.between(first, last)
        tables = (LINES,) if query.space is LINES else (LINES, KEYS)
        pages = await self.inner.read([Scan(table, (tenant,), *bounds, bodies=False) for table in tables])
        stored = {str(row.key[1]) for rows in pages for row in rows}
        if query.space is not LINES and not first:
            stored.add("")
        names = (await self.names((tenant, each) for each in stored)).values()
        within = len(query.stop) > 1  # the end is in the last line
        return sorted(
            name for name in names if name >= first and (last is None or name < last or (within and name == last))
        )

    async def _list(self, tenant: str) -> _NameList | None:
        """Return the names of all lines of a tenant; None if they are too many to be cached."""
        known = self._lists.get(tenant)
        found = await self.inner.changes(None if known is None else known.token)
        if known is None or not found.complete:
            (rows,) = await self.inner.read([Scan(LINES, (tenant,), bodies=False)])
            if len(rows) > _MAX_NAMES:
                self._lists.pop(tenant, None)
                return None
            by_stored = await self._by_stored(tenant, [str(row.key[1]) for row in rows])
            return self._cache_list(tenant, found.token, by_stored)
        changed = {stored for each, stored in found.lines if each == tenant}
        if not changed:
            self._lists[tenant] = known._replace(token=found.token)
            return known
        (rows,) = await self.inner.read([Get(LINES, [(tenant, stored) for stored in changed])])
        there = await self._by_stored(tenant, [str(row.key[1]) for row in rows])
        by_stored = {stored: name for stored, name in known.by_stored.items() if stored not in changed} | there
        if by_stored == known.by_stored:
            self._lists[tenant] = known._replace(token=found.token)
            return known
        return self._cache_list(tenant, found.token, by_stored)

    async def _by_stored(self, tenant: str, stored: Sequence[str]) -> dict[str, str]:
        return {each: name for (_, each), name in (await self.names((tenant, each) for each in stored)).items()}

    def _cache_list(self, tenant: str, token: str, by_stored: dict[str, str]) -> _NameList:
        listed = self._lists[tenant] = _NameList(token, sorted(by_stored.values()), by_stored)
        return listed

    async def changes(self, since: str | None = None) -> Changes:
        found = await self.inner.changes(since)
        names = await self.names(found.lines)
        return found._replace(lines=[(tenant, names[tenant, stored]) for tenant, stored in found.lines])

    async def count_rows(self, scans: Sequence[Scan]) -> list[int] | None:
        """Names are in another order: rows between two of them are not counted, but kinds of lines are."""
        if not all(_is_kind(bound[0]) for scan in scans for bound in (scan.start, scan.stop) if bound):
            return None
        hidden = [scan._replace(prefix=await self._hidden_key(scan.prefix)) for scan in scans]
        return await self.inner.count_rows(hidden)

    def set_row_check(self, check: RowCheck) -> None:
        def check_named(table: Table, row: Row) -> bool:
            tenant = self.keys.known_tenant(str(row.key[0])) if self.keys is not None else None
            stored = str(row.key[1])
            name = tenant.names.known(stored) if tenant is not None and tenant.names is not None else None
            # A row of a line whose name is not known yet is checked when it is opened.
            return (name is None and bool(stored)) or check(
                table, row._replace(key=(row.key[0], name or "", *row.key[2:]))
            )

        self.inner.set_row_check(check_named)


def find_named(backend: Backend) -> NamedBackend | None:
    """Return the layer of a store that hides the names of its lines, if there is one."""
    while isinstance(backend, Wrapper) and not isinstance(backend, NamedBackend):
        backend = backend.inner
    return backend if isinstance(backend, NamedBackend) else None


def prefix_refused(prefix: str) -> UnsupportedError:
    """Return the error for a search by the start of names that are digests."""
    return UnsupportedError(
        "names are hidden in this store, so nothing can be found by the prefix of a name",
        where=f"prefix={prefix!r}"[:80],
        hint="List all, and select by name; or name the thread, the scope or the agent",
        code="prefix-refused",
    )


def _stored_bounds(codec: NameCodec, first: str, last: str | None) -> tuple[Key, Key]:
    """Return bounds of stored names between which all lines are whose names are between two others."""
    if last is not None and first:
        common = first[: next((at for at, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), len(last))]
        if common.startswith(STATE) or (first.endswith(MARK) and last == first[:-1] + chr(ord(MARK) + 1)):
            start = codec.hide_start(common if common.startswith(STATE) else first)
            return (start,), (start[:-1] + chr(ord(start[-1]) + 1),)
    if first >= STATE and last is not None and last <= _AFTER_STATE:
        return (STATE,), (_AFTER_STATE,)
    if first >= _AFTER_STATE or (last is not None and last <= STATE):
        return (("",) if not first else (HIDDEN,)), (_AFTER_HIDDEN,)
    return (), ()


def _is_kind(bound: Scalar) -> bool:
    """Return whether a bound is where a kind of lines starts or ends, as it is stored too."""
    text = str(bound)
    return text in ("", _AFTER_STATE) or (text.startswith(STATE) and not {":", "/"}.intersection(text[:-1]))


def _line_limit(query: Scan, name: str) -> int | None:
    """Return how many rows of a line are read; all, of a line in which the bounds of the scan are."""
    bounds = {str(bound[0]) for bound in (query.start, query.stop) if len(bound) > 1}
    return None if name in bounds else query.limit
