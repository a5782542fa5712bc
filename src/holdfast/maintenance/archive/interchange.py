"""The interchange format: threads as lines of JSON that other programs can read and write, both ways.

`docs/interchange-format.md` specifies it. A checkpoint has its whole state, or a JSON Patch of that of the checkpoint
before it in the file. An import saves each checkpoint as a program would: under the store's schemas, policies, quotas
and keys. What is there already is compared and skipped, so that an import which was interrupted goes on.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Annotated, Any, Literal, NamedTuple, TypeAlias

import msgspec

from holdfast.backends.interface import Ensure, Get
from holdfast.backends.tables import LINES, REFS
from holdfast.codec.json_codec import from_json, is_mark, to_json
from holdfast.engine.append import AppendRequest, OnConflict
from holdfast.engine.branch_graph import Position
from holdfast.engine.engine import Engine
from holdfast.engine.ids import check_new_name
from holdfast.engine.lines import LABEL, MAIN, ROOT, TAG, OnBranch
from holdfast.engine.model.diff import diff_maps
from holdfast.engine.model.json_diff import tree_of
from holdfast.engine.model.packed_state import SMALL, PackedMap, as_items, as_map, flatten, pack_name
from holdfast.engine.model.steps import ANSWERED, RECORDED, PendingWriteRow, StepOrigin, StepParent
from holdfast.engine.namespaces import rename_line, root_of, split_name, thread_name
from holdfast.engine.row_format import AT_HEAD, Line, StepRef, check_name, info_row, readable
from holdfast.engine.step_info import StepInfo
from holdfast.engine.subject_names import MIXED
from holdfast.engine.types import Progress, to_datetime, to_time
from holdfast.errors import ConflictError, CorruptError, HoldfastError, InvalidError, NotFoundError, UnsupportedError
from holdfast.history.branches import check_branch_name
from holdfast.history.comparison import ComparedPoint, compare
from holdfast.history.diff_result import apply_patch
from holdfast.history.thread_status import refresh_status
from holdfast.maintenance.archive.export import ExportReport, scratch_store
from holdfast.maintenance.archive.format import ArchiveFile, ArchiveReader, ArchiveWriter
from holdfast.maintenance.archive.import_ import ImportReport, ImportSelection
from holdfast.maintenance.erasure.finder import read_subjects, set_subject, tenant_key
from holdfast.maintenance.erasure.reapply import apply_ledger, read_ledger
from holdfast.security.audit import thread_audit

VERSION = 1
FORMAT = "jsonl"
_PAGE = 32
"""The number of checkpoints that are read together."""
SAVE = "save"
_NOT_EXCHANGED = (RECORDED, ANSWERED)
_FIRST, _LAST = datetime(1970, 1, 1, tzinfo=UTC), datetime(2262, 1, 1, tzinfo=UTC)
_MALFORMED = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


class HistoryLine(msgspec.Struct, tag_field="type", forbid_unknown_fields=True, omit_defaults=True):
    """A line of the file."""


class HistoryHeader(HistoryLine, tag="holdfast-history"):
    """The first line."""

    version: int
    time: str = ""


class HistoryThread(HistoryLine, tag="thread"):
    """The begin of a thread, or of a namespace of it."""

    thread: str
    namespace: str = ""
    subject: str = ""
    """The person that was set for it or for all of its tenant: so an erasure is known to be about it."""


class HistoryWrite(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """A pending write after a checkpoint."""

    task: str
    channel: str
    value: Any
    number: Annotated[int, msgspec.Meta(ge=-(2**31), lt=2**31)] = 0
    path: str = ""


class PatchOperation(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """An operation of a JSON Patch."""

    op: Literal["add", "remove", "replace"]
    path: str
    value: Any = msgspec.UNSET


class HistoryCheckpoint(HistoryLine, tag="checkpoint"):
    """A checkpoint, with a whole state or the patch of the state before it in the file."""

    id: str
    time: Annotated[datetime, msgspec.Meta(tz=True)]
    parent: str | None = None
    merged: list[str] = []
    branch: str = ""
    beside: bool = False
    kind: str = SAVE
    stamp: str = ""
    schema: str = ""
    actor: str = ""
    correlation: str = ""
    cause: str = ""
    metadata: dict[str, Any] = {}
    state: dict[str, Any] | None = None
    patch: list[PatchOperation] | None = None
    writes: list[HistoryWrite] = []


class HistoryEnd(HistoryLine, tag="end"):
    """The end of a thread: the number of its checkpoints, and what has a name."""

    checkpoints: int
    branches: dict[str, str] = {}
    tags: dict[str, str] = {}
    labels: list[tuple[str, str]] = []


HistoryLines: TypeAlias = HistoryHeader | HistoryThread | HistoryCheckpoint | HistoryEnd

_decoder: msgspec.json.Decoder[HistoryLines] = msgspec.json.Decoder(HistoryLines)


class _State:
    """A state in JSON form and packed, both brought up to date by patches: only what they touch is packed again."""

    def __init__(self) -> None:
        self.tree: dict[str, Any] = {}
        self.packed: PackedMap = {}

    def replace(self, tree: dict[str, Any]) -> None:
        """Set the whole state."""
        packed = as_map(from_json(tree))
        if packed is None:
            raise InvalidError("a state must be an object of channels")
        self.tree, self.packed = tree, {key: _split(flatten(value)) for key, value in packed.items()}

    def apply(self, operations: Sequence[Mapping[str, Any]]) -> None:
        """Apply a patch."""
        touched: set[str] = set()
        grown: dict[str, list[bytes]] = {}
        for each in operations:
            parts = each["path"].split("/")
            if parts[0] or len(parts) < 2:
                raise InvalidError(f"a patch changes channels, not {each['path']!r}")
            name = parts[1].replace("~1", "/").replace("~0", "~")
            now = self.tree.get(name)
            if (
                each["op"] == "add"
                and type(now) is list
                and parts[2:] in (["-"], [str(len(now))])
                and isinstance(self.packed.get(pack_name(name)), list)
            ):
                grown.setdefault(name, []).append(from_json(each["value"]))
            else:
                touched.add(name)
            apply_patch(self.tree, [each])
        if is_mark(self.tree) or any(name.startswith("$") for name in touched):
            self.replace(self.tree)
            return
        packed = dict(self.packed)
        for name in touched:
            if name in self.tree:
                packed[pack_name(name)] = _split(from_json(self.tree[name]))
            else:
                packed.pop(pack_name(name), None)
        for name in grown.keys() - touched:
            before = packed[pack_name(name)]
            packed[pack_name(name)] = [*before, *grown[name]] if isinstance(before, list) else before
        self.packed = packed


def _split(data: bytes) -> Any:
    """Return a packed value as far apart as those of states are."""
    items = as_items(data)
    if items:
        return items if any(len(item) > 9 for item in items) else data  # numbers are not worth it
    return (as_map(data) if len(data) >= SMALL else None) or data


# Export -------------------------------------------------------------------------------------------------------------


async def export_history(
    engine: Engine, lines: AsyncIterator[Line], total: int, file: ArchiveFile, progress: Progress | None
) -> ExportReport:
    """Write threads with all their checkpoints, parents before children."""
    done = records = 0
    async with ArchiveWriter(file) as archive:
        header = HistoryHeader(VERSION, datetime.now(UTC).isoformat(timespec="seconds"))
        await archive.write_line(msgspec.json.encode(header))
        async for line in lines:
            async for record in _thread_lines(engine, line):
                await archive.write_line(msgspec.json.encode(record))
                records += isinstance(record, HistoryCheckpoint)
            done += 1
            if progress is not None:
                progress(done, max(done, total), line.name)
    return ExportReport(done, records, archive.bytes)


async def _thread_lines(engine: Engine, line: Line) -> AsyncIterator[HistoryLine]:
    yield HistoryThread(*split_name(line.name), subject=await _subject_of(engine, line))
    rows = await engine.lines.history(line, bodies=False)
    points = sorted(map(StepRef.of, rows), key=lambda point: (point.time, point.branch, point.seq))
    branches = await engine.lines.branches(line)
    names = {each.branch: "" if each.name == MAIN.name else each.name for each in branches}
    state, before = _State(), ""
    for start in range(0, len(points), _PAGE):
        page = points[start : start + _PAGE]
        infos = await engine.step_info.describe(line, page)
        states = await engine.states.series(line, page)
        writes = await engine.writes.of_many(line, page)
        for info, packed, rows_of_step in zip(infos, states, writes, strict=True):
            record = await _describe(engine, line, info, rows_of_step, names.get(info.point.branch, ""))
            if info.parent and info.parent == before:
                record.patch = await _patch(engine, line, info, state, packed)
            if record.patch is None:
                record.state = tree_of(packed, {})
                state.replace(tree_of(packed, {}))
            before = info.point.id
            yield record
    owned = {point.branch for point in points}
    bases = {each.name: await engine.lines.base(line, each) for each in branches if each.branch not in owned}
    yield HistoryEnd(
        len(points),
        branches={name: base for name, base in bases.items() if name and base},
        tags=dict(await engine.lines.refs(line, TAG)),
        labels=list(await engine.lines.refs(line, LABEL)),
    )


async def _subject_of(engine: Engine, line: Line) -> str:
    """Return the person that was set for a thread, or for all of its tenant."""
    (rows,) = await engine.context.backend.read([Get(REFS, [tenant_key(line.tenant)])])
    whole = str(rows[0].columns[0]) if rows else ""
    subject = (await read_subjects(engine, [line])).get(line, whole)
    return whole if subject == MIXED else subject


async def _describe(
    engine: Engine, line: Line, info: StepInfo, writes: Sequence[PendingWriteRow], branch: str
) -> HistoryCheckpoint:
    point, header = info.point, info.header
    merged: list[str] = []
    for each in header.parents[1:]:
        with suppress(NotFoundError):  # it was pruned
            merged.append((await engine.lines.find(line, Position(each.branch, each.seq))).id)
    return HistoryCheckpoint(
        point.id,
        to_datetime(point.time),
        parent=info.parent,
        merged=merged,
        branch=branch,
        beside=point.beside != AT_HEAD,
        kind=SAVE if point.kind == SAVE else point.kind,  # the default is left out if it is the same object
        stamp=header.stamp,
        schema=header.schema,
        actor=header.origin.actor,
        correlation=header.origin.correlation,
        cause=header.origin.cause,
        metadata=to_json(header.metadata),
        writes=[
            HistoryWrite(each.task, each.channel, to_json(each.packed), each.place, each.path)
            for each in writes
            if each.task and each.channel not in _NOT_EXCHANGED
        ],
    )


async def _patch(
    engine: Engine, line: Line, info: StepInfo, state: _State, packed: PackedMap
) -> list[PatchOperation] | None:
    """Return what changes a state into that of a step, and change it; None if a patch cannot say it, such as another
    order of a dict."""
    (parent, *_) = info.header.parents
    old = await engine.lines.find(line, Position(parent.branch, parent.seq))
    diff = await compare(engine, ComparedPoint(line, old), ComparedPoint(line, info.point), large=True)
    try:
        operations = diff.patch()
        state.apply(operations)
    except HoldfastError:
        return None
    if flatten(state.packed) != flatten(packed):
        return None
    return [PatchOperation(each["op"], each["path"], each.get("value", msgspec.UNSET)) for each in operations]


# Import -------------------------------------------------------------------------------------------------------------


class _Target(NamedTuple):
    """What a thread of the file is imported to, and what the store had of it."""

    line: Line
    others: set[str]
    """The ids of checkpoints that the file has not had so far."""


class HistoryImporter:
    """Saves the checkpoints of a file in a store; in a dry run, in a temporary one."""

    def __init__(
        self,
        engine: Engine,
        target: Engine,
        archive: ArchiveReader,
        selection: ImportSelection,
        progress: Progress | None,
    ) -> None:
        self._store = engine
        self._engine = target
        self._archive = archive
        self._selection = selection
        self._progress = progress
        self._number = 0
        self._thread: HistoryThread | None = None
        self._target: _Target | None = None
        self._state = _State()
        self._before: str | None = None
        self._count = self._rows = self._bytes = 0
        self._found: set[str] = set()
        self._done: dict[Line, bool] = {}
        """The lines, and whether they had anything new."""

    async def run(self) -> ImportReport:
        """Import the file. `InvalidError` with the number of the line if it is not in the format."""
        ended = False
        async for text in self._archive.lines():
            self._number += 1
            try:
                record = self._decode(text)
                if (self._number == 1) is not isinstance(record, HistoryHeader):
                    raise InvalidError("a file has one header, which is its first line")
                ended = isinstance(record, HistoryEnd | HistoryHeader)
                await self._handle(record, len(text))
            except HoldfastError as error:
                place = f"line {self._number} of {self._archive.name}"
                error.where = f"{error.where}; {place}" if error.where else place
                raise
        if not ended:
            raise InvalidError(
                "the file ends early: the last thread has no end" if self._number else "the file is empty",
                where=f"line {self._number} of {self._archive.name}",
                hint="Export it again. What it has is imported",
            )
        if missing := (self._selection.names or frozenset()) - self._found:
            raise NotFoundError(f"there is no thread {min(missing)!r} in the file", where=self._archive.name)
        new = tuple(line.name for line, changed in self._done.items() if changed)
        old = tuple(line.name for line, changed in self._done.items() if not changed)
        return ImportReport(new, old, self._rows, self._bytes)

    def _decode(self, text: bytes) -> HistoryLines:
        try:
            if self._number == 1:
                header = msgspec.json.decode(text)
                if not isinstance(header, dict) or header.get("type") != "holdfast-history":
                    hint = "Import what `holdfast export` wrote in its own format without --from"
                    raise InvalidError("this is no file of the interchange format", hint=hint)
                if header.get("version") != VERSION:
                    raise UnsupportedError(
                        f"the format has version {header.get('version')}, and this Holdfast reads version {VERSION}",
                        hint="Import it with a newer Holdfast",
                    )
            return _decoder.decode(text)
        except _MALFORMED as error:
            raise InvalidError(f"the line is not as the format says: {error}") from error

    async def _handle(self, record: HistoryLines, size: int) -> None:
        match record:
            case HistoryThread():
                if self._thread is not None:
                    raise InvalidError("a thread begins before the one before it ends")
                self._thread, self._count, self._before = record, 0, None
                self._target = await self._begin(record)
            case HistoryCheckpoint():
                if self._thread is None:
                    raise InvalidError("a checkpoint is in no thread")
                self._count += 1
                self._take_state(record)
                if self._target is not None:
                    await self._import(record, self._target, size)
                self._before = record.id
            case HistoryEnd():
                if self._thread is None or record.checkpoints != self._count:
                    raise InvalidError(f"there are {self._count} checkpoints, and the end says {record.checkpoints}")
                if self._target is not None:
                    await self._end(record, self._target.line, self._thread.subject)
                self._thread = self._target = None

    async def _begin(self, record: HistoryThread) -> _Target | None:
        """Return where a thread is imported to; None if it is not selected."""
        if not check_name(record.thread, "name of a thread"):
            raise InvalidError("the name of a thread must not be empty")
        selection = self._selection
        old = Line(selection.tenant, thread_name(record.thread, check_name(record.namespace, "namespace")))
        root = root_of(old)
        if not selection.includes(old, root):
            return None
        if selection.as_thread is not None and self._found - {root.name, old.name}:
            raise InvalidError("only one thread can be renamed, and the file has several", hint="Say which to import")
        self._found |= {root.name, old.name}
        line = rename_line(old, root, root._replace(name=selection.as_thread or root.name))
        if line in self._done:
            raise InvalidError("the file has the thread twice", where=f"thread {line}")
        self._done[line] = False
        if self._engine is self._store:
            detail = {"file": self._archive.name, "format": FORMAT}
            await thread_audit.record(self._store, [line], "import", detail)
        rows = await self._store.lines.history(line, bodies=False)
        return _Target(line, {StepRef.of(row).id for row in rows})

    def _take_state(self, record: HistoryCheckpoint) -> None:
        if (record.state is None) is (record.patch is None):
            raise InvalidError("a checkpoint needs either a state or a patch", where=f"checkpoint {record.id}")
        if record.state is not None:
            self._state.replace(record.state)
            return
        if record.parent is None or record.parent != self._before:
            raise InvalidError(
                "a patch is of the state of the checkpoint before it in the file, which must be its parent",
                where=f"checkpoint {record.id}",
                hint="Write the whole state",
            )
        for each in record.patch or ():
            if (each.value is msgspec.UNSET) is not (each.op == "remove"):
                raise InvalidError(f"an operation {each.op!r} with the wrong members", where=each.path)
        try:
            self._state.apply([msgspec.structs.asdict(each) for each in record.patch or ()])
        except ConflictError as error:  # it is about the file, not about what the store has
            raise InvalidError(str(error), where=f"checkpoint {record.id}") from error

    async def _import(self, record: HistoryCheckpoint, target: _Target, size: int) -> None:
        line = target.line
        if not _FIRST <= record.time < _LAST:
            where = f"checkpoint {record.id}, {record.time.isoformat()}"
            raise InvalidError("the time of a checkpoint must be in the years from 1970 to 2261", where=where)
        metadata = from_json(record.metadata)
        packed = [
            PendingWriteRow(
                check_name(each.path, "path of a task"),
                check_new_name(each.task, "id of a task"),
                each.number,
                check_name(each.channel, "name of a channel"),
                from_json(each.value),
            )
            for each in record.writes
        ]
        if len({(each.task, each.place) for each in packed}) < len(packed):
            raise InvalidError("two writes of a task have one number", where=f"checkpoint {record.id}")
        if reserved := {each.channel for each in packed} & {*_NOT_EXCHANGED}:
            raise InvalidError(f"the name {min(reserved)!r} of a channel is reserved")
        existing = await self._find(self._store, line, record.id)
        target.others.discard(record.id)
        if existing is not None and not await self._is_same(self._store, line, existing, record, metadata, packed=[]):
            raise ConflictError(
                "the store has another checkpoint of this id",
                where=f"thread {line}, checkpoint {record.id}",
                hint="Import the thread under another name: as_thread, --as",
            )
        if existing is None and target.others:
            raise ConflictError(
                "the thread went on here since it was exported, and the file has other checkpoints of it",
                where=f"thread {line}, checkpoint {record.id}",
                hint="Import the thread under another name: as_thread, --as",
            )
        engine = self._engine
        changed = 0
        if existing is None or engine is not self._store:
            await self._save(record, line, metadata)
            changed = existing is None
        if existing is None or not await self._is_same(self._store, line, existing, record, metadata, packed):
            if packed:
                await engine.writes.put(line, record.id, packed)
                changed += len(packed)
            point = await engine.lines.find(line, record.id)
            if not await self._is_same(engine, line, point, record, metadata, packed):
                raise CorruptError(
                    "a checkpoint does not read back as it is in the file",
                    where=f"thread {line}, checkpoint {record.id}",
                )
        if changed:
            self._done[line] = True
            self._rows += changed
            self._bytes += size
        if self._progress is not None:
            self._progress(sum(self._done.values()), None, line.name)

    async def _find(self, engine: Engine, line: Line, id: str) -> StepRef | None:
        try:
            return await engine.lines.find(line, check_new_name(id, "id of a checkpoint"))
        except NotFoundError:
            return None

    async def _save(self, record: HistoryCheckpoint, line: Line, metadata: bytes) -> None:
        """Save a checkpoint after its parent, on its branch, and as HEAD or beside it."""
        engine, codec = self._engine, self._engine.context.codec
        parents = []
        for id in [*([] if record.parent is None else [record.parent]), *record.merged]:
            found = await self._find(engine, line, id)
            if found is None:
                raise InvalidError(
                    f"the parent {id!r} is not before it in the file", where=f"thread {line}, checkpoint {record.id}"
                )
            parents.append(found)
        first = parents[0] if record.parent is not None else None
        at: Any = ROOT if first is None else first.id
        new_branch = ""
        if record.branch and first is not None:
            numbers = {each.name: each.branch for each in await engine.lines.branches(line)}
            if record.branch not in numbers:
                new_branch = check_branch_name(record.branch, line)
            elif first.branch != numbers[record.branch]:
                at = OnBranch(record.branch)
        time = to_time(record.time) - 999
        if self._count == 1 and await engine.lines.load_tip(line) is None:
            # As old as it is: what is older than an erasure is subject to it.
            info = engine.lines.new_info()._replace(created=time)
            await engine.context.apply([Ensure(LINES, info_row(line, info))])
        head = None if record.beside else await engine.lines.latest_step(line)
        described = codec.unpack(metadata)
        request = AppendRequest(
            line,
            self._state.packed,
            parent=at,
            on_conflict=OnConflict.BRANCH,
            id=record.id,
            metadata=metadata,
            readable=readable(codec, described),
            kind=check_name(record.kind, "kind of a checkpoint"),
            stamp=record.stamp,
            origin=StepOrigin(record.actor, record.correlation, record.cause),
            time=time,
            new_branch=new_branch,
            merged=tuple(StepParent(each.branch, each.seq, each.hash) for each in parents[1:]),
            stays_beside=record.beside,
            keeps_head=record.beside,
            moves_head=head is not None and first is not None and head.id != first.id,
        )
        await engine.writer.save(request)

    async def _is_same(
        self,
        engine: Engine,
        line: Line,
        point: StepRef,
        record: HistoryCheckpoint,
        metadata: bytes,
        packed: Sequence[PendingWriteRow],
    ) -> bool:
        """Return whether a stored checkpoint is that of the file, and has these writes."""
        info = await engine.step_info.head(line, point)
        if (info.parent, point.kind, info.header.stamp) != (record.parent, record.kind, record.stamp):
            return False
        if not _equal(info.header.metadata, metadata):
            if engine.protection is None:
                return False
            if not _equal(info.header.metadata, await engine.protection.protect_metadata(line, metadata)):
                return False
        stored = await engine.states.values(line, point)
        if not _equal(flatten(stored), flatten(self._state.packed)):
            if engine.protection is None:
                return False
            given = dict(self._state.packed)
            given = await engine.protection.protect_state(line, diff_maps({}, given), given) or given
            if not _equal(flatten(stored), flatten(given)):
                return False
        if not packed:
            return True
        (rows,) = await engine.writes.of_many(line, [point])
        known = {(each.task, each.place): each for each in rows}
        expected = packed if engine.protection is None else await engine.protection.protect_writes(line, packed)
        return all(
            (row := known.get((each.task, each.place))) is not None
            and row.channel == each.channel
            and _equal(row.packed, each.packed)
            for each in expected
        )

    async def _end(self, record: HistoryEnd, line: Line, subject: str) -> None:
        """Add the names of a thread, and remove what was erased since it was exported."""
        engine = self._engine
        named = [*record.branches.items(), *record.tags.items(), *record.labels]
        for name, id in named:
            if await self._find(engine, line, id) is None:
                raise InvalidError(f"the file has no checkpoint {id!r} of the thread", where=f"thread {line}, {name}")
        if MAIN.name in record.branches:
            raise InvalidError("the branch main has checkpoints of its own", where=f"thread {line}")
        known = {each.name for each in await engine.lines.branches(line)}
        for name, id in record.branches.items():
            if name not in known:
                await engine.lines.fork(line, await engine.lines.find(line, id), check_branch_name(name, line))
                self._done[line] = True
        for kind, entries in ((TAG, record.tags.items()), (LABEL, record.labels)):
            stored = set(await engine.lines.refs(line, kind))
            for name, id in entries:
                if (name, id) not in stored:
                    await engine.lines.set_ref(line, kind, check_new_name(name, kind), id)
                    self._done[line] = True
        if self._done[line]:
            await refresh_status(engine, line, is_new=True)
            if subject and not await read_subjects(engine, [line]):
                await set_subject(engine, root_of(line), subject)
            erased = None if engine is self._store else await read_ledger(self._store, line.tenant)
            await apply_ledger(engine, line.tenant, erased, lines={line})
            if await engine.lines.load_tip(line) is None:
                del self._done[line]  # it was erased here


def _equal(a: bytes, b: bytes) -> bool:
    """Return whether packed values are equal, if need be as JSON: dicts may be in another order."""
    if a == b:
        return True
    one, other = to_json(a), to_json(b)
    return msgspec.json.encode(one, order="sorted") == msgspec.json.encode(other, order="sorted")


async def import_history(
    engine: Engine, file: ArchiveFile, selection: ImportSelection, dry_run: bool, progress: Progress | None
) -> ImportReport:
    """Import threads from a file of the interchange format. With `dry_run`, into a temporary store."""
    archive = ArchiveReader(file, engine.context.max_bytes)
    try:
        if not dry_run:
            return await HistoryImporter(engine, engine, archive, selection, progress).run()
        async with scratch_store(engine) as scratch:
            report = await HistoryImporter(engine, scratch, archive, selection, progress).run()
            return msgspec.structs.replace(report, rows=0, bytes=0)
    finally:
        archive.close()
