"""Converts between rows and their contents. Rows are checked where they are read: see `checked_rows`."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Self

from msgspec import MsgspecError, Struct
from msgspec.json import decode as decode_json
from msgspec.json import encode as encode_json

from holdfast._named_tuple import NamedTuple
from holdfast.backends.interface import Row
from holdfast.backends.tables import FOLDS, MAX_NAME, STEPS, Key, Scalar, Table
from holdfast.byte_reader import ByteReader, packed_form
from holdfast.codec import Codec
from holdfast.codec.compression import Compression
from holdfast.codec.envelope import DAMAGED, BodyKind, OpenedRecord, unwrap, wrap
from holdfast.engine.model.large_pointers import PIECE, LargePointer, join, parse_pointer, split
from holdfast.engine.model.line_salt import SALT_SIZE
from holdfast.engine.model.nodes import MapRoot, decode_root, encode_root
from holdfast.engine.model.scopes import Scope
from holdfast.engine.model.steps import (
    NO_ORIGIN,
    RECORDED,
    PendingWriteRow,
    Step,
    StepHeader,
    StepOrigin,
    StepParent,
    StubProof,
    decode_line_salt,
    decode_writes,
    without_recordings,
    without_writes,
)
from holdfast.errors import CorruptError, HoldfastError, InvalidError, TooLargeError


class Line(NamedTuple):
    """The name of a line: its tenant and its own name."""

    tenant: str
    name: str

    def __str__(self) -> str:
        return f"{self.name!r} of tenant {self.tenant!r}" if self.tenant else repr(self.name)


def check_name(text: object, what: str) -> str:
    """Require a name that every store can store: text, not too long."""
    if not isinstance(text, str):
        hint = "Give its id" if hasattr(text, "id") else ""
        raise InvalidError(f"the {what} must be a string, not {type(text).__name__}", where=repr(text)[:80], hint=hint)
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        raise InvalidError(f"the {what} is not text: it has lone surrogates", where=ascii(text)[:80]) from None
    if size > MAX_NAME:
        raise InvalidError(
            f"the {what} may have at most {MAX_NAME} bytes of UTF-8, and this one has {size}",
            where=f"{text[:40]}…",
            hint="Use a shorter name, or a digest of this one",
        )
    return text


MERGE, PRUNED, ERASE = "merge", "pruned", "erase"
"""The kinds of a merge, of the stub of a pruned step, and of a step that removes what is erased from a state."""


class LineInfo(NamedTuple):
    """The row of a line."""

    created: int
    version: int
    form: int
    pruned: int = 0
    switched_from: str = ""
    salt: bytes = b""
    """The salt of the line, which is in the body of the row. Empty if the row was read without its body."""

    @property
    def columns(self) -> tuple[int, int, int, int, str]:
        """The columns of the row."""
        return self[:5]


ROW_FORM = packed_form(tuple[tuple[Any, ...], tuple[Any, ...], bytes])
"""A row inside of the body of another: its key without tenant and line, its columns, and its body."""

AT_HEAD = -1
"""The column `beside` of a step that was saved as HEAD, and not beside it."""


class _StubRecord(Struct, omit_defaults=True, forbid_unknown_fields=True):
    """The metadata column of a stub, as JSON: what a merge merged, a `StubProof`, and whether the step was not
    pruned but lost."""

    merged: list[StepParent] = []
    id: str = ""
    events: str = ""
    content: bytes = b""
    salt: bytes = b""
    lost: bool = False


LOST_STUB = encode_json(_StubRecord(lost=True)).decode()
"""The metadata of the stub of a lost step."""


class StepRef(NamedTuple):
    """The row of a step, without its content."""

    branch: int
    seq: int
    id: str
    revision: int
    depth: int
    hash: bytes
    time: int
    kind: str
    metadata: str
    tail: int
    size: int
    beside: int = AT_HEAD

    @classmethod
    def of(cls, row: Row) -> StepRef:
        """Return the step in a row of `steps`."""
        return cls(*row.key[2:], *row.columns)  # type: ignore[arg-type]

    def row(self, line: Line, body: bytes) -> Row:
        """Return the row of the step."""
        return Row((*line, self.branch, self.seq), self[2:], body)

    @property
    def pruned(self) -> bool:
        """Return whether this is the stub of a pruned step."""
        return not self.id

    def stub(self, merged: Sequence[StepParent] = (), proof: StubProof | None = None) -> StepRef:
        """Return the stub of the step when it is pruned: its time, its hash, what it merged, and what proves its event
        rows. A stub stays as it is, except for what is given."""
        merged, proof, lost = merged or self.merged, proof or self.proof, self.lost
        stub_metadata = ""
        if merged or proof is not None or lost:
            record = _StubRecord(list(merged), *(proof or ()))
            record.lost = lost
            stub_metadata = encode_json(record).decode()
        return self._replace(id="", revision=0, kind=PRUNED, metadata=stub_metadata, tail=0, size=0)

    @property
    def merged(self) -> tuple[StepParent, ...]:
        """Return the further parents of a pruned merge; none, if it was no merge or is not pruned."""
        return tuple(self._stub_record().merged)

    @property
    def proof(self) -> StubProof | None:
        """Return what proves the event rows of a pruned step; None if it had no salt or is not pruned."""
        record = self._stub_record()
        return StubProof(record.id, record.events, record.content, record.salt) if record.content else None

    @property
    def lost(self) -> bool:
        """Return whether this is the stub of a step that a repair did not find, and that a copy may restore."""
        return self._stub_record().lost

    def _stub_record(self) -> _StubRecord:
        if not self.pruned or not self.metadata:
            return _StubRecord()
        try:
            return decode_json(self.metadata, type=_StubRecord)
        except MsgspecError:
            what = f"what a pruned step left cannot be read: {self.metadata[:80]!r}"
            raise CorruptError(what, where=f"branch {self.branch}, number {self.seq}", hint=HINT) from None


class LineSummary(NamedTuple):
    """A line's size and times."""

    line: Line
    created: int
    updated: int
    steps: int
    branches: int
    size: int
    latest: StepRef | None
    damaged: bool = False
    status: str | None = "idle"
    """The status of a thread; None if it has to be derived."""

    @classmethod
    def of_ends(cls, line: Line, info: LineInfo, ends: Sequence[Sequence[Row]]) -> Self:
        """Return the summary of a line without its latest step and status, given the rows of the last steps of its
        branches."""
        points = [StepRef.of(row) for rows in ends for row in rows]
        updated = max((point.time for point in points), default=info.created)
        steps = sum(point.seq + 1 for point in points) - info.pruned
        size = sum(point.size for point in points)
        return cls(line, info.created, updated, steps, len(ends), size, None, status=None)

    @classmethod
    def of_damaged(cls, line: Line, created: int = 0) -> LineSummary:
        """Return the summary of a line that cannot be read."""
        return cls(line, created, created, 0, 1, 0, None, damaged=True)


class Branch(NamedTuple):
    """A branch, and where it starts: after that many steps of its base."""

    branch: int
    base_branch: int
    base_length: int
    created: int
    name: str

    @classmethod
    def of(cls, row: Row) -> Branch:
        """Return the branch in a row of `branches`."""
        return cls(row.key[2], *row.columns)  # type: ignore[arg-type]

    def row(self, line: Line) -> Row:
        """Return the row of the branch."""
        return Row((*line, self.branch), self[1:])


PIN, HOLD, LEASE, OWNER, SUBJECT, TTL, STATUS = "pin", "hold", "lease", "owner", "subject", "ttl", "status"
"""Kinds of references. The names of pins and holds are reasons. The others, and holds, refer to no step."""


RUNNING = "running"
"""The kind of links that say that somebody runs a durable step. They belong to no step of their line."""


def owner_key(root: Line) -> Key:
    """Return the key of the reference to the identity that owns a thread, by the thread's root line."""
    return (*root, OWNER, "", "")


def subject_key(root: Line) -> Key:
    """Return the key of the reference to the person whose data a line contains, by the root line of a thread."""
    return (*root, SUBJECT, "", "")


def ttl_key(root: Line) -> Key:
    """Return the key of the reference that has the TTL of a thread, in nanoseconds, by the thread's root line."""
    return (*root, TTL, "", "")


def status_key(root: Line) -> Key:
    """Return the key of the reference that has the status of a thread, by the thread's root line."""
    return (*root, STATUS, "", "")


def may_be_hold(ref: Row) -> bool:
    """Return whether a damaged reference may be a hold. Holds and leases alone refer to no step."""
    return ref.key[2] == HOLD or (not ref.columns[0] and ref.key[2] != LEASE)


def is_about_step(ref: Row) -> bool:
    """Return whether a reference refers to a step, and is removed with it."""
    return bool(ref.columns[0]) and ref.key[2] not in (HOLD, LEASE, OWNER, SUBJECT, TTL, STATUS)


def info_of(row: Row) -> LineInfo:
    """Return the content of a row of `lines`."""
    salt = _unwrap(row).content if row.body and row.body != DAMAGED else b""
    created, version, form, pruned, switched_from = row.columns
    return LineInfo(created, version, form, pruned, switched_from, salt)  # type: ignore[arg-type]


def info_row(line: Line, info: LineInfo) -> Row:
    """Return the row of `lines` for a line."""
    if len(info.salt) != SALT_SIZE:
        raise CorruptError("a line has no salt", where=f"thread {line}", hint=HINT)
    return Row(tuple(line), info.columns, wrap(info.salt, codec=BodyKind.RAW, compression=Compression.NONE))


# Steps --------------------------------------------------------------------------------------------------------


_WORTH_COMPRESSING = 256
"""A step of fewer bytes is not compressed: it would take time and save little."""


_SHORT_WRITE = 2048
"""A write of fewer bytes is not compressed: the next step mostly takes it over a moment later."""


def step_body(line: Line, step: Step, max_bytes: int, writes: Sequence[PendingWriteRow], salt: bytes) -> bytes:
    """Return the record of a step, with the writes that led to it; with the salt of the line, if it has no parent. One
    that could not be read again is refused."""
    content = step.encode(writes, b"" if step.header.parents else salt)
    if len(content) > max_bytes:
        raise TooLargeError(
            f"a checkpoint of {len(content)} bytes is over the limit of {max_bytes}",
            where=f"thread {line}",
            hint="Save it in several steps, or raise max_bytes of the codec",
        )
    return wrap(content, schema=step.header.schema, compression=_compression(content))


_TIME_AND_KIND = slice(list(STEPS.columns).index("time"), list(STEPS.columns).index("kind") + 1)


def open_step(line: Line, row: Row, max_bytes: int) -> Step:
    """Return the step in a row that was checked. `CorruptError` if it does not match the row.

    The commit hash is not computed: what protects the row covers it. Verifying does."""
    step = decode_step(row, max_bytes)
    if (step.header.time, step.header.kind) != row.columns[_TIME_AND_KIND]:
        raise CorruptError("a step is not the one that its row names", where=where(line, StepRef.of(row)), hint=HINT)
    return step


def decode_step(row: Row, max_bytes: int) -> Step:
    """Return the step in a row, whatever its commit hash. `CorruptError` if there is none."""
    record = _unwrap(row, max_bytes)
    return Step.decode(record.content, str(row.columns[0]), record.schema)


def open_writes(row: Row, max_bytes: int) -> list[PendingWriteRow]:
    """Return the writes that are stored with a step: those that followed the one before it in its branch."""
    return decode_writes(open_body(row, max_bytes)) if row.body else []


def drop_writes(row: Row, max_bytes: int) -> Row:
    """Return the row of a step without the writes that are stored with it; the same row if there are none."""
    record = _unwrap(row, max_bytes)
    if not decode_writes(record.content):
        return row
    content = without_writes(record.content)
    return row._replace(body=wrap(content, schema=record.schema, compression=_compression(content)))


def drop_recordings(row: Row, max_bytes: int) -> Row:
    """Return the row of a step without the recordings that are stored with it; the same row if there are none."""
    if not any(write.channel == RECORDED for write in open_writes(row, max_bytes)):
        return row
    record = _unwrap(row, max_bytes)
    content = without_recordings(record.content)
    return row._replace(body=wrap(content, schema=record.schema, compression=_compression(content)))


def write_row(line: Line, step: str, write: PendingWriteRow) -> Row:
    """Return the row of a write that follows a step."""
    compression = Compression.NONE if len(write.packed) < _SHORT_WRITE else None
    body = wrap(write.packed, schema=write.schema, compression=compression)
    return Row((*line, step, write.task, write.place), (write.path, write.channel), body)


def open_write(row: Row, max_bytes: int) -> PendingWriteRow:
    """Return the write in a row."""
    _, _, _, task, place = row.key
    path, channel = row.columns
    record = _unwrap(row, max_bytes)
    return PendingWriteRow(str(path), str(task), int(place), str(channel), record.content, record.schema)


def _unwrap(row: Row, max_bytes: int = 128 << 20) -> OpenedRecord:
    """Return the record of a row. Errors name the row: its name is only written then, since this is done often."""
    try:
        return unwrap(row.body, max_bytes=max_bytes)
    except HoldfastError as error:
        error.where = error.where or f"row {row.key}"
        raise


def open_body(row: Row, max_bytes: int) -> bytes:
    """Return the content of a row's record."""
    return _unwrap(row, max_bytes).content


def readable(codec: Codec, metadata: dict[str, object]) -> str:
    """Return metadata as JSON, for people who use the database's own tools."""
    if not metadata:
        return ""
    try:
        return encode_json(metadata).decode()
    except (TypeError, ValueError, RecursionError):
        return encode_json(codec.to_plain(metadata)).decode()


def readable_of_line(name: str, codec: Codec, metadata: dict[str, object]) -> str:
    """Return the metadata of a step of a line as JSON, as its row has it. That of a scope has only who made it: the
    rows of its events say the rest."""
    if not _is_scope(name):
        return readable(codec, metadata)
    return readable(codec, {"actor": metadata["actor"]}) if "actor" in metadata else ""


@lru_cache(4096)
def _is_scope(name: str) -> bool:
    return Scope.of_line(name) is not None


ORIGIN = "␞origin"
"""The entry with the origin of a step in its metadata as JSON, from which it is found without reading the step."""


def origin_mark(line: Line) -> Key:
    """Return the key of the link row that a thread's line has if a step of it has an origin."""
    return (*line, "origin", "", "")


def add_origin(text: str, origin: StepOrigin) -> str:
    """Return the metadata of a step as JSON, with its origin in the last entry."""
    if origin == NO_ORIGIN:
        return text
    entry = f'"{ORIGIN}":{encode_json(origin).decode()}}}'
    return f"{text[:-1]},{entry}" if text else "{" + entry


def remove_origin(text: str, origin: StepOrigin) -> str:
    """Return the metadata of a step as JSON, without its origin."""
    if origin == NO_ORIGIN:
        return text
    rest = text.removesuffix(add_origin("", origin)[1:])
    return f"{rest[:-1]}}}" if len(rest) > 1 else ""


def where(line: Line, point: StepRef) -> str:
    """Describe a step in an error message."""
    return f"checkpoint {point.id} (branch {point.branch}, number {point.seq}) of thread {line}"


HINT = "Verify the thread, and repair it from a mirror or a backup"


# Folds, nodes, large values -----------------------------------------------------------------------------------


def fold_row(
    line: Line, place: tuple[int, int], commit: bytes, info: LineInfo, root: MapRoot, header: StepHeader | None = None
) -> Row:
    """Return the row of `folds` for the state at a step. It has the salt of the line, too: whatever can be read of a
    line can be verified, even if the row of the line is lost. With the header of a large step, that is read from here,
    and not with all the changes."""
    step, schema = (b"", "") if header is None else (Step(header).encode(), header.schema)
    return Row((*line, *place), (info.form, commit), wrap(info.salt + encode_root(root, step), schema=schema))


def open_fold(row: Row, commit: bytes) -> MapRoot:
    """Return the root of the state at a step with this commit hash."""
    return _open_fold(row, commit)[0]


def open_fold_header(row: Row, point: StepRef) -> StepHeader | None:
    """Return the header of a step from the row of its folded state; None if it is not there."""
    _, data, schema = _open_fold(row, point.hash)
    return Step.decode(data, point.id, schema).header if data else None


def _open_fold(row: Row, commit: bytes) -> tuple[MapRoot, bytes, str]:
    if row.columns[1] != commit:
        raise CorruptError("a folded state belongs to another checkpoint", where=f"row {row.key}", hint=HINT)
    record = unwrap(row.body)
    return (*decode_root(record.content[SALT_SIZE:]), record.schema)


def stored_salt(table: Table, row: Row, max_bytes: int) -> bytes:
    """Return the salt of the line in a row of steps or folds; nothing, if it has none."""
    content = open_body(row, max_bytes) if row.body else b""
    if table is FOLDS:
        return content[:SALT_SIZE]
    return decode_line_salt(content) if content else b""


def node_row(line: Line, form: int, id: bytes, node: bytes) -> Row:
    """Return the row of `nodes` for a node."""
    return Row((*line, form, id), (), wrap(node))


def open_node(row: Row) -> tuple[bytes, bytes]:
    """Return the id and the bytes of a node."""
    return _bytes(row.key[3]), unwrap(row.body).content


def open_quarantined(row: Row) -> tuple[Key, tuple[Scalar, ...], bytes]:
    """Return the row that is in quarantine: its key without tenant and line, its columns and its body."""
    return ByteReader(unwrap(row.body).content, "a row in quarantine", row.key).packed(ROW_FORM)


def object_rows(line: Line, pointer: bytes, value: bytes) -> list[Row]:
    """Return the rows of `objects` for a large value."""
    digest = parse_pointer(pointer).digest
    return [
        Row((*line, digest, number), (), wrap(piece, codec=BodyKind.RAW)) for number, piece in enumerate(split(value))
    ]


def object_keys(line: Line, pointer: LargePointer) -> list[Key]:
    """Return the keys of the pieces of a large value."""
    return [(*line, pointer.digest, number) for number in range(pointer.pieces)]


def open_object(pointer: LargePointer, rows: list[Row]) -> bytes:
    """Return a large value from the rows of its pieces."""
    pieces = {row.key[3]: open_body(row, PIECE) for row in rows}
    return join(pointer, [pieces[number] for number in sorted(pieces)])


def event_body(packed: bytes) -> bytes:
    """Return the record of an event's details."""
    return wrap(packed, compression=_compression(packed))


def _compression(content: bytes) -> Compression | None:
    return None if len(content) >= _WORTH_COMPRESSING else Compression.NONE


def _bytes(part: Scalar) -> bytes:
    if not isinstance(part, bytes):
        raise CorruptError("a key of the store is not bytes where it should be", where=repr(part), hint=HINT)
    return part
