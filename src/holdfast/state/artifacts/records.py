"""The records of artifacts: how they are found, registered and deleted."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Annotated, Any, NamedTuple

import msgspec

from holdfast._fields import Hidden, Label
from holdfast.backends.interface import Change, Delete, Expect, Get, Scan
from holdfast.backends.tables import LINES, LINKS, TABLES
from holdfast.engine.artifact_links import CHANGE, LINE
from holdfast.engine.guard import Preconditions
from holdfast.engine.model.missing import MISSING
from holdfast.engine.model.scopes import Scope
from holdfast.engine.row_format import Line
from holdfast.engine.system_line import LineChange, Link, SystemLineEntries
from holdfast.engine.types import to_datetime
from holdfast.errors import ConflictError
from holdfast.hooks.feature_hooks import FeatureHooks
from holdfast.security.handle import StoreHandle
from holdfast.state.artifacts.content import CONTENT_PREFIX, ContentPieces, StoredContent, content_line, content_name
from holdfast.state.described_records import DescribedRecord, DescribedTable
from holdfast.state.reader import read_line_at
from holdfast.state.writer import FOLD_EVERY

IN_RECORD, INLINE, OWN_LINE, ELSEWHERE = "record", "inline", "line", "elsewhere"
"""Where content is: in the record, in the line of the artifacts by its hash, in a line of its own, or not in the
store. Links have it, too."""

SMALL = 4096
"""Content of up to so many bytes is in the record: a second read would cost more than a second copy."""


class Artifact(msgspec.Struct, frozen=True):
    """A file or a blob that was made or used, by its hash. `uri` says where it is, if it is not stored here.

    `by` is the identity that registered it, empty for the store's owner; `same_as` the id of another artifact that had
    the same content when this one was registered.
    """

    id: Hidden[str]
    type: str
    producer: str
    name: str
    sha256: Annotated[str, Label("SHA-256")]
    size: int
    created: datetime
    metadata: Hidden[Mapping[str, Any]]
    uri: Hidden[str]
    stored: Hidden[bool]
    by: Hidden[str]
    same_as: Hidden[str]


@dataclass
class ArtifactRecord(DescribedRecord):
    """The record of an artifact."""

    type: str
    producer: str
    name: str
    sha256: str
    size: int
    created: int
    by: str = ""
    uri: str = ""
    content: str = INLINE
    token: str = ""
    same_as: str = ""
    small: bytes = b""

    @property
    def owner(self) -> Scope:
        """The scope of the identity that registered it."""
        return Scope.parse(self.by) if self.by else Scope()

    def to_artifact(self, id: str) -> Artifact:
        """Build the public form."""
        own = {name: value for name, value in vars(self).items() if name in Artifact.__struct_fields__}
        own |= {"created": to_datetime(self.created), "metadata": dict(self.metadata)}
        return Artifact(id=id, stored=self.content != ELSEWHERE, **own)

    def links(self, id: str) -> list[Link]:
        """Return the links by which it is found."""
        named = {"type": self.type, "producer": self.producer, "by": self.by, "token": self.token}
        return [("sha256", self.sha256, id), *((kind, name, id) for kind, name in named.items() if name)]

    def schema_owner(self, id: str) -> str:  # noqa: ARG002
        """Return its type, by which schemas are attached to artifacts."""
        return self.type


class NewArtifact(NamedTuple):
    """An artifact to register."""

    id: str
    record: ArtifactRecord
    content: StoredContent
    call: FeatureHooks | None = None
    """The outcome of its hooks."""


class ContentRemoved(ConflictError):
    """Content that was not stored, since it was there already, was deleted meanwhile."""


class ArtifactRecords(DescribedTable[ArtifactRecord]):
    """The records of artifacts."""

    def __init__(self, handle: StoreHandle) -> None:
        super().__init__(handle, "artifact", LINE, ArtifactRecord, "See artifacts.list()")
        self._engine = handle.engine

    async def has_content(self, sha256: str) -> bool:
        """Whether content with this hash is stored."""
        return bool(await self.with_content(sha256, 1))

    async def with_content(self, sha256: str, limit: int) -> list[str]:
        """Return the first artifacts whose content has this hash and is stored here."""
        found: list[str] = []
        async for rows in self.linked("sha256", sha256):
            found += (str(row.key[4]) for row in rows if row.columns[1] != ELSEWHERE)
            if len(found) >= limit:
                break
        return found[:limit]

    async def ids(self, after: str, limit: int) -> list[str]:
        """Return the next ids of all artifacts, in order."""
        line = self.system_line.line
        tip = await self._engine.lines.revalidate_tip(line)
        point = None if tip is None else tip.point
        return await read_line_at(self.handle, line, point, lambda view: view.keys(after=after, limit=limit))

    def pieces(
        self, id: str, record: ArtifactRecord, check_access: Callable[[], Awaitable[Any]] | None = None
    ) -> ContentPieces:
        """Return the content of an artifact."""
        small = record.small if record.content == IN_RECORD else None
        content = StoredContent(record.sha256, record.size, small, record.token, record.uri)

        async def deleted() -> bool:
            there = await self.find(id)
            return there is None or (there.sha256, there.token) != (record.sha256, record.token)

        return ContentPieces(self.handle, f"artifact {id!r}", content, self.system_line.line, deleted, check_access)

    # Registering ------------------------------------------------------------------------------------------------

    async def register(self, new: Sequence[NewArtifact]) -> dict[str, ArtifactRecord]:
        """Register artifacts, all or none. One that exists with the same content is left as it is."""
        made: dict[str, ArtifactRecord] = {}
        lines: set[Line] = set()

        async def edit(entries: SystemLineEntries) -> LineChange:
            made.clear()
            lines.clear()
            changed = _Registration(self, entries)
            await changed.find_content({each.content.sha256 for each in new})
            there = await self.get_many((each.id for each in new), entries)
            for each in new:
                made[each.id] = await changed.add(each, there.get(each.id))
            lines.update(changed.lines)
            return changed.change

        async def guards(again: bool) -> list[Change]:
            """Return the conditions that the lines of content of the records exist: others may have removed them."""
            return [*await self.conditions(again), *await content_there()]

        async def content_there() -> list[Change]:
            if not lines:
                return []
            (rows,) = await self._engine.context.backend.read([Get(LINES, [tuple(line) for line in lines])])
            if len(rows) < len(lines):
                raise _content_removed_error()
            return [Expect(LINES, tuple(row.key), row.columns) for row in rows]

        saving = self.system_line.request("register", edit, guards)
        saving.if_changed = True
        saving.fold_every = max(1, FOLD_EVERY // len(new))  # what follows would have to go through many, each time
        (head,) = await self._engine.writer.save(saving)
        for each in new:
            if each.call is not None:
                each.call.call_after(head.point.seq + 1, head.point.id)
        return made

    async def delete(self, id: str, guards: Preconditions | None = None, call: FeatureHooks | None = None) -> None:
        """Delete an artifact, its content if no other one has it, and its links with changes."""
        gone: list[Line] = []
        hooks = call or FeatureHooks(MISSING)

        async def edit(entries: SystemLineEntries) -> LineChange:
            gone.clear()
            record = await self.get(id, entries)
            removed, rows = list[str](), [Delete(LINKS, (*self.system_line.line, CHANGE, id))]
            if record.token:
                others = [str(row.key[4]) for row in await self.system_line.linked("token", record.token, limit=2)]
            else:
                others = await self.with_content(record.sha256, 2)
            if others == [id]:
                if record.content == INLINE:
                    removed.append(content_name(record.sha256))
                elif record.content == OWN_LINE:
                    gone.append(content_line(self.handle, record.token))
                    rows += (Delete(space, tuple(gone[0])) for space in TABLES)
            more = LineChange(removed=removed, events=self.events(id, "delete", hooks), rows=rows)
            return self.replace(id, record, None) + more

        head = await self.system_line.change("delete", edit, guards)
        hooks.call_after(head.point.seq + 1, head.point.id)
        self._engine.context.cache.drop_all(*gone)

    async def sweep(self, grace: int) -> int:
        """Delete content that no artifact has and nobody added to for so long, as processes leave that die while
        they register one. Returns the number of contents deleted."""
        names = await self._engine.lines.names(self.handle.tenant, CONTENT_PREFIX)
        old = [line for line in names if await self.is_left_over(line, grace)]
        gone: list[Line] = []

        async def edit(_: SystemLineEntries) -> LineChange:
            gone[:] = [line for line in old if not await self.is_used(line)]
            return LineChange(rows=[Delete(space, tuple(line)) for line in gone for space in TABLES])

        if old:
            await self.system_line.change("sweep", edit)
        self._engine.context.cache.drop_all(*gone)
        return len(gone)

    async def is_left_over(self, line: Line, grace: int) -> bool:
        """Return whether the content of a line is of no artifact, and nobody added to it for so long."""
        tip = await self._engine.lines.load_tip(line)
        if tip is None:
            return False
        last = tip.info.created if tip.point is None else tip.point.time
        return last + grace < self.handle.now() and not await self.is_used(line)

    async def is_used(self, line: Line) -> bool:
        """Return whether the content of a line is of an artifact."""
        return bool(await self.system_line.linked("token", line.name[len(CONTENT_PREFIX) :], limit=1))


class _Registration:
    """The changes of one attempt to register artifacts."""

    def __init__(self, found: ArtifactRecords, entries: SystemLineEntries) -> None:
        self._records = found
        self._entries = entries
        self.change = LineChange()
        self._first: dict[str, tuple[str, ArtifactRecord]] = {}
        """An artifact with each content that is stored, by the hash."""
        self.lines: set[Line] = set()

    async def add(self, new: NewArtifact, old: ArtifactRecord | None) -> ArtifactRecord:
        """Add an artifact. Returns its record."""
        if old is not None:
            if (old.sha256, old.size, old.by) == (new.content.sha256, new.content.size, new.record.by):
                return old
            raise ConflictError(
                "there is an artifact of this id, with other content",
                where=f"artifact {new.id!r}",
                hint="Register it under another id, or without one",
            )
        new = new._replace(record=replace(new.record))  # another attempt may find other content that is the same
        record, content = new.record, new.content
        same = self._first.get(content.sha256)
        if same is not None and record.by in ("", same[1].by):  # nobody is told what others have
            record.same_as = same[0]
        if content.uri:
            record.content, record.uri = ELSEWHERE, content.uri
        else:
            await self._place_content(new, same)
            self._first.setdefault(content.sha256, (new.id, record))
        self.change += self._records.replace(new.id, None, record, record.content)
        self.change += LineChange(events=self._records.events(new.id, "register", new.call))
        return record

    async def _place_content(self, new: NewArtifact, same: tuple[str, ArtifactRecord] | None) -> None:
        record, content = new.record, new.content
        if content.small is not None and content.size <= SMALL:
            record.content, record.small = IN_RECORD, content.small
            return
        if content.small is not None:
            record.content = INLINE
            name = content_name(content.sha256)
            if name not in self.change.put and not await self._entries.has(name):
                self.change += LineChange(self._records.system_line.pack({name: content.small}))
            return
        token = content.token
        if not token:
            if same is None or not same[1].token:
                raise _content_removed_error()
            token = same[1].token
        record.content, record.token = OWN_LINE, token
        self.lines.add(content_line(self._records.handle, token))

    async def find_content(self, hashes: Iterable[str]) -> None:
        """Find which content is stored already, and an artifact that has it."""
        line, engine = self._records.system_line.line, self._records.handle.engine
        wanted = sorted(hashes)
        found = await engine.context.backend.read([Scan(LINKS, (*line, "sha256", each), limit=1) for each in wanted])
        ids: dict[str, str] = {}
        for sha256, rows in zip(wanted, found, strict=True):
            if rows:
                ids |= dict.fromkeys(await self._records.with_content(sha256, 1), sha256)
        for id, there in (await self._records.get_many(ids, self._entries)).items():
            self._first[ids[id]] = (id, there)


def _content_removed_error() -> ContentRemoved:
    return ContentRemoved("the same content, which was kept already, was removed meanwhile", hint="Register it again")
