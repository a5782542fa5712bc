"""Between rows of a store and what they hold: envelopes put on and taken off, everything checked."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import NamedTuple

from msgspec import MsgspecError
from msgspec.json import decode as decode_json
from msgspec.json import encode as encode_json

from holdfast.backends.interface import Row
from holdfast.backends.tables import EVENTS, FOLDS, JOBS, MAX_NAME, NODES, OBJECTS, STEPS, WRITES, Key, Scalar, Table
from holdfast.codec import Codec
from holdfast.codec.compression import Compression
from holdfast.codec.envelope import BodyKind, RecordContext, unwrap, wrap
from holdfast.engine.model.large_pointers import PIECE, LargePointer, join, parse_pointer, split
from holdfast.engine.model.nodes import MapRoot, decode_root, encode_root
from holdfast.engine.model.steps import Step, StepParent
from holdfast.errors import CorruptError, HoldfastError, InvalidError, TooLargeError


class Line(NamedTuple):
    """A line's name: whose it is, and which."""

    tenant: str
    name: str

    def __str__(self) -> str:
        return f"{self.name!r} of tenant {self.tenant!r}" if self.tenant else repr(self.name)


def check_name(text: object, what: str) -> str:
    """A name that every store can keep: text, not too long."""
    if not isinstance(text, str):
        hint = "Give its id" if hasattr(text, "id") else ""
        raise InvalidError(f"the {what} is a string, not {type(text).__name__}", where=repr(text)[:80], hint=hint)
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        raise InvalidError(f"the {what} is not text: it has lone surrogates", where=ascii(text)[:80]) from None
    if size > MAX_NAME:
        raise InvalidError(
            f"the {what} has at most {MAX_NAME} bytes of UTF-8, and this one {size}",
            where=f"{text[:40]}…",
            hint="Use a shorter name, or a digest of this one",
        )
    return text


MERGE, PRUNED = "merge", "pruned"
"""The kinds of a step that has several parents, and of what is left of one that was pruned."""


class LineInfo(NamedTuple):
    """What is kept of a line besides its steps."""

    created: int
    version: int
    form: int
    pruned: int = 0


class StepRef(NamedTuple):
    """A step as its row shows it, without opening it."""

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

    @classmethod
    def of(cls, row: Row) -> StepRef:
        """The point that a row of `steps` shows."""
        return cls(*row.key[2:], *row.columns)  # type: ignore[arg-type]

    def row(self, line: Line, body: bytes) -> Row:
        """The row that shows it."""
        return Row((*line, self.branch, self.seq), self[2:], body)

    @property
    def pruned(self) -> bool:
        """Whether this only stands where a step was."""
        return not self.id

    def stub(self, merged: Sequence[StepParent] = ()) -> StepRef:
        """What stands for the step once it is pruned: that there was one, when, its hash, and what it merged."""
        kept = self.metadata if self.pruned else ""
        if merged:
            kept = encode_json([[parent.branch, parent.seq, parent.commit.hex()] for parent in merged]).decode()
        return self._replace(id="", revision=0, kind=PRUNED, metadata=kept, tail=0, size=0)

    @property
    def merged(self) -> tuple[StepParent, ...]:
        """Of a stub, the further parents of the merge that it stands for; none, if it stands for no merge."""
        if not self.pruned or not self.metadata:
            return ()
        try:
            parents = decode_json(self.metadata, type=list[tuple[int, int, str]])
            return tuple(StepParent(branch, seq, bytes.fromhex(commit)) for branch, seq, commit in parents)
        except (MsgspecError, ValueError):
            what = f"what a pruned merge is said to have merged cannot be read: {self.metadata[:80]!r}"
            raise CorruptError(what, where=f"branch {self.branch}, number {self.seq}", hint=HINT) from None


class Branch(NamedTuple):
    """A branch, and where it leaves its base: after that many of the base's steps."""

    branch: int
    base_branch: int
    base_length: int
    created: int
    name: str

    @classmethod
    def of(cls, row: Row) -> Branch:
        """The branch that a row of `branches` shows."""
        return cls(row.key[2], *row.columns)  # type: ignore[arg-type]

    def row(self, line: Line) -> Row:
        """The row that shows it."""
        return Row((*line, self.branch), self[1:])


PIN, HOLD, LEASE = "pin", "hold", "lease"
"""Kinds of references. The names of pins and holds are reasons. Holds and leases refer to no step."""


def is_about_step(ref: Row) -> bool:
    """Return whether a reference refers to a step, and is removed with it."""
    return bool(ref.columns[0]) and ref.key[2] not in (HOLD, LEASE)


def info_of(row: Row) -> LineInfo:
    """What a row of `lines` says."""
    return LineInfo(*row.columns)  # type: ignore[arg-type]


def info_row(line: Line, info: LineInfo) -> Row:
    """The row of `lines` that says it."""
    return Row(tuple(line), tuple(info))


# Steps --------------------------------------------------------------------------------------------------------


_WORTH_COMPRESSING = 512
"""A step of fewer bytes is stored as it is: compressing would take time and save little."""


def step_body(line: Line, step: Step, max_bytes: int) -> bytes:
    """A step in its envelope. What could not be read again is not written."""
    content = step.encode()
    if len(content) > max_bytes:
        raise TooLargeError(
            f"a checkpoint of {len(content)} bytes is over the limit of {max_bytes}",
            where=f"thread {line}",
            hint="Save it in several steps, or raise Limits.max_bytes",
        )
    return wrap(
        content, RecordContext(*line, "step", step.commit), schema=step.header.schema, compression=_plain(content)
    )


def open_step(line: Line, row: Row, max_bytes: int) -> Step:
    """The step in a row, which must be the one that the row says it is."""
    point = StepRef.of(row)
    record = unwrap(row.body, RecordContext(*line, "step", point.hash), max_bytes=max_bytes)
    step = Step.decode(record.content)
    header = step.header
    if step.commit != point.hash or (header.id, header.time, header.kind) != (point.id, point.time, point.kind):
        raise CorruptError("a step is not the one that its row says", where=where(line, point), hint=HINT)
    return step


def readable(codec: Codec, metadata: dict[str, object]) -> str:
    """Metadata as JSON, for people who look at the store with its own tools."""
    if not metadata:
        return ""
    try:
        return encode_json(metadata).decode()
    except (TypeError, ValueError, RecursionError):
        return encode_json(codec.to_plain(metadata)).decode()


def where(line: Line, point: StepRef) -> str:
    """Names a step in an error message."""
    return f"checkpoint {point.id} (branch {point.branch}, number {point.seq}) of thread {line}"


HINT = "Verify the thread, and repair it from a mirror or a backup"


# Folds, nodes, large values -----------------------------------------------------------------------------------


def fold_row(line: Line, place: tuple[int, int], commit: bytes, form: int, root: MapRoot) -> Row:
    """The row of `folds` for the state at a step."""
    body = wrap(encode_root(root), RecordContext(*line, "fold", commit))
    return Row((*line, *place), (form, commit), body)


def open_fold(line: Line, row: Row, commit: bytes) -> MapRoot:
    """The root of the state at a step with this commit hash."""
    return decode_root(unwrap(row.body, RecordContext(*line, "fold", commit)).content)


def node_row(line: Line, form: int, id: bytes, node: bytes) -> Row:
    """The row of `nodes` for a node."""
    return Row((*line, form, id), (), wrap(node, RecordContext(*line, "node", id)))


def open_node(line: Line, row: Row) -> tuple[bytes, bytes]:
    """A node's id and its bytes."""
    id = _bytes(row.key[3])
    return id, unwrap(row.body, RecordContext(*line, "node", id)).content


def object_rows(line: Line, pointer: bytes, value: bytes) -> list[Row]:
    """The rows of `objects` for a large value."""
    digest = parse_pointer(pointer).digest
    return [
        Row(
            (*line, digest, number),
            (),
            wrap(piece, RecordContext(*line, "object", digest + number.to_bytes(4, "big")), codec=BodyKind.RAW),
        )
        for number, piece in enumerate(split(value))
    ]


def object_keys(line: Line, pointer: LargePointer) -> list[Key]:
    """The keys of the pieces of a large value."""
    return [(*line, pointer.digest, number) for number in range(pointer.pieces)]


def open_object(line: Line, pointer: LargePointer, rows: list[Row]) -> bytes:
    """A large value from the rows of its pieces."""
    pieces = {}
    for row in rows:
        number = row.key[3]
        name = pointer.digest + int(number).to_bytes(4, "big")
        pieces[number] = unwrap(row.body, RecordContext(*line, "object", name), max_bytes=PIECE).content
    return join(pointer, [pieces[number] for number in sorted(pieces)])


def write_body(line: Line, step: str, channel: str, packed: bytes) -> bytes:
    """A pending write's value in its envelope."""
    return wrap(packed, RecordContext(*line, "write", _write_name(step, channel)))


def open_write(line: Line, step: str, channel: str, body: bytes, max_bytes: int) -> bytes:
    """The packed value of a pending write."""
    return unwrap(body, RecordContext(*line, "write", _write_name(step, channel)), max_bytes=max_bytes).content


def _write_name(step: str, channel: str) -> bytes:
    return hashlib.sha256(f"{len(step)} {step}{channel}".encode()).digest()


def event_body(line: Line, id: str, number: int, packed: bytes) -> bytes:
    """An event's details in their envelope."""
    return wrap(packed, RecordContext(*line, "event", f"{number} {id}".encode()), compression=_plain(packed))


def open_event(line: Line, id: str, number: int, body: bytes, max_bytes: int) -> bytes:
    """The packed details of an event."""
    return unwrap(body, RecordContext(*line, "event", f"{number} {id}".encode()), max_bytes=max_bytes).content


def _plain(content: bytes) -> Compression | None:
    return None if len(content) >= _WORTH_COMPRESSING else Compression.NONE


_ENVELOPED = (STEPS, FOLDS, NODES, OBJECTS, WRITES, JOBS, EVENTS)
"""Spaces whose bodies are in envelopes."""


def is_sound(space: Table, row: Row) -> bool:
    """Whether a row holds what was written into it."""
    if not row.body or space not in _ENVELOPED:
        return True
    try:
        unwrap(row.body, RecordContext(str(row.key[0]), str(row.key[1]), *context_of(space, row)))
    except CorruptError:
        return False
    except HoldfastError:
        return True  # too large, sealed, or from a newer release: nothing that a copy would mend
    return True


def context_of(space: Table, row: Row) -> tuple[str, bytes]:
    """The kind and the name of what is in a row's envelope."""
    if space is WRITES:
        return "write", _write_name(str(row.key[2]), str(row.columns[1]))
    if space is NODES:
        return "node", _bytes(row.key[3])
    if space is OBJECTS:
        return "object", _bytes(row.key[2]) + int(row.key[3]).to_bytes(4, "big")
    if space is JOBS:
        return "job", str(row.key[2]).encode()
    if space is EVENTS:
        return "event", f"{int(row.key[3])} {row.key[2]!s}".encode()
    return ("step", StepRef.of(row).hash) if space is STEPS else ("fold", _bytes(row.columns[1]))


def _bytes(part: Scalar) -> bytes:
    if not isinstance(part, bytes):
        raise CorruptError("a key of the store is not bytes where it should be", where=repr(part), hint=HINT)
    return part
