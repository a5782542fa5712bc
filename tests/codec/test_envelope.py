"""The envelope opens only unaltered records in their own rows."""

from __future__ import annotations

import gzip
import hmac
import os
from typing import Any

import pytest
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from hypothesis import given
from hypothesis import strategies as st

from holdfast.codec.compression import Compression, compress, decompress
from holdfast.codec.envelope import BodyKind, RecordContext, Sealer, expose, protect, seal, strip, unseal, unwrap, wrap
from holdfast.errors import CorruptError, DeniedError, HoldfastError, InvalidError, TooLargeError, UnsupportedError
from tests.support.cases import case

HERE = RecordContext("steps", ("acme", "thread-1", 0, 7), ("id-1", 5))


class Aes:
    """AES-256-GCM under one key."""

    def __init__(self, key_id: bytes = b"k1", key: bytes = b"0" * 32) -> None:
        self.key_id = key_id
        self._cipher = AESGCM(key)

    def seal(self, content: bytes, associated: bytes) -> bytes:
        nonce = os.urandom(12)
        return nonce + self._cipher.encrypt(nonce, content, associated)

    def unseal(self, sealed: bytes, associated: bytes) -> bytes:
        try:
            return self._cipher.decrypt(sealed[:12], sealed[12:], associated)
        except (InvalidTag, ValueError):
            raise CorruptError("the seal is broken") from None

    def digest(self, content: bytes) -> bytes:
        return hmac.digest(self.key_id, content, "sha256")


KEYS = {b"k1": Aes()}


def stored(content: bytes, context: RecordContext = HERE, sealer: Sealer | None = None, **how: Any) -> bytes:
    record = wrap(content, **how) if content or how else b""
    return protect(record, context) if sealer is None else seal(record, context.encode(), sealer)


def opened(body: bytes, context: RecordContext = HERE) -> bytes:
    """The record in a body, sealed or not."""
    return unseal(body, context.encode(), KEYS, context) if body[5:6] == b"\x01" else expose(body, context)


@given(st.binary(max_size=2000), st.text(max_size=20), st.sampled_from([None, *Compression]), st.booleans())
def test_wrapped_content_is_unwrapped(content: bytes, schema: str, how: Compression | None, sealed: bool) -> None:
    body = stored(content, sealer=KEYS[b"k1"] if sealed else None, schema=schema, compression=how)
    assert unwrap(opened(body)) == (content, BodyKind.PACKED, schema)
    assert unwrap(wrap(content, codec=BodyKind.RAW)).codec is BodyKind.RAW


@pytest.mark.parametrize("sealer", [None, Aes()])
def test_a_row_without_content_has_an_empty_record(sealer: Any) -> None:
    body = stored(b"", sealer=sealer)
    assert body.startswith(b"HF")
    assert opened(body) == b""
    with pytest.raises(CorruptError):
        opened(body, HERE._replace(columns=("id-2", 5)))
    assert strip(protect(b"", HERE)) == b""


@pytest.mark.parametrize("sealer", [None, Aes()])
def test_every_flipped_bit_and_every_cut_is_noticed(sealer: Any) -> None:
    body = stored(b"some content " * 20, sealer=sealer, schema="1.2.0")
    for i in range(len(body)):
        for bit in range(8):
            damaged = bytearray(body)
            damaged[i] ^= 1 << bit
            # Of a sealed row, the name of the key is no more than a name before the seal is opened.
            with pytest.raises(CorruptError if sealer is None else HoldfastError):
                opened(bytes(damaged))
        with pytest.raises(CorruptError):
            opened(body[:i])
    with pytest.raises(CorruptError):
        opened(body + b"\0")


def test_a_sealed_body_says_nothing_of_its_content() -> None:
    headers = {stored(content, sealer=Aes(), schema=schema)[:14] for content in (b"1", b"2" * 500) for schema in "78"}
    assert headers == {b"HF\x02\0\0\x01\x02\0\0\0\0\0k1"}
    with pytest.raises(CorruptError, match="not encrypted"):
        unseal(stored(b"content"), HERE.encode(), KEYS, HERE)


ELSEWHERE: list[Any] = [
    HERE._replace(table="folds"),
    HERE._replace(key=("other", "thread-1", 0, 7)),
    HERE._replace(key=("acme", "thread-1", 0, 8)),
    HERE._replace(columns=("id-1", 6)),
    HERE._replace(columns=("id-1", "5")),
    RecordContext("steps", ("acme", "thread-1", 0), (7, "id-1", 5)),
    RecordContext("steps", ("acm", "ethread-1", 0, 7), ("id-1", 5)),
]


def test_a_record_opens_only_in_its_row(subtests: pytest.Subtests) -> None:
    for sealer in [None, Aes()]:
        for elsewhere in ELSEWHERE:
            with case(subtests, "sealed" if sealer else "open", elsewhere), pytest.raises(CorruptError):
                opened(stored(b"content", sealer=sealer), elsewhere)


def test_errors_say_where() -> None:
    body = stored(b"content")
    with pytest.raises(CorruptError, match=r"checksum differs .at row \('acme', 'thread-1', 0, 7\) of steps"):
        expose(body[:-1] + b"x", HERE)
    with pytest.raises(CorruptError, match="row .ff00. of nodes"):
        expose(body, RecordContext("nodes", (b"\xff\x00",)))
    with pytest.raises(CorruptError, match="a record is truncated"):
        expose(b"HF", HERE)
    with pytest.raises(CorruptError, match="shorter than its checksum"):
        expose(body[:14], HERE)
    with pytest.raises(CorruptError, match="Holdfast's magic bytes"):
        expose(b"XX" + body[2:], HERE)
    with pytest.raises(DeniedError, match="key 6b31, which this store does not have"):
        expose(stored(b"content", sealer=Aes()), HERE)


def test_records_of_a_newer_release() -> None:
    record = wrap(b"content")
    for newer, message in (
        (b"HF\x03" + record[3:], "format version 3.*newer release"),
        (record[:5] + b"\x09" + record[6:], "protected by method 9"),
    ):
        body = protect(newer, HERE)
        with pytest.raises(UnsupportedError, match=message):
            expose(body, HERE)
        with pytest.raises(CorruptError, match="its checksum differs"):
            expose(body[:-1] + bytes([body[-1] ^ 1]), HERE)
    with pytest.raises(UnsupportedError, match="content is of kind 7"):
        unwrap(wrap(b"content", codec=7))  # type: ignore[arg-type]
    with pytest.raises(UnsupportedError, match="compressed by method 5"):
        decompress(5, b"x", 1, 10)


def test_names_that_are_not_text_are_refused() -> None:
    with pytest.raises(InvalidError, match="lone surrogates"):
        protect(b"", RecordContext("lines", ("\ud800", "x")))


def test_limits() -> None:
    record = wrap(b"x" * 1000)
    with pytest.raises(TooLargeError, match="claims to hold 1000 bytes, over the limit of 999"):
        unwrap(record, max_bytes=999)
    for sealer in (Aes(b""), Aes(b"k" * 256)):
        with pytest.raises(InvalidError, match="1 to 255 bytes"):
            seal(b"", b"", sealer)
    with pytest.raises(InvalidError, match="at most 255 bytes"):
        wrap(b"", schema="s" * 256)

    class Huge(bytes):
        def __len__(self) -> int:
            return 1 << 32

    with pytest.raises(TooLargeError, match="over the limit of 4 GB"):
        wrap(Huge())


def test_compression_is_chosen_by_size() -> None:
    assert compress(b"x" * 127)[0] is Compression.NONE
    assert compress(b"x" * 128)[0] is Compression.ZSTD_DICTIONARY_1
    assert compress(b"x" * (1 << 16))[0] is Compression.ZSTD_DICTIONARY_1
    assert compress(b"x" * ((1 << 16) + 1))[0] is Compression.ZSTD
    assert compress(os.urandom(500))[0] is Compression.NONE
    how, body = compress(b"x" * 500, Compression.GZIP)
    assert gzip.decompress(body) == b"x" * 500
    assert compress(b"x" * 500, Compression.GZIP) == (how, body)


@pytest.mark.parametrize("how", [Compression.ZSTD, Compression.ZSTD_DICTIONARY_1, Compression.GZIP])
def test_bombs_do_not_go_off(how: Compression) -> None:
    _, bomb = compress(bytes(32 << 20), how)
    assert len(bomb) < 1 << 20
    for size in (0, 10, 1 << 20):
        with pytest.raises(CorruptError, match="does not decompress to"):
            decompress(how, bomb, size, 1 << 30)
    _, body = compress(b"x" * 1000, how)
    for damaged in (body[:-1], body + b"x", b"", b"nonsense", body + body):
        with pytest.raises(CorruptError):
            decompress(how, damaged, 1000, 1 << 20)
    with pytest.raises(CorruptError):
        decompress(how, body, 999, 1 << 20)
    with pytest.raises(CorruptError):
        decompress(Compression.NONE, b"abc", 2, 10)


def test_a_frame_that_asks_for_too_much_memory() -> None:
    # A zstd header with a window of 2 GB, single segment off: magic, descriptor, window descriptor.
    frame = b"\x28\xb5\x2f\xfd\x00" + bytes([21 << 3]) + b"\x01\x00\x00"
    with pytest.raises(CorruptError):
        decompress(Compression.ZSTD, frame, 0, 10)
