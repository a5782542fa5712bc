"""Documents that many edit concurrently, without losing an edit.

A document is one value: a dict, a list, a text, or anything else. `edit` has a function compute the new value from the
current one, and calls it again if another writer was first. `save` takes a whole new value with the version that it was
made from, and merges it with what others have saved since. `patch` changes parts, which operators can combine with
their current values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeAlias

import msgspec

from holdfast.backends.runtime.drivers import AsyncApi, SyncApi, declare, operation
from holdfast.codec import msgpack
from holdfast.engine import validation
from holdfast.engine.model.merge import PackedConflict as PackedClash
from holdfast.engine.model.merge import PackedResolution, Resolver, merge, union
from holdfast.engine.model.missing import MISSING
from holdfast.engine.model.packed_state import Packed, as_items, pack_name, unpack
from holdfast.engine.pages import Page, paged
from holdfast.errors import ConflictError
from holdfast.history.merge import UNRESOLVED, MergeConflict
from holdfast.state import history
from holdfast.state.history import HistoryEntry
from holdfast.state.key_changes import Conflict, ValueFunction, check_on_conflict, merge_since, patch_change
from holdfast.state.keys import pack_value
from holdfast.state.reader import ScopeView, StoredValue
from holdfast.state.sharing.resource import NOT_REMOTE, SharedOperations, wait_until
from holdfast.state.writer import KeyWrite
from holdfast.time_parser import Duration

CONTENT = "content"
"""The key that holds a document; and the key of its scope that rights are needed for."""

OnDocumentConflict: TypeAlias = Conflict | Callable[[MergeConflict], Any]
"""The treatment of a document that has another version than expected. A function resolves what both sides changed."""

_SHOWN = 8


class DocumentVersion(msgspec.Struct, frozen=True):
    """A document at a version; version 0 means that it does not exist, and `value` is None."""

    value: Any
    version: int


@declare(not_remote=NOT_REMOTE)
class DocumentOperations(SharedOperations):
    """Operations on a document. `Document` and `AsyncDocument` have these as methods.

    Who may read its scope may read the document, and who may read and write it may edit it.
    """

    @operation
    async def read(self, version: int | None = None) -> DocumentVersion:
        """Return the document, now or at a version; with its version, for `save`."""
        await self._resource.require("read", CONTENT)
        if version is None:
            found = await self._read_latest()
        else:
            found = await self._read_at(validation.require_count(version, "version"))
        await self._resource.handle.guard.saw(self.scope, (CONTENT,))
        return found

    @operation(changes=True)
    async def edit(self, function: ValueFunction, default: Any = None) -> DocumentVersion:
        """Set the document to what a function returns for its current value, or for the default if there is none. If
        another writer was first, the function is called again. It may change its argument."""
        await self._resource.require("read", CONTENT)
        handle, made = self._resource.handle, list[Any]()
        packed = pack_value(handle, CONTENT, default)

        async def edited(live: StoredValue | None) -> Packed:
            # The default is made anew each time, too: the function may change it.
            made.append(function(unpack(handle.codec, packed if live is None else live.entry.value)))
            return pack_value(handle, CONTENT, made[-1])

        (done,) = await self._write(CONTENT, [KeyWrite(CONTENT, "edit", compute=edited)])
        return DocumentVersion(made[-1], done.version)

    @operation(changes=True)
    async def patch(self, changes: Mapping[Any, Any], *, remove: Iterable[Any] = ()) -> int:
        """Change parts of the document, which starts as an empty dict. Returns the new version.

        `changes` maps a key, or a tuple of nested keys, to its new value, or to an operator that changes it:
        `Increment`, `Append`, `AddToSet`, `Max`. What operators did is retained when others save what they have made
        from an earlier version. `remove` lists keys and paths to remove.
        """
        await self._resource.require("read", CONTENT)
        change = patch_change(CONTENT, changes, remove, str(self._resource.name))
        change.action = "edit"
        (done,) = await self._write(CONTENT, [change])
        return done.version

    @operation(changes=True)
    async def save(self, value: Any, base: int, *, on_conflict: OnDocumentConflict = "merge") -> DocumentVersion:
        """Save a value that was made from a version. Returns the document as it is then.

        If others have saved since that version, `on_conflict` says what happens. `"merge"` merges dicts key by key,
        lists item by item and texts line by line; where both changed the same part, lists and texts keep the items and
        lines of both, the others' first, and for anything else `ConflictError` is raised and nothing is saved. A
        function merges as well, and is called with each `MergeConflict`, in which `ours` is this edit; it returns the
        value, `MISSING`, or `UNRESOLVED` to raise. `"raise"` raises without a merge; `"overwrite"` saves the value as
        it is.

        A merge compares values: if two edits both turn a counter from 1 to 2, it is 2. Use `patch` with operators such
        as `Increment` for changes that must add up.
        """
        check_on_conflict(on_conflict)
        await self._resource.require("read", CONTENT)
        handle, version = self._resource.handle, validation.require_count(base, "version")
        packed = [pack_value(handle, CONTENT, value)]
        change = KeyWrite(CONTENT, "edit", packed=packed[0])

        async def merged(live: StoredValue | None) -> Packed:
            if live is None and version:
                raise ConflictError(
                    "the document was deleted since", where=str(self._resource.name), hint="Save it with version 0"
                )
            if live is None or live.version == version:
                packed.append(packed[0])
            else:
                packed.append(await self._merge(version, live, packed[0], on_conflict))
            return packed[-1]

        if on_conflict == "raise":
            change.expected = version
        elif on_conflict != "overwrite":
            change.compute = merged
        (done,) = await self._write(CONTENT, [change])
        return DocumentVersion(unpack(handle.codec, packed[-1]), done.version)

    @operation
    async def wait(self, after: int, timeout: Duration | None = None) -> DocumentVersion | None:
        """Wait for a version after this one, and return it; None after the timeout."""
        version = validation.require_count(after, "version")
        await self._resource.require("read", CONTENT)

        async def look() -> DocumentVersion | None:
            found = await self._read_latest()
            return found if found.version > version else None

        found = await wait_until(look, timeout)
        await self._resource.handle.guard.saw(self.scope, (CONTENT,))
        return found

    @operation
    @paged
    async def history(self, *, limit: int = 100, cursor: str | None = None) -> Page[HistoryEntry]:
        """List who edited it, when and why, the latest first, a page of them."""
        return await history.list_changes(
            self._resource.handle_for(CONTENT),
            self._resource.name,
            CONTENT,
            validation.require_count(limit, "limit"),
            cursor,
        )

    @operation(changes=True)
    async def delete(self) -> bool:
        """Delete the document; its history stays. False if there was none."""
        (done,) = await self._write(CONTENT, [KeyWrite(CONTENT, "delete")])
        return done.before > 0

    # Inside -------------------------------------------------------------------------------------------------------

    async def _read_latest(self) -> DocumentVersion:
        async def look(view: ScopeView) -> DocumentVersion:
            found = await view.item(CONTENT)
            return DocumentVersion(None, 0) if found is None else DocumentVersion(found.value, found.version)

        return await self._read(look)

    async def _read_at(self, version: int) -> DocumentVersion:
        handle = self._resource.handle
        found = None if not version else await history.stored_at(handle, self._resource.name, CONTENT, version)
        if found is None:
            return DocumentVersion(None, 0)
        return DocumentVersion(unpack(handle.codec, found.entry.value), found.version)

    async def _merge(self, base: int, live: StoredValue, mine: Packed, on_conflict: OnDocumentConflict) -> Packed:
        handle, name = self._resource.handle, pack_name(CONTENT)
        resolver: Resolver = (lambda clash: self._resolve(on_conflict, clash)) if callable(on_conflict) else _unite
        found = await merge_since(handle, self._resource.name, CONTENT, base, live, mine, resolver)
        if found.conflicts or name not in found.state:
            clashes = tuple(map(self._to_conflict, found.conflicts))
            error = ConflictError(
                f"both changed the same: {', '.join(clash.where or 'the whole' for clash in clashes[:_SHOWN])}",
                where=str(self._resource.name),
                hint="Read it again and apply the edit to the current document, or pass a function as on_conflict",
                code="version-mismatch",
            )
            error.conflicts = clashes
            raise error
        return found.state[name]

    def _resolve(self, function: Callable[[MergeConflict], Any], clash: PackedClash) -> PackedResolution | None:
        value = function(self._to_conflict(clash))
        if value is UNRESOLVED:
            return None
        return PackedResolution(None if value is MISSING else pack_value(self._resource.handle, CONTENT, value))

    def _to_conflict(self, clash: PackedClash) -> MergeConflict:
        codec = self._resource.handle.codec
        path = tuple(codec.unpack(part) if isinstance(part, bytes) else part for part in clash.path[1:])
        return MergeConflict(path, *(MISSING if side is None else unpack(codec, side) for side in clash[1:]))


class Document(SyncApi, DocumentOperations):
    """A document that many edit: `store.sharing.document("plan")`."""


class AsyncDocument(AsyncApi, DocumentOperations):
    """A document for asyncio: operations are awaited."""


def _unite(clash: PackedClash) -> PackedResolution | None:
    """Keep the items of lists and the lines of texts of both sides, those that were saved first in front."""
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
    """Return the packed lines of a packed text, each with its end; None if it is not text."""
    if not isinstance(side, bytes) or not msgpack.is_str(side):
        return None
    lines = msgpack.content(side).splitlines(keepends=True)
    return [msgpack.text(line if line.endswith((b"\n", b"\r")) else line + b"\n") for line in lines]
