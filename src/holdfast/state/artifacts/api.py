"""The API of artifacts: files and blobs that programs make and use, and the changes of state made with them.

An artifact belongs to the identity that registered it: to read it is to read the key `artifacts/<id>` of that
identity's scope, and to delete it is to write that key. So the store's owner may do everything, an identity what it
likes with its own, and with another's what it was granted.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from datetime import datetime
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple, Self

import msgspec

from holdfast._fields import Hidden, Local
from holdfast.backends.interface import Scan
from holdfast.backends.runtime.drivers import FILES, OBJECTS, AsyncApi, SyncApi, arun, operation, run
from holdfast.backends.tables import LINKS
from holdfast.engine import artifact_links, trace_context, validation
from holdfast.engine.guard import Action, Guard, Permit
from holdfast.engine.model.scopes import Scope, check_key
from holdfast.engine.pages import Page, paged
from holdfast.engine.record_table import PAGE
from holdfast.engine.row_format import Line
from holdfast.engine.types import to_datetime
from holdfast.errors import ConflictError, CorruptError, DeniedError, InvalidError, NotFoundError, UnsupportedError
from holdfast.hooks.feature_hooks import call_hooks
from holdfast.security.access.identity import owns
from holdfast.security.handle import StoreHandle
from holdfast.state.artifacts.content import AsyncContent, BinaryFile, ContentPieces, ContentUpload, open_content
from holdfast.state.artifacts.records import (
    Artifact,
    ArtifactRecord,
    ArtifactRecords,
    ContentRemoved,
    NewArtifact,
)

MAX_ID = 900
"""The maximum size of an id in bytes of UTF-8: the keys of links have a version before it."""

_ATTEMPTS = 5
"""How often content is stored again because others deleted equal content."""

_DESCRIPTION = ("type", "producer", "name")

_NOT_REGISTERED = (NotFoundError, ConflictError, CorruptError, DeniedError, UnsupportedError, InvalidError)
"""After other errors, the artifacts may have been registered after all: their content is then left to the sweep."""


class ArtifactLink(msgspec.Struct, frozen=True):
    """A change of a key, and an artifact that it was made with. `version` is that of the key after the change, or
    the number of the step that deleted it; `id` is that of the step. `cursor` is the position for the next page.

    Of a checkpoint, `scope` is the place of its thread, `thread:chat-1`, and `key` its id."""

    artifact: Hidden[str]
    scope: Scope
    key: str
    version: int
    id: Hidden[str]
    time: datetime
    cursor: Hidden[Local[str]]


class ArtifactSource(NamedTuple):
    """An artifact to register together with others. See `Artifacts.register`."""

    source: str | PathLike[str] | bytes | BinaryFile
    id: str | None = None
    type: str = ""
    producer: str = ""
    name: str = ""
    metadata: Mapping[str, Any] | None = None
    keep: bool = True
    sha256: str | None = None
    size: int | None = None


class ArtifactsOperations:
    """Operations of `store.artifacts`. `Artifacts` and `AsyncArtifacts` have these as methods."""

    Source = ArtifactSource

    def __init__(self, handle: StoreHandle) -> None:
        self._handle = handle
        self._records = ArtifactRecords(handle)

    # Registering ------------------------------------------------------------------------------------------------

    @operation(changes=True)
    async def register(
        self,
        source: str | PathLike[str] | bytes | BinaryFile,
        *,
        id: str | None = None,
        type: str = "",
        producer: str = "",
        name: str = "",
        metadata: Mapping[str, Any] | None = None,
        keep: bool = True,
        sha256: str | None = None,
        size: int | None = None,
    ) -> Artifact:
        """Register a file by its path, bytes, or a file that is open for reading bytes.

        Its content is read in pieces, hashed, and stored once for all artifacts that have it. With `keep=False` only
        its path and its hash are stored; a URI of another machine then needs `sha256` and `size`. Otherwise these are
        checked, if they are given: `CorruptError`. Registering the same content under the same id again changes
        nothing; other content raises `ConflictError`.
        """
        given = ArtifactSource(source, id, type, producer, name, metadata, keep, sha256, size)
        (made,) = await self._register([given])
        return made

    @operation(changes=True, not_remote=FILES, not_in_scripts="`register` takes the content of one.")
    async def register_many(self, sources: Iterable[ArtifactSource]) -> list[Artifact]:
        """Register several artifacts, all or none: much faster than one by one. All small content (up to 1 MB each)
        is in memory meanwhile."""
        given = list(validation.require_several(sources, "artifact"))
        for each in given:
            if not isinstance(each, ArtifactSource):
                raise InvalidError("an artifact must be a store.artifacts.Source(…)", where=repr(each)[:80])
        return await self._register(given) if given else []

    async def _register(self, given: list[ArtifactSource]) -> list[Artifact]:
        again = all(isinstance(each.source, str | PathLike | bytes) for each in given)
        for _ in range(_ATTEMPTS if again else 0):
            try:
                return await self._register_once(given)
            except ContentRemoved:
                continue
        return await self._register_once(given)

    async def _register_once(self, given: list[ArtifactSource]) -> list[Artifact]:
        new: list[NewArtifact] = []
        upload = ContentUpload(self._records.handle, self._records.has_content)
        try:
            for source in given:
                new += [await self._new(upload, source)]
            if len({each.id for each in new}) < len(new):
                raise InvalidError("two artifacts that are registered together have one id")
            with trace_context.correlation():
                new = [await self._call_hooks(each) for each in new]
                for each in new:
                    await self._records.fit(each.id, each.record, None)
                made = await self._records.register(new)
        except _NOT_REGISTERED:
            for each in new:
                await upload.drop(each.content)
            raise
        for each in new:
            if each.content.token and made[each.id].token != each.content.token:
                await upload.drop(each.content)  # it had been registered already
        return [await self._artifact(each.id, made[each.id]) for each in new]

    async def _artifact(self, id: str, record: ArtifactRecord, *, migrate: bool = True) -> Artifact:
        """Return the public form of a record, with its metadata as it is stored or upgraded."""
        if migrate:
            await self._records.upgrade(id, record)
        return record.to_artifact(id)

    async def _new(self, upload: ContentUpload, given: ArtifactSource) -> NewArtifact:
        id = secrets.token_hex(16) if given.id is None else _check_id(self._handle.guard, given.id)
        actor = self._handle.guard.actor
        type_ = _check_text("type", given.type)
        producer = _check_text("producer", given.producer or actor)
        name = _check_text("name", given.name or _name_of(given.source))
        metadata = dict(validation.require_mapping(given.metadata or {}, "metadata"))
        size = validation.optional_count(given.size, "size")
        if actor:
            await self._handle.guard.allow("write", Scope.parse(actor), (_key(id),))
        content = await upload.store(given.source, keep=given.keep, sha256=given.sha256, size=size)
        now = self._handle.now()
        record = ArtifactRecord(type_, producer, name, content.sha256, content.size, now, actor, metadata=metadata)
        return NewArtifact(id, record, content)

    async def _call_hooks(self, new: NewArtifact) -> NewArtifact:
        """Call the hooks, which may change the description."""
        record = new.record
        about = {name: getattr(record, name) for name in (*_DESCRIPTION, "metadata")}
        call = await call_hooks(
            self._handle.engine,
            "artifact.register",
            scope=str(record.owner),
            key=new.id,
            value=about,
            actor=record.by,
            trace=trace_context.current(),
            metadata={"sha256": record.sha256, "size": record.size},
        )
        if call.value is not about:
            told = validation.require_mapping(call.value, "description of an artifact")
            record = replace(record, metadata=dict(validation.require_mapping(told.get("metadata", {}), "metadata")))
            for name in _DESCRIPTION:
                setattr(record, name, _check_text(name, told.get(name, "")))
        return new._replace(record=record, call=call)

    @operation(changes=True)
    async def delete(self, id: str) -> None:
        """Delete an artifact, its content unless another one has the same, and its links with changes of state. The
        changes stay. Raises `NotFoundError`."""
        record, permit = await self._permit(id, "write")
        with trace_context.correlation():
            call = await call_hooks(
                self._handle.engine,
                "artifact.delete",
                scope=str(record.owner),
                key=id,
                actor=self._handle.guard.actor,
                trace=trace_context.current(),
                metadata={name: getattr(record, name) for name in (*_DESCRIPTION, "sha256", "size")},
            )
            await self._records.delete(id, permit.guards, call)

    # Reading ----------------------------------------------------------------------------------------------------

    @operation
    async def get(self, id: str, *, migrate: bool = True) -> Artifact:
        """Return the description of an artifact. Raises `NotFoundError`. With `migrate=False`, its metadata is as it
        was stored, whatever schema is attached."""
        return await self._artifact(id, await self._require(id, "read"), migrate=migrate)

    @operation
    async def read(self, id: str) -> bytes:
        """Return the whole content. Raises `CorruptError` if it is not what was registered."""
        return await self._pieces(id, await self._require(id, "read")).read_all()

    @operation(not_remote=OBJECTS, not_in_scripts="`read` returns the content.")
    async def open(self, id: str) -> Any:
        """Open the content as a binary file, or on an AsyncStore for `async for`. The last piece is returned only
        after the whole content was checked: `CorruptError` if it is not what was registered. Every read checks that
        the caller may still read the artifact."""
        pieces = self._pieces(id, await self._require(id, "read"))
        return open_content(pieces) if isinstance(self, SyncApi) else AsyncContent(pieces)

    @operation(local=FILES)
    async def save(self, id: str, path: str | PathLike[str]) -> None:
        """Write the content to a file, or replace one. Raises `CorruptError`, and leaves the file unchanged, if the
        content is not what was registered."""
        await self._pieces(id, await self._require(id, "read")).save(Path(path))

    @operation
    async def verify(self, id: str) -> Artifact:
        """Read all of the content. Raises `CorruptError` if it is not what was registered; `NotFoundError` if it is
        stored elsewhere and missing there."""
        record = await self._require(id, "read")
        await self._pieces(id, record).verify()
        return await self._artifact(id, record)

    # Changes made with artifacts --------------------------------------------------------------------------------

    def using(self, *ids: str) -> LinkBlock:
        """Link all changes of state and all checkpoints in this block with these artifacts: `with
        store.artifacts.using(id): …`, or `async with`. Raises `NotFoundError`."""
        if not ids:
            raise InvalidError("a block uses an artifact at least", hint="Give its id")
        return LinkBlock(self, ids)

    @operation
    @paged
    async def changes(self, id: str, *, limit: int = 100, cursor: str | None = None) -> Page[ArtifactLink]:
        """List the changes of state and the checkpoints made with an artifact, in order of time, a page of them. An
        identity gets those of its own scopes, and of threads that it may read."""
        await self._require(id, "read")
        count, actor = validation.require_count(limit, "limit"), self._handle.guard.actor
        own = Scope.parse(actor) if actor else Scope()
        found: list[ArtifactLink] = []
        size = min(PAGE, count + 1)
        async for rows in self._records.linked(artifact_links.CHANGE, id, validation.cursor_text(cursor), size):
            made = [(artifact_links.parse_change_link(row), row) for row in rows]
            threads = {Line(self._handle.tenant, link.scope.thread) for link, _ in made if link.scope.thread}
            readable = {line.name for line in await self._handle.guard.visible_threads(list(threads))}
            for link, row in made:
                if not actor or link.scope.thread in readable or owns(own, link.scope):
                    found.append(_to_link(link, str(row.key[4])))
            if len(found) > count:
                break
        return Page.cut(found, count, lambda link: link.cursor)

    @operation
    @paged
    async def of(
        self,
        scope: Scope | str | Any = None,
        key: str | None = None,
        *,
        thread: str | None = None,
        version: int | None = None,
        limit: int = 100,
        cursor: str | None = None,
    ) -> Page[ArtifactLink]:
        """List the artifacts that a scope's keys were changed with, or one key, or one version of it, in the order
        of keys and versions, a page of them. The scope is given as text, or as `store.state(…)`. With `thread`, those
        that its checkpoints were saved with; the key is then the id of a checkpoint."""
        guard = self._handle.guard
        if (scope is None) is (thread is None):
            raise InvalidError("artifacts are those of a scope or of a thread: give one of them")
        if thread is None:
            at = guard.scope(getattr(scope, "scope", scope))
            line, wanted = self._handle.line(at), None if key is None else guard.key(at, key)
        else:
            line, wanted = self._handle.thread_line(thread), key
            at = Scope.of_thread(line.name)
        count, number = validation.require_count(limit, "limit"), validation.optional_count(version, "version")
        if thread is None:
            await guard.allow("read", at, () if wanted is None else (wanted,))
        else:
            await guard.allow_thread("read", line)
        prefix: tuple[Any, ...] = (*line, artifact_links.ARTIFACT)
        start, stop = _parse_cursor(cursor), tuple[str, ...]()
        if wanted is not None:
            prefix, start = (*prefix, wanted), start[1:]
            if number is not None:
                start = max(start, (artifact_links.version_prefix(number),))
                stop = (artifact_links.version_prefix(number + 1),)
        found: list[ArtifactLink] = []
        while len(found) <= count:
            page = min(PAGE, count - len(found) + 1)
            query = Scan(LINKS, prefix, start=start, stop=stop, limit=page)
            (rows,) = await self._handle.engine.context.backend.read([query])
            for row in rows:
                made = artifact_links.parse_key_link(at, row)
                if number in (None, made.version):
                    found.append(_to_link(made, f"{len(made.key)} {made.key}{row.key[4]!s}"))
            if len(rows) < page:
                break
            last = (str(rows[-1].key[3]), f"{rows[-1].key[4]!s}\0")
            start = last if wanted is None else last[1:]
        if thread is None:
            await guard.saw(at, () if wanted is None else (wanted,))
        else:
            await guard.saw_thread(line)
        return Page.cut(found, count, lambda link: link.cursor)

    # Inside -----------------------------------------------------------------------------------------------------

    def _pieces(self, id: str, record: ArtifactRecord) -> ContentPieces:
        """Return the content of an artifact, which can be read as long as the caller may read it."""
        guard = self._handle.guard

        async def check_access() -> None:
            await guard.allow_named("read", record.owner, (_key(id),), f"artifact {id!r}")

        return self._records.pieces(id, record, check_access if guard.actor else None)

    async def _require(self, id: str, action: Action) -> ArtifactRecord:
        """Return the record of an artifact that may be read or deleted."""
        record, _ = await self._permit(id, action)
        return record

    async def _permit(self, id: str, action: Action) -> tuple[ArtifactRecord, Permit]:
        """Return the record of an artifact and the permit to read or delete it. To those who may not know of it, an
        artifact looks as if it did not exist."""
        guard = self._handle.guard
        id = _check_id(guard, id)
        found = await self._records.find(id)
        owner = Scope() if found is None else found.owner
        permit = await guard.allow_named(action, owner, (_key(id),), f"artifact {id!r}")
        if found is None:
            raise self._records.missing_error(id)
        if action == "read":
            await guard.saw(owner, (_key(id),))
        return found, permit

    async def _require_all(self, ids: Iterable[str]) -> None:
        for id in ids:
            await self._require(id, "read")

    @operation
    @paged
    async def list(
        self,
        *,
        type: str | None = None,
        producer: str | None = None,
        sha256: str | None = None,
        limit: int = 100,
        cursor: str | None = None,
    ) -> Page[Artifact]:
        """List artifacts in the order of their ids, a page of them: those of a type, of a producer, with a hash. An
        identity gets its own."""
        count, actor = validation.require_count(limit, "limit"), self._handle.guard.actor
        links = [("sha256", sha256), ("producer", producer), ("type", type), ("by", actor or None)]
        kind, name = next(((kind, name) for kind, name in links if name is not None), ("", ""))
        if actor:
            await self._handle.guard.allow("read", Scope.parse(actor), ())
        found: list[Artifact] = []
        after = validation.cursor_text(cursor)
        while len(found) <= count:
            page = min(PAGE, count - len(found) + 1)
            if kind:
                ids = [str(row.key[4]) for row in await self._records.system_line.linked(kind, name, after, page)]
            else:
                ids = await self._records.ids(after, page)
            for id, record in (await self._records.get_many(ids)).items():
                wanted = {"type": type, "producer": producer, "sha256": sha256, "by": actor or None}
                if all(value in (None, getattr(record, what)) for what, value in wanted.items()):
                    found.append(await self._artifact(id, record))
            if len(ids) < page:
                break
            after = ids[-1]
        return Page.cut(found, count, lambda artifact: artifact.id)


class LinkBlock:
    """A block in which changes of state are linked with artifacts. See `Artifacts.using`."""

    def __init__(self, artifacts: ArtifactsOperations, ids: tuple[str, ...]) -> None:
        self._artifacts = artifacts
        self._ids = ids
        self._linked: AbstractContextManager[None] = trace_context.link_artifacts(*ids)

    def __enter__(self) -> Self:
        if not isinstance(self._artifacts, SyncApi):
            raise InvalidError("a block of an AsyncStore is entered with `async with`")
        run(self._artifacts._require_all(self._ids))
        self._linked.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._linked.__exit__(*error)

    async def __aenter__(self) -> Self:
        if isinstance(self._artifacts, SyncApi):
            raise InvalidError("a block of a Store is entered with `with`")
        await arun(self._artifacts._require_all(self._ids))
        self._linked.__enter__()
        return self

    async def __aexit__(self, *error: Any) -> None:
        self._linked.__exit__(*error)


class Artifacts(SyncApi, ArtifactsOperations):
    """`store.artifacts` of a `Store`."""


class AsyncArtifacts(AsyncApi, ArtifactsOperations):
    """`store.artifacts` of an `AsyncStore`: operations are awaited."""


def _to_link(made: artifact_links.LinkRow, cursor: str) -> ArtifactLink:
    return ArtifactLink(made.artifact, made.scope, made.key, made.version, made.id, to_datetime(made.time), cursor)


def _parse_cursor(cursor: str | None) -> tuple[str, ...]:
    """Return the position of a cursor: a key, and the rest of the row's key."""
    text = validation.cursor_text(cursor)
    if not text:
        return ()
    number, _, rest = text.partition(" ")
    length = validation.cursor_number(number)
    if len(rest) < length:
        raise validation.cursor_error(cursor)
    return rest[:length], rest[length:] + "\0"


def _check_id(guard: Guard, id: object) -> str:
    checked = guard.key("artifacts", id, "id of an artifact")
    if (size := len(checked.encode())) > MAX_ID:
        raise InvalidError(f"the id of an artifact has at most {MAX_ID} bytes of UTF-8, and this one {size}")
    return checked


def _check_text(what: str, text: object) -> str:
    return check_key(text, f"{what} of an artifact") if text != "" else ""


def _key(id: str) -> str:
    return f"artifacts/{id}"


def _name_of(source: object) -> str:
    return Path(source).name if isinstance(source, str | PathLike) else ""
