"""Documents that many edit at a time, and none of them loses an edit.

A document is one value: a dict, a list, a text, or anything else. There are two ways to edit it. `edit` has a function
make the new value of the current one, and calls it again if another was first. `save` takes a whole new value together
with the version that it was made from, and merges it, three ways, with what others have made of that version since.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple, TypeAlias

from holdfast.backends.runtime.drivers import AsyncApi, SyncApi, sync_and_async
from holdfast.codec import msgpack
from holdfast.engine import validation
from holdfast.engine.model.merge import PackedConflict as PackedClash
from holdfast.engine.model.merge import PackedResolution, Resolver, merge, ours, theirs, union
from holdfast.engine.model.missing import MISSING
from holdfast.engine.model.packed_state import Packed, as_items, unpack
from holdfast.engine.model.scopes import Scope
from holdfast.errors import ConflictError, InvalidError
from holdfast.history.merge import UNRESOLVED, MergeConflict
from holdfast.state import history
from holdfast.state.history import HistoryEntry
from holdfast.state.key_changes import Change
from holdfast.state.keys import pack_value
from holdfast.state.reader import ScopeView, StoredValue, viewed
from holdfast.state.sharing.polling import until
from holdfast.state.sharing.resource import SharedResource
from holdfast.state.writer import KeyWrite, write
from holdfast.time_parsing import Duration

CONTENT = "content"
"""The key that holds a document; and that of its scope that one needs the right to."""

Settle: TypeAlias = Literal["union", "mine", "theirs", "refuse"] | Callable[[MergeConflict], Any]
"""What is done where two edits changed the same thing."""

_SHOWN = 8


class DocumentVersion(NamedTuple):
    """A document at a version; at version 0 it is not there yet, and `value` is None."""

    value: Any
    version: int


class DocumentOperations:
    """What can be done with a document. `Document` and `AsyncDocument` have these as methods."""

    def __init__(self, place: SharedResource) -> None:
        self._place = place

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._place.own}>"

    @property
    def scope(self) -> Scope:
        """The scope that stands for the document: who may read it may read, who may read and write it may edit."""
        return self._place.scope

    @sync_and_async
    async def read(self, version: int | None = None) -> DocumentVersion:
        """The document as it is, or as it was at a version; with its version, for `save`."""
        await self._place.may("read", CONTENT)
        if version is None:
            found = await self._now()
        else:
            found = await self._at(validation.require_count(version, "version"))
        await self._place.handle.guard.saw(self.scope, (CONTENT,))
        return found

    @sync_and_async
    async def edit(self, function: Change, default: Any = None) -> DocumentVersion:
        """Have a function make the new value of the current one, or of the default if there is none. If another was
        first, it is called again with what that one made. It may change what it is given, and returns the new value."""
        await self._place.may("read", CONTENT)
        handle, made = self._place.for_(CONTENT), list[Any]()
        packed = pack_value(handle, CONTENT, default)

        async def edited(live: StoredValue | None) -> Packed:
            # The default is made anew each time, too: the function may change it.
            made.append(function(unpack(handle.codec, packed if live is None else live.entry.value)))
            return pack_value(handle, CONTENT, made[-1])

        (done,) = await write(handle, {self._place.own: [KeyWrite(CONTENT, "edit", compute=edited)]})
        return DocumentVersion(made[-1], done.version)

    @sync_and_async
    async def save(self, value: Any, base: int, *, settle: Settle = "union") -> DocumentVersion:
        """Save a value that was made from a version, merged with what others made of that since. Returns what it then
        is.

        Dicts are merged key by key, lists item by item, texts line by line. Where both changed the same, `settle` says
        what is done: with `"union"`, lists and texts keep the items and lines of both, the others' first; what is
        neither is refused, as all is with `"refuse"`: `ConflictError`, and nothing is saved. `"mine"` and `"theirs"`
        take that side. A function is given the clash, in which `ours` is this edit, and returns the value, `MISSING`,
        or `UNRESOLVED` to refuse it.
        """
        await self._place.may("read", CONTENT)
        handle, version = self._place.for_(CONTENT), validation.require_count(base, "version")
        resolver = self._resolver(settle)
        mine, made = pack_value(handle, CONTENT, value), list[Packed]()

        async def merged(live: StoredValue | None) -> Packed:
            if live is None or live.version == version:
                if live is None and version:
                    raise ConflictError(
                        "the document was deleted since", where=str(self._place.own), hint="Save it with version 0"
                    )
                made.append(mine)
                return mine
            start = None if not version else await history.stored_at(handle, self._place.own, CONTENT, version)
            made.append(self._merged(start, live, mine, resolver))
            return made[-1]

        (done,) = await write(handle, {self._place.own: [KeyWrite(CONTENT, "edit", compute=merged)]})
        return DocumentVersion(unpack(handle.codec, made[-1]), done.version)

    @sync_and_async
    async def wait(self, after: int, timeout: Duration | None = None) -> DocumentVersion | None:
        """The document, as soon as it has a later version; None if it had none within so many seconds."""
        version = validation.require_count(after, "version")
        await self._place.may("read", CONTENT)

        async def look() -> DocumentVersion | None:
            found = await self._now()
            return found if found.version > version else None

        found = await until(look, timeout)
        await self._place.handle.guard.saw(self.scope, (CONTENT,))
        return found

    @sync_and_async
    async def history(self, limit: int = 100, before: int | HistoryEntry | None = None) -> list[HistoryEntry]:
        """Who edited it, when and why, the latest first. `before` the last one of a page, or a version, goes on with a
        longer history."""
        return await history.of(
            self._place.for_(CONTENT), self._place.own, CONTENT, validation.require_count(limit, "limit"), before
        )

    @sync_and_async
    async def delete(self) -> bool:
        """Take the document away; its history stays. False if there was none."""
        (done,) = await write(self._place.for_(CONTENT), {self._place.own: [KeyWrite(CONTENT, "delete")]})
        return done.before > 0

    # Inside -------------------------------------------------------------------------------------------------------

    async def _now(self) -> DocumentVersion:
        async def look(view: ScopeView) -> DocumentVersion:
            found = await view.item(CONTENT)
            return DocumentVersion(None, 0) if found is None else DocumentVersion(found.value, found.version)

        return await viewed(self._place.handle, self._place.own, look)

    async def _at(self, version: int) -> DocumentVersion:
        handle = self._place.handle
        found = None if not version else await history.stored_at(handle, self._place.own, CONTENT, version)
        if found is None:
            return DocumentVersion(None, 0)
        return DocumentVersion(unpack(handle.codec, found.entry.value), found.version)

    def _merged(self, base: StoredValue | None, live: StoredValue, mine: Packed, resolver: Resolver) -> Packed:
        name = b""
        start = {} if base is None else {name: base.entry.value}
        found = merge(start, {name: mine}, {name: live.entry.value}, resolver)
        if found.conflicts or name not in found.state:
            clashes = tuple(map(self._shown, found.conflicts))
            error = ConflictError(
                f"both changed the same: {', '.join(clash.where or 'the whole' for clash in clashes[:_SHOWN])}",
                where=str(self._place.own),
                hint="Read it again and apply the edit to what is there, or settle it with a function",
                code="version-mismatch",
            )
            error.conflicts = clashes
            raise error
        return found.state[name]

    def _resolver(self, settle: Settle) -> Resolver:
        if callable(settle):
            return lambda clash: self._asked(settle, clash)
        known: dict[object, Resolver] = {"union": _united, "mine": ours, "theirs": theirs, "refuse": lambda _: None}
        if settle not in known:
            raise InvalidError(
                f"edits are settled by 'union', 'mine', 'theirs', 'refuse' or a function, not {settle!r}"
            )
        return known[settle]

    def _asked(self, function: Callable[[MergeConflict], Any], clash: PackedClash) -> PackedResolution | None:
        value = function(self._shown(clash))
        if value is UNRESOLVED:
            return None
        return PackedResolution(None if value is MISSING else pack_value(self._place.handle, CONTENT, value))

    def _shown(self, clash: PackedClash) -> MergeConflict:
        codec = self._place.handle.codec
        path = tuple(codec.unpack(part) if isinstance(part, bytes) else part for part in clash.path[1:])
        return MergeConflict(path, *(MISSING if side is None else unpack(codec, side) for side in clash[1:]))


class Document(SyncApi, DocumentOperations):
    """A document that many edit: `store.sharing.document("plan")`."""


class AsyncDocument(AsyncApi, DocumentOperations):
    """The same, for asyncio: operations are awaited."""


def _united(clash: PackedClash) -> PackedResolution | None:
    """Keep the items of lists and the lines of texts of both sides, those that were there first in front."""
    turned = clash._replace(ours=clash.theirs, theirs=clash.ours)
    if isinstance(clash.ours, list):
        return union(turned)
    sides = [_lines(side) for side in clash[1:]]
    if sides[1] is None or sides[2] is None:
        return union(turned)
    name = b""
    found = merge({name: sides[0] or []}, {name: sides[2]}, {name: sides[1]}, union)
    text = b"".join(map(msgpack.content, as_items(found.state[name]) or []))
    if not any(isinstance(side, bytes) and msgpack.content(side).endswith((b"\n", b"\r")) for side in clash[2:]):
        text = text.removesuffix(b"\n")
    return PackedResolution(msgpack.text(text))


def _lines(side: Packed | None) -> list[bytes] | None:
    """A packed text as its packed lines, each with its end; None if it is no text."""
    if not isinstance(side, bytes) or not msgpack.is_str(side):
        return None
    lines = msgpack.content(side).splitlines(keepends=True)
    return [msgpack.text(line if line.endswith((b"\n", b"\r")) else line + b"\n") for line in lines]
