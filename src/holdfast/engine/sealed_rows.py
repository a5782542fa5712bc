"""Rows that are stored sealed, by an authenticated cipher.

`holdfast.security.encryption` has the keys.
"""

from __future__ import annotations

import os
from binascii import b2a_base64
from collections.abc import Callable, Sequence
from operator import itemgetter

from msgspec.msgpack import encode as pack

from holdfast.backends.interface import Row
from holdfast.backends.tables import FOLDS, KEYS, LINKS, NODES, REFS, STEPS, TABLES, WRITES, Key, Scalar, Table
from holdfast.byte_reader import ByteReader
from holdfast.codec.envelope import (
    DAMAGED,
    RecordContext,
    Sealer,
    SealerLookup,
    damaged_error,
    seal,
    tampered_error,
    unseal,
)
from holdfast.engine.artifact_links import ARTIFACT
from holdfast.engine.checked_rows import UNPROTECTED, RowCodec
from holdfast.engine.row_format import HOLD, PIN, ROW_FORM
from holdfast.errors import CorruptError, HoldfastError, InvalidError

_STABLE_NAMES: dict[str, tuple[str, ...]] = {
    STEPS.name: ("hash",),
    FOLDS.name: ("hash",),
    NODES.name: ("node",),
}
"""The columns that name a record for good, where that is not the rest of the key: a rewrite numbers its nodes anew."""

_DIGEST_SIZE = 15
_URL_SAFE = bytes.maketrans(b"+/", b"-_")

_SHORT, _MAX_DIGESTS = 24, 4096
"""The length of texts whose digests are cached, and how many are."""

_HIDDEN_NAMES: dict[str, tuple[str, ...]] = {
    LINKS.name: ("sha256", "type", "producer", ARTIFACT),
    REFS.name: (PIN, HOLD),
}
"""The kinds of rows whose name, in the key, is content: of links and of refs."""

_NAMES: dict[str, tuple[int, ...]] = {LINKS.name: (3, 4), REFS.name: (3,)}
"""Where keys have names, which are hidden on request: of links and of refs, such as tags."""

_METADATA = list(STEPS.columns).index("metadata")

_TIMES = "due"
"""The kind of links whose name is a time."""

_HIDDEN = "\ufdd0"
"""The start of a name that is a digest: a character that no text has."""

UNSEALED = UNPROTECTED | {KEYS.name}
"""Tables whose rows are not sealed. Keys are encrypted already, and have a checksum."""


class _SealedTable:
    """The values in a row that a seal is about: of its key and columns one after another, or of its columns alone."""

    def __init__(self, table: Table) -> None:
        everything = list(table.all_columns)
        names = _STABLE_NAMES.get(table.name, tuple(table.key)[2:])
        indexed = {column for columns in table.indexes.values() for column in columns}
        self.hidden = tuple(
            number
            for number, (column, kind) in enumerate(table.columns.items())
            if issubclass(kind, str) and column not in indexed
        )
        self.name = _getter([everything.index(each) for each in names])
        """The name that the record has for good."""
        self.digests = _getter([len(table.key) + number for number in self.hidden])
        self.visible = _getter([number for number in range(len(table.columns)) if number not in self.hidden])


def _getter(places: Sequence[int]) -> Callable[[Sequence[Scalar]], Sequence[Scalar]]:
    """Return a function that returns the values at some places."""
    if len(places) > 1:
        return itemgetter(*places)
    return itemgetter(slice(places[0], places[0] + 1) if places else slice(0))


_SEALED = {table.name: _SealedTable(table) for table in TABLES if table.name not in UNSEALED}


class SealedRowCodec(RowCodec):
    """Stores rows sealed: key, columns and record are inside of the body, and columns of text are digests outside.

    The seal covers the table, the tenant, the line and the stable name of the record: a body that was moved anywhere
    else does not open. Columns that stores compare or order by are outside as well, and must be those inside.

    All rows have one key here. A subclass may have many; `keys` are those to open rows with.
    """

    hides_columns = True

    def __init__(self, sealer: Sealer | None = None, keys: SealerLookup | None = None) -> None:
        self._sealer = sealer
        self._digests: dict[tuple[Scalar, ...], str] = {}
        self._keys: SealerLookup = keys if keys is not None else {} if sealer is None else {sealer.key_id: sealer}

    def sealer(self, key: Key) -> Sealer:  # noqa: ARG002 - for subclasses
        """Return the key that seals the row of this key."""
        assert self._sealer is not None  # noqa: S101 - a subclass overrides this
        return self._sealer

    def digest(self, key: Key, content: bytes) -> bytes:
        """Return the keyed digest that stands for a text of the row of this key."""
        return self.sealer(key).digest(content)

    def encode(self, table: Table, row: Row) -> Row:
        if table.name in UNSEALED:
            return super().encode(table, row)
        return self.seal(table, row, self.sealer(row.key))

    def seal(self, table: Table, row: Row, sealer: Sealer) -> Row:
        """Return a row as it is stored, sealed with a key."""
        key, columns, record = row
        if record == DAMAGED:
            raise damaged_error(str(RecordContext(table.name, key, columns)))
        try:
            stored_key = key
            if table.name in _HIDDEN_NAMES:
                self._refuse_marked(table, key)
                stored_key = self.hide_key(table, key)
            outside = self.columns(table, key, columns)
            content, associated = pack((key[2:], columns, record)), _associated(table, stored_key, outside)
        except UnicodeEncodeError:
            where = ascii((key, columns))
            raise InvalidError("a name or a column is not text: it has lone surrogates", where=where) from None
        return Row(stored_key, outside, seal(content, associated, sealer))

    def _refuse_marked(self, table: Table, key: Key) -> None:
        """Raise `InvalidError` if a name looks like a digest: it would be stored as it is."""
        for place in self.hidden_places(table, key[2]):
            if place < len(key) and str(key[place]).startswith(_HIDDEN):
                raise InvalidError(
                    f"a name, a reason or an id starts with U+{ord(_HIDDEN):04X}, which is not a character",
                    where=ascii(key[place])[:80],
                    hint="Encrypted stores need it to mark what is hidden: leave it out",
                )

    def decode(self, table: Table, row: Row) -> Row:
        if table.name in UNSEALED:
            return super().decode(table, row)
        stored_key, outside, body = row
        context = RecordContext(table.name, stored_key, outside)
        content = unseal(body, _associated(table, stored_key, outside), self._keys, context)
        try:
            rest, columns, record = ByteReader(content).packed(ROW_FORM)
        except CorruptError:
            raise tampered_error("an encrypted row is malformed", str(context)) from None
        key = (*stored_key[:2], *rest)
        if key != stored_key and SealedRowCodec.hide_key(self, table, key) != stored_key:
            raise tampered_error(
                "a row was altered: its key differs from the one that was sealed with it", str(context)
            )
        visible = _SEALED[table.name].visible
        if len(columns) != len(outside) or visible(columns) != visible(outside):
            raise tampered_error(
                "a row was altered: its columns differ from those that were sealed with it", str(context)
            )
        return Row(key, columns, record)

    def salvage(self, table: Table, row: Row) -> Row:
        if table.name in UNSEALED:
            return super().salvage(table, row)
        try:
            return self.decode(table, row)
        except HoldfastError:
            return row._replace(body=b"")  # nothing of it can be read

    def metadata_tokens(self, key: Key, metadata: str) -> str:  # noqa: ARG002 - for subclasses
        """Return what follows the digest of a step's metadata: digests of single entries."""
        return ""

    def _compute_digest(self, name: tuple[Scalar, ...], key: Key) -> str:
        """Return the digest of a text in a column, and cache that of a short one: the kind of a step is one of few."""
        table, _, line, number, text = name
        content = self.digest(key, pack((table, line, number, text)))
        digest = _text(content[:_DIGEST_SIZE])
        if table == STEPS.name and number == _METADATA:
            digest += self.metadata_tokens(key, str(text))
        if len(str(text)) < _SHORT and any(content):  # it is zero while the keys of the tenant are not known
            if len(self._digests) >= _MAX_DIGESTS:
                self._digests.clear()
            self._digests[name] = digest
        return digest

    def hide_key(self, table: Table, key: Key) -> Key:
        """Return a key with a digest in place of a text that is no name: the SHA-256 of content, which would confirm a
        guess, the type and the producer of an artifact, a key that was changed with one, and the reason of a pin or
        hold. A key that is hidden already stays as it is."""
        if len(key) < 4:
            return key
        hidden = list(key)
        for place in self.hidden_places(table, key[2]):
            if place < len(key):
                hidden[place] = self._hide_name(table, key, str(key[place]))
        return tuple(hidden)

    def hidden_places(self, table: Table, kind: Scalar) -> tuple[int, ...]:
        """Return which columns of a key are digests, in rows of a kind."""
        if kind in _HIDDEN_NAMES.get(table.name, ()):
            return (3, 4) if self.hides_names and table is LINKS else (3,)
        places = _NAMES.get(table.name, ()) if self.hides_names else ()
        return places[1:] if kind == _TIMES else places

    def _hide_name(self, table: Table, key: Key, name: str) -> str:
        bare = name.rstrip("\0")  # a page starts after a name, and the digest of that is not after its digest
        if not bare or bare.startswith(_HIDDEN):
            return name
        return hidden_name(lambda content: self.digest(key, content), table, key, bare) + name[len(bare) :]

    def columns(self, table: Table, key: Key, columns: tuple[Scalar, ...]) -> tuple[Scalar, ...]:
        """Return columns with digests in place of texts. Those of pending writes are random: no condition is about
        them, and a row that was replaced by another one can be told from it."""
        hidden = _SEALED[table.name].hidden if table.name in _SEALED else ()
        if not hidden:
            return columns
        outside = list(columns)
        if table is WRITES:
            for number in hidden:
                outside[number] = _text(os.urandom(_DIGEST_SIZE))
            return tuple(outside)
        for number in hidden:
            text = outside[number]
            if isinstance(text, str) and text:
                name = (table.name, *key[:2], number, text)
                digest = self._digests.get(name) or self._compute_digest(name, key)
                outside[number] = digest
        return tuple(outside)


def hidden_name(digest: Callable[[bytes], bytes], table: Table, key: Key, name: str) -> str:
    """Return what stands for a name in the key of a row."""
    try:
        content = pack((table.name, key[1], key[2], name))
    except UnicodeEncodeError:
        raise InvalidError("a name is not text: it has lone surrogates", where=ascii(name)[:80]) from None
    return _HIDDEN + _text(digest(content)[:_DIGEST_SIZE])


def _text(digest: bytes) -> str:
    """Return bytes in base64, with the characters that are safe in URLs."""
    return b2a_base64(digest, newline=False).translate(_URL_SAFE).decode()


def _associated(table: Table, key: Key, columns: tuple[Scalar, ...]) -> bytes:
    """Return what a seal covers besides the content: with the digests, so that they need not be computed to check
    them."""
    whole, sealed = key + columns, _SEALED[table.name]
    return pack((table.name, key[:2], sealed.name(whole), sealed.digests(whole)))
