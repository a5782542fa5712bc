"""The content of the objects of a repository. `docs/backup-format.md` specifies it.

Every object starts with a header: a mark, its kind, the version of the format, and SHA-256 of its name and all that
follows. Packs are named by that digest; other objects have names of their own. Without some kinds of small objects,
many others could not be read: these are stored twice, under different prefixes.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import msgspec

from holdfast.backends.tables import Key, Scalar
from holdfast.byte_reader import ByteReader, packed_form
from holdfast.codec.compression import Compression, compress
from holdfast.engine.row_format import Line
from holdfast.errors import CorruptError, UnsupportedError

if TYPE_CHECKING:
    from holdfast.security.encryption.cipher import Cipher

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

T = TypeVar("T")

VERSION = 2
MARK = b"HFbk"
HEADER = 38
"""The bytes of a header."""
NONCE = 16
"""The random bytes after the header of a pack: no two packs have the same name."""

PACK = b"P"
"""The kind of packs, which have no name before they are sealed."""
REPOSITORY = "holdfast-backups"
"""The name of the object that makes a directory or a prefix a repository."""
PACKS, BACKUPS, LOCKS, REMOVED, SWEEPS, RECORDS, KEYS, KEYRINGS, DESTROYED, REPACKS, LOSSES = (
    "packs",
    "backups",
    "locks",
    "removed",
    "sweeps",
    "records",
    "keys",
    "keyrings",
    "destroyed",
    "repacks",
    "losses",
)
"""The folders of a repository."""
COPIES = "copies"
"""The folder with the copies of objects that are stored twice, each under its name."""
SUSPENSIONS, PINS, NOTICES, WITHDRAWALS, DAMAGE = (
    f"{RECORDS}/{each}" for each in ("suspensions", "pins", "notices", "withdrawals", "damage")
)

MAX_BLOCK = 256 << 20
"""The most bytes that a block has unpacked."""


class Slice(NamedTuple):
    """A part of a block: the pack and the bytes there, SHA-256 of these, and the part of the unpacked block."""

    pack: bytes
    offset: int
    length: int
    digest: bytes
    start: int
    size: int


class Chunk(NamedTuple):
    """Changes of the rows of a line: the index (which rows, and which are removed), and the bodies."""

    keys: Slice
    bodies: Slice
    rows: int


class Tip(NamedTuple):
    """The last step of a branch."""

    branch: int
    seq: int
    id: str
    hash: bytes


class LineEntry(msgspec.Struct, array_like=True, forbid_unknown_fields=True, frozen=True):
    """A line in a backup: its row, the ends of its branches, a digest of its other small rows, the last id of its
    events, the chunks that make its rows, to be applied in order; and of an encrypted store the ids of its keys."""

    tenant: str
    name: str
    columns: tuple[str | int, ...]
    body: bytes
    tips: tuple[Tip, ...]
    small: bytes
    last_event: str
    chunks: tuple[Chunk, ...]
    keys: tuple[bytes, ...] = ()

    @property
    def line(self) -> Line:
        """The name of the line."""
        return Line(self.tenant, self.name)

    @property
    def stored_line(self) -> Line:
        """The name of the line in the repository, which is another one where names are hidden."""
        return self.line

    @property
    def parts(self) -> list[Slice]:
        """The parts of blocks that make its rows."""
        return [part for chunk in self.chunks for part in chunk[:2]]

    @property
    def steps(self) -> int:
        """The number of steps, also of those that were pruned."""
        return sum(tip.seq + 1 for tip in self.tips)

    def with_name(self, name: str) -> LineEntry:
        """Return the line under its name, given that this one is hidden."""
        return NamedEntry(**{**msgspec.structs.asdict(self), "name": name}, stored_name=self.name)

    @classmethod
    def of_removed(cls, line: Line) -> LineEntry:
        """Return what says in a layer that a line of those before it is not there any more."""
        return cls(*line, (), b"", (), b"", "", ())

    @property
    def is_removed(self) -> bool:
        """Whether the line is not there any more. Others have a digest of their small rows."""
        return not self.small

    def in_pack(self, pack: bytes) -> LineEntry:
        """Return the line as it is in a page of a pack: chunks of the same pack do not name it."""
        if all(chunk.keys.pack and chunk.bodies.pack for chunk in self.chunks):
            return self
        chunks = tuple(
            Chunk(
                chunk.keys if chunk.keys.pack else chunk.keys._replace(pack=pack),
                chunk.bodies if chunk.bodies.pack else chunk.bodies._replace(pack=pack),
                chunk.rows,
            )
            for chunk in self.chunks
        )
        return msgspec.structs.replace(self, chunks=chunks)


class NamedEntry(LineEntry, frozen=True):
    """A line in a backup whose name is hidden in the repository, by its name. Never written."""

    stored_name: str = ""

    @property
    def stored_line(self) -> Line:
        return Line(self.tenant, self.stored_name)


class Page(NamedTuple):
    """A page of lines: tenant and name of the first one, and where it is."""

    tenant: str
    name: str
    part: Slice


class Layer(NamedTuple):
    """A part of the lines of a backup: how many, the pages that have them, in order, and the packs that these and the
    lines need: the id of each, and where the last block that is needed ends."""

    lines: int
    pages: tuple[Page, ...]
    packs: tuple[tuple[bytes, int], ...]


class ChunkIndex(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    """The index of a chunk. Keys are without tenant and line. First `removed` is applied, which has beginnings of keys
    by table, and then `rows`: key, columns and length of the body, by table. Of a body that is unpacked, the length is
    negative, and one less."""

    tenant: str
    name: str
    removed: list[tuple[str, tuple[Any, ...]]]
    rows: list[tuple[str, list[tuple[tuple[Any, ...], tuple[Any, ...], int]]]]


class PackInfo(NamedTuple):
    """A pack: its id, and its size in bytes."""

    id: bytes
    size: int


class DamagedLine(NamedTuple):
    """A line that could not be read when a backup was made. The backup has its last state that could, if any."""

    tenant: str
    name: str
    what: str


class Manifest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, frozen=True):
    """A backup. `parent` is SHA-256 of the manifest before it, of the same store; the first has none. Its moment is
    between `time` and `until`."""

    store: str
    number: int
    parent: bytes
    time: int
    until: int
    token: str
    tenant: str | None
    url: str
    holdfast: str
    reason: str
    seconds: float
    lines: int
    rows: int
    added: int
    needed: int
    layers: tuple[Layer, ...]
    damaged: tuple[DamagedLine, ...] = ()
    keyrings: tuple[str, ...] = ()
    """The ids of the key rings with the keys of an encrypted store."""
    records: tuple[str, ...] = ()
    """The names of the records and keys that there were in the repository."""
    checked: tuple[int, ...] = ()
    """When the packs that it reuses were last read, by the first byte of their ids."""
    abandoned: bool = False
    """There is no backup of this number: the process that made it died, and somebody broke its lock."""

    @property
    def oldest_check(self) -> int:
        """When the pack was read whose last check is the longest ago, or 0 if nothing is reused."""
        return min(filter(None, self.checked), default=0)

    @property
    def pages(self) -> tuple[Slice, ...]:
        """The pages of all layers. Some of their lines may be replaced or removed in later ones."""
        return tuple(page.part for layer in self.layers for page in layer.pages)


class RepositoryInfo(msgspec.Struct, forbid_unknown_fields=True):
    """The object that makes a directory or a prefix a repository. An encrypted one has the id of its key, which commits
    to the key, and a keyed digest of id and time."""

    id: str
    created: int
    key: bytes = b""
    mac: bytes = b""


class WrappedKey(msgspec.Struct, forbid_unknown_fields=True):
    """The key of a repository, encrypted by a master key of this id."""

    master: str
    wrapped: bytes
    created: int


class Keyring(msgspec.Struct, forbid_unknown_fields=True):
    """Keys of an encrypted store: rows of its table `keys`."""

    rows: list[tuple[str, str, str, int, bytes, str, str, int, bytes]]


class DestroyedKeys(msgspec.Struct, forbid_unknown_fields=True):
    """The ids of keys that were destroyed in a store, and must not come back."""

    time: int
    ids: list[bytes]


class LockInfo(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A lock: who makes a backup, and since when."""

    host: str
    process: int
    time: int


class RemovedBackup(msgspec.Struct, forbid_unknown_fields=True):
    """The record of a backup that was removed: its digest and its parent, so that the chain can still be checked."""

    digest: bytes
    parent: bytes
    time: int
    reason: str


class ReasonRecord(msgspec.Struct, forbid_unknown_fields=True):
    """Suspends all deletion, protects one backup, or says that `verify` found damage: when and why, and by which
    process."""

    time: int
    reason: str
    process: int


class Notice(msgspec.Struct, forbid_unknown_fields=True):
    """Says that records or keys were created or deleted: when, which, and by which process."""

    time: int
    names: list[str]
    process: int


class Sweep(msgspec.Struct, forbid_unknown_fields=True):
    """Packs that nothing needed at a time. They may be deleted as soon as all locks of that time are gone, and the time
    is over."""

    time: int
    packs: list[bytes]
    locks: list[str]


class Repack(msgspec.Struct, forbid_unknown_fields=True):
    """Slices that were moved to new packs: for each the pack, the offset and the start where it was, and the new one.
    Of each pack, all that backups need. It counts if all the new packs exist."""

    time: int
    slices: list[tuple[bytes, int, int, Slice]]


class PageBlocks(msgspec.Struct, forbid_unknown_fields=True):
    """Copies of the blocks of a pack that have pages, by offset, as they are stored there."""

    blocks: dict[int, bytes]


class Loss(msgspec.Struct, forbid_unknown_fields=True):
    """Slices that a repair could not bring back, as backups name them: pack, offset and start."""

    time: int
    slices: list[tuple[bytes, int, int]]


class Kind(NamedTuple):
    """A kind of small objects: the mark in their header, the type of their content, whether they are stored twice, and
    whether they are sealed in an encrypted repository."""

    mark: bytes
    type: type[Any]
    is_copied: bool = False
    is_sealed: bool = True


KINDS = {
    REPOSITORY: Kind(b"R", RepositoryInfo, is_copied=True, is_sealed=False),
    BACKUPS: Kind(b"M", Manifest, is_copied=True),
    LOCKS: Kind(b"L", LockInfo),
    REMOVED: Kind(b"D", RemovedBackup),
    SWEEPS: Kind(b"S", Sweep),
    SUSPENSIONS: Kind(b"Z", ReasonRecord),
    PINS: Kind(b"K", ReasonRecord),
    DAMAGE: Kind(b"F", ReasonRecord),
    NOTICES: Kind(b"N", Notice),
    WITHDRAWALS: Kind(b"V", Notice),
    KEYS: Kind(b"E", WrappedKey, is_copied=True, is_sealed=False),
    KEYRINGS: Kind(b"Y", Keyring, is_copied=True),
    DESTROYED: Kind(b"X", DestroyedKeys, is_copied=True),
    REPACKS: Kind(b"W", Repack, is_copied=True),
    LOSSES: Kind(b"O", Loss, is_copied=True),
    f"{COPIES}/{PACKS}": Kind(b"G", PageBlocks),
}
"""The kinds of small objects by folder."""


def digest_of(*parts: bytes | bytearray) -> bytes:
    """Return SHA-256 of some bytes."""
    hashed = hashlib.sha256()
    for part in parts:
        hashed.update(part)
    return hashed.digest()


def is_copied(name: str) -> bool:
    """Return whether the object of a name is stored twice."""
    kind = KINDS.get(name.partition("/")[0])
    return kind is not None and kind.is_copied


def copy_name(name: str) -> str:
    """Return the name of the copy of an object that is stored twice, or of the pages of a pack."""
    return f"{COPIES}/{name}"


def seal_object(kind: bytes, content: bytes, name: str) -> bytes:
    """Return an object with this content."""
    return _with_header(kind, digest_of(name.encode(), content), content)


def seal_pack(parts: Sequence[bytes]) -> tuple[bytes, bytes]:
    """Return the id and the object of a pack with this content."""
    id = digest_of(*parts)
    return id, _with_header(PACK, id, *parts)


def _with_header(kind: bytes, digest: bytes, *content: bytes) -> bytes:
    return b"".join((MARK, kind, bytes([VERSION]), digest, *content))


def open_object(kind: bytes, data: bytes, where: str, name: str = "") -> bytes:
    """Return the content of an object. `CorruptError` if it is not what was written under this name; `UnsupportedError`
    if it is the mark of a repository of another format, which alone says that: another version elsewhere is damage."""
    reader = ByteReader(data, _OBJECT, where, _HINT)
    if reader.take(len(MARK)) != MARK or reader.take(1) != kind:
        raise reader.error("is malformed")
    version, digest = reader.byte(), reader.take(HEADER - len(MARK) - 2)
    is_mark = kind == KINDS[REPOSITORY].mark
    if is_mark and version < VERSION:
        raise UnsupportedError(
            f"the repository has format {version}, and this Holdfast reads only {VERSION}",
            where=where,
            hint="Name a new repository; to restore from this one, use the Holdfast that made it. Nothing was changed",
            code="older-format",
        )
    if is_mark and version > VERSION:
        raise UnsupportedError(
            f"the repository has format {version}, and this Holdfast reads only {VERSION}",
            where=where,
            hint="Use a newer Holdfast. Nothing was changed",
            code="newer-format",
        )
    content = reader.rest()
    if version != VERSION or digest_of(name.encode(), content) != digest:
        raise reader.error("was damaged")
    return content


_OBJECT = "an object of the repository"
_HINT = "Run `holdfast backup verify` to see what is affected, and restore from another backup or repository"


def decode_value(data: bytes, type: type[T], where: str) -> T:
    """Return a packed value."""
    return ByteReader(data, _OBJECT, where, _HINT).packed(packed_form(type))


CREATE_LEVEL, REPACK_LEVEL = 3, 9
"""How hard blocks are compressed: when a backup is made, while the store is in use, and when what is needed for long is
written again. The second takes five times as long, for 1 to 9 % less."""


def compress_block(data: bytes | bytearray, level: int) -> bytes:
    """Return a block as it is stored."""
    return zstd.compress(data, level)


def decompress_block(data: bytes, where: str) -> bytes:
    """Return the unpacked bytes of a block."""
    try:
        decompressor = zstd.ZstdDecompressor(options={zstd.DecompressionParameter.window_log_max: 27})
        found = decompressor.decompress(data, MAX_BLOCK)
        if not decompressor.eof or decompressor.unused_data:
            raise zstd.ZstdError("the frame does not end where it should")
    except zstd.ZstdError as error:
        raise CorruptError(f"a block cannot be unpacked: {error}", where=where, hint=_HINT) from None
    return found


def own_tenant_id(store: str) -> str:
    """Return the id under which the backups of only the own tenant of a store are, if it has several."""
    return digest_of(f"{store} own".encode()).hex()[:32]


def pack_name(id: bytes) -> str:
    """Return the name of the object of a pack."""
    return f"{PACKS}/{id[:1].hex()}/{id.hex()}"


def manifest_name(store: str, number: int) -> str:
    """Return the name of the object of a manifest."""
    return f"{BACKUPS}/{store}/{number:010d}"


def removed_name(store: str, number: int) -> str:
    """Return the name of the object that is left of a removed backup."""
    return f"{REMOVED}/{store}/{number:010d}"


def starts_with(key: Key, prefix: Sequence[Scalar]) -> bool:
    """Return whether a key has this beginning."""
    return key[: len(prefix)] == tuple(prefix)


_BLOCK = b"block"
_OPEN = {kind.mark for kind in KINDS.values() if not kind.is_sealed}


class ObjectCodec:
    """Encodes and decodes the objects of one repository, which are encrypted where it has a key.

    A seal covers the id of the repository and the kind and name of the object: nobody can put one in the place of
    another. Blocks of packs are found by digests, which are in objects that are sealed.
    """

    def __init__(self, repository: str, cipher: Cipher | None = None) -> None:
        self._repository = repository
        self._cipher = cipher

    def encode(self, kind: bytes, name: str, value: Any) -> bytes:
        """Return an object with a packed value."""
        content = compress(msgspec.msgpack.encode(value), Compression.ZSTD)[1]
        return seal_object(kind, self._seal(content, kind, name), name)

    def decode(self, kind: bytes, name: str, data: bytes, type: type[T], where: str) -> T:
        """Return the value in an object. `CorruptError` if it is not what was written; with the code `tampered` if
        somebody changed it who does not have the key."""
        content = self._unseal(open_object(kind, data, where, name), kind, name, where)
        return decode_value(decompress_block(content, where), type, where)

    def encode_block(self, data: bytes | bytearray, level: int) -> bytes:
        """Return a block as it is stored."""
        return self._seal(compress_block(data, level), _BLOCK, "")

    def decode_block(self, data: bytes, where: str) -> bytes:
        """Return the unpacked bytes of a block."""
        return decompress_block(self._unseal(data, _BLOCK, "", where), where)

    def _seal(self, content: bytes, kind: bytes, name: str) -> bytes:
        if self._cipher is None or kind in _OPEN:
            return content
        return self._cipher.seal(content, self._associated(kind, name))

    def _unseal(self, content: bytes, kind: bytes, name: str, where: str) -> bytes:
        if self._cipher is None or kind in _OPEN:
            return content
        try:
            return self._cipher.unseal(content, self._associated(kind, name))
        except CorruptError:
            raise CorruptError(
                "an object of the repository was changed by somebody who does not have its key",
                where=where,
                hint="This is no accident. Run `holdfast backup suspend-deletion`, then `holdfast backup verify`",
                code="tampered",
            ) from None

    def _associated(self, kind: bytes, name: str) -> bytes:
        return msgspec.msgpack.encode(("holdfast backup 2", self._repository, kind, name))
