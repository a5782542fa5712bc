"""The rows of keys, and the keys of tenants, persons and lines that are in memory."""

from __future__ import annotations

import hmac
import json
from base64 import urlsafe_b64encode
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from typing import TYPE_CHECKING, Any, TypeAlias

from msgspec.msgpack import encode

from holdfast._named_tuple import NamedTuple
from holdfast.backends.interface import Change, Create, Expect, Put, Row, Scan
from holdfast.backends.tables import KEYS, REFS, STEPS, Key
from holdfast.codec.envelope import BodyKind, unwrap, wrap
from holdfast.engine.checked_rows import CHECKSUMS
from holdfast.engine.engine import Engine
from holdfast.engine.fields import FieldValue
from holdfast.engine.metadata_filter import MetadataFilter, value_texts, values_below
from holdfast.engine.row_format import Line
from holdfast.security.encryption.hidden_names import SUBJECT_LINE, NameCodec

if TYPE_CHECKING:
    from holdfast.security.encryption.cipher import Cipher


# Metadata index -------------------------------------------------------------------------------------------------------
#
# Entries of metadata that are declared indexed: found by equality, by keyed digests outside of the seals.
#
# The digests, *tokens*, follow that of the whole metadata in the column `metadata`. Each field has a key of its own. A
# filter reads the columns alone, and opens only the steps with the token of its value. Whoever sees the store sees
# which steps of a tenant have the same value in a field, and so how often each value occurs, but not which value it
# is.

_TOKEN_SIZE, _TOKEN_LENGTH = 9, 12
_MAX_TOKENS = 64
_ANY = "*"
"""In place of tokens: there are too many."""

_METADATA = list(STEPS.columns).index("metadata")
_DIGEST_LENGTH = 20


class MetadataIndex:
    """The tokens of one tenant. `derive` returns the key for a purpose."""

    def __init__(self, fields: Iterable[str], derive: Callable[[bytes], bytes]) -> None:
        self._keys = {name: derive(b"field 1 " + name.encode()) for name in fields}

    def tokens(self, metadata: str) -> str:
        """Return the tokens of some metadata, which is JSON."""
        try:
            found: Any = json.loads(metadata) if metadata else None
        except ValueError:
            return _ANY
        tokens = {
            self._token(name, text)
            for name in self._keys
            for value in values_below(found, tuple(name.split(".")))
            for text in value_texts(value)[:1]
        }
        return "".join(sorted(tokens)) if len(tokens) <= _MAX_TOKENS else _ANY

    def matcher(self, filters: Sequence[MetadataFilter]) -> Callable[[Row], bool] | None:
        """Return whether a step, as it is stored, may match filters; None if no field of them is indexed."""
        wanted = [
            {self._token(name, text) for text in each.texts}
            for each in filters
            if (name := ".".join(each.path)) in self._keys
        ]
        if not wanted:
            return None

        def may_match(row: Row) -> bool:
            text = str(row.columns[_METADATA])[_DIGEST_LENGTH:]
            if text == _ANY:
                return True
            tokens = {text[at : at + _TOKEN_LENGTH] for at in range(0, len(text), _TOKEN_LENGTH)}
            return all(not tokens.isdisjoint(each) for each in wanted)

        return may_match

    def name_entry(self, path: Sequence[str], text: str) -> FieldValue | None:
        """Return the name of an entry in the index of fields: that of the field is a token, too."""
        name = ".".join(path)
        return FieldValue(f".{self._token(name, '')}", self._token(name, text)) if name in self._keys else None

    def _token(self, name: str, text: str) -> str:
        digest = hmac.digest(self._keys[name], text.encode(errors="surrogatepass"), "sha256")
        return urlsafe_b64encode(digest[:_TOKEN_SIZE]).decode()


WRAPPING, DIGEST, NAMES, DATA, SUBJECT = "wrapping", "digest", "names", "data", "subject"
INDEX = "index"
"""The kind of the row with the names of indexed metadata, encrypted with the key for digests. It is no key."""
LIST = "list"
"""The kind of the row that authenticates the other rows of a tenant: which there are, and their states."""

LISTED = (WRAPPING, DIGEST, NAMES, INDEX)
"""The kinds that it lists."""

ACTIVE, RETIRED, DESTROYING = "active", "retired", "destroying"

LineName: TypeAlias = tuple[str, str]
"""Tenant and line."""

BY_SUBJECT = f"{SUBJECT}:"
"""The beginning of `wrapped_by` of a line's key that a subject key encrypts; a digest of the subject and the id of that
key follow."""


class KeyRow(NamedTuple):
    """A row of `KEYS`: what is known of a key without decrypting it."""

    tenant: str
    line: str
    kind: str
    number: int
    id: bytes
    wrapped_by: str
    state: str
    time: int
    wrapped: bytes

    @classmethod
    def of(cls, row: Row) -> KeyRow:
        """Return the content of a stored row."""
        opened = CHECKSUMS.decode(KEYS, row)
        (tenant, line, kind, number), (id, by, state, time) = opened.key, opened.columns
        content = unwrap(opened.body).content
        return cls(tenant, line, kind, number, id, by, state, time, content)  # type: ignore[arg-type]

    @classmethod
    def unchecked(cls, row: Row) -> KeyRow:
        """Return the content of a stored row under the hidden name of its line: the checksum covers the name, which is
        not known yet, and the encryption covers the rest."""
        content = unwrap(CHECKSUMS.salvage(KEYS, row).body).content
        return cls(*row.key, *row.columns, content)  # type: ignore[call-arg, arg-type]

    @property
    def key(self) -> Key:
        """The key of the row."""
        return self[:4]

    @property
    def columns(self) -> tuple[bytes, str, str, int]:
        """The columns of the row."""
        return self[4:8]

    def row(self) -> Row:
        """Return the row, for the engine to store."""
        return Row(self.key, self.columns, wrap(self.wrapped, codec=BodyKind.RAW))

    def stored(self) -> Row:
        """Return the row as it is stored."""
        return CHECKSUMS.encode(KEYS, self.row())

    def unchanged(self) -> Expect:
        """Return the condition that the row is still there, as it is."""
        return Expect(KEYS, self.key, self.columns)

    def destroyed_from(self, time: int) -> KeyRow:
        """Return the row of a key that may be destroyed from a time on, in nanoseconds since 1970."""
        return self._replace(state=f"{DESTROYING} {time}")

    @property
    def destroyed_at(self) -> int | None:
        """When a key of the tenant may be destroyed; None if it is not to be."""
        state, _, time = self.state.partition(" ")
        return int(time) if state == DESTROYING and time.isdecimal() else None

    @property
    def subject(self) -> str:
        """The digest of the subject whose key encrypts it; empty for none."""
        return self.wrapped_by.split(":")[1] if self.wrapped_by.startswith(BY_SUBJECT) else ""

    @property
    def wrapper(self) -> str:
        """The id, in hex, of the key that encrypts that of a line."""
        return self.wrapped_by.rpartition(":")[2]

    @property
    def context(self) -> dict[str, str]:
        """The context that a provider binds a tenant's key to; that of the list also has the other keys."""
        named = {"purpose": f"holdfast-{self.kind}", "number": str(self.number)}
        if self.kind == LIST:
            named["keys"] = self.state
        return {**named, "tenant": self.tenant} if self.tenant else named

    def associated(self) -> bytes:
        """Return what the key of a line or of a person is bound to."""
        return encode(("holdfast key 3", *self[:5], self.state, self.time))


def digest_list(rows: Iterable[KeyRow]) -> str:
    """Return the digest of the keys of a tenant, which the row of the list is bound to."""
    listed = sorted((row.kind, row.number, *row.columns) for row in rows if row.kind in LISTED)
    return sha256(encode(("holdfast key list 1", listed))).hexdigest()


@dataclass(slots=True)
class TenantKeys:
    """The keys of a tenant, decrypted."""

    rows: list[KeyRow]
    """All but those of lines and persons, that for certificates, and the two that follow."""
    wrapping: dict[str, Cipher]
    """By id, in hex."""
    digest: Cipher
    current: int
    read_at: float
    names: NameCodec | None = None
    """How names of lines are stored, if they are hidden."""
    index: MetadataIndex | None = None
    index_row: KeyRow | None = None
    list_row: KeyRow | None = None
    uses: int = 0

    @property
    def listed_rows(self) -> list[KeyRow]:
        """The rows that the list authenticates."""
        return [*self.rows, self.index_row] if self.index_row else self.rows

    @property
    def current_row(self) -> KeyRow:
        """The wrapping key in use."""
        return next(row for row in self.rows if row.kind == WRAPPING and row.number == self.current)

    @property
    def numbers(self) -> list[int]:
        """The numbers of the keys that a line may have."""
        return [row.number for row in self.rows if row.kind == WRAPPING]


@dataclass(frozen=True, eq=False)
class LineKey:
    """The data key that a line's rows are sealed with, and whether its row is stored."""

    row: KeyRow
    cipher: Cipher
    stored: bool
    subject: KeyRow | None = None
    """The subject key that encrypts it, if it is new."""

    @cached_property
    def conditions(self) -> list[Change]:
        """The conditions that the key is there and in use; its row, if it is new."""
        if self.stored:
            return [self.row.unchanged()]
        created = Create(KEYS, self.row.stored())
        return [created] if self.subject is None else [self.subject.unchanged(), created]


class SubjectKey(NamedTuple):
    """The key of a person's lines."""

    row: KeyRow
    cipher: Cipher

    @property
    def wrapped_by(self) -> str:
        """The reference to it in the rows of keys that it encrypts."""
        return f"{BY_SUBJECT}{self.row.line.removeprefix(SUBJECT_LINE)}:{self.row.id.hex()}"


SETTING, DESTROYED_KEY = "setting", "destroyed key "
"""The kind of the refs that record which keys were destroyed, and how their names start."""


def destroyed_key(tenant: str, id: bytes) -> Key:
    """Return the key of the ref that records that a key was destroyed."""
    return (tenant, "", SETTING, f"{DESTROYED_KEY}{id.hex()}", "")


def destroyed_changes(tenant: str, ids: Iterable[bytes], now: int) -> list[Change]:
    """Return the changes that record in a store that keys are destroyed, so that no backup brings them back. They
    belong into the batch that deletes the keys."""
    return [Put(REFS, Row(destroyed_key(tenant, id), ("", now))) for id in ids]


async def destroyed_ids(engine: Engine, tenants: Iterable[str]) -> set[bytes]:
    """Return the ids of keys that were destroyed in a store."""
    context = engine.context
    start, stop = (DESTROYED_KEY,), (DESTROYED_KEY[:-1] + "!",)
    if context.rows.hides_names:  # names are known when a row is opened
        scans = [Scan(REFS, (tenant, "", SETTING)) for tenant in tenants]
    else:
        scans = [Scan(REFS, (tenant, "", SETTING), start, stop, bodies=False) for tenant in tenants]
    names = [str(row.key[3]) for rows in await context.backend.read(scans) for row in rows]
    return {bytes.fromhex(name[len(DESTROYED_KEY) :]) for name in names if name.startswith(DESTROYED_KEY)}


async def erased_key_changes(engine: Engine, lines: Sequence[Line]) -> list[Change]:
    """Return the changes that record the keys of lines as destroyed, on condition that these are all of their keys.

    They belong into the batch that deletes the lines. A line need not have the key of its person: it may be older than
    the encryption of the store, or than the first checkpoint that names the person.
    """
    if not engine.context.rows.hides_columns:
        return []
    found = await engine.context.stored.read([Scan(KEYS, (*line, DATA)) for line in lines])
    rows = [KeyRow.of(row) for each in found for row in each]
    now, tenants = engine.context.clock(), {row.tenant for row in rows}
    return [
        *(row.unchanged() for row in rows),
        *(
            change
            for tenant in sorted(tenants)
            for change in destroyed_changes(tenant, [row.id for row in rows if row.tenant == tenant], now)
        ),
    ]
