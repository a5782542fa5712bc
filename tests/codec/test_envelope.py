"""The envelope opens only unaltered records in their own context."""

from __future__ import annotations

import gzip
import os
from typing import Any

import pytest
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from hypothesis import given
from hypothesis import strategies as st

from holdfast.codec.compression import Compression, compress, decompress
from holdfast.codec.envelope import BodyKind, RecordContext, unwrap, wrap
from holdfast.errors import CorruptError, DeniedError, HoldfastError, InvalidError, TooLargeError, UnsupportedError
from tests.support.cases import case

HERE = RecordContext("acme", "thread-1", "step", b"id-1")


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


KEYS = {b"k1": Aes()}


@given(st.binary(max_size=2000), st.text(max_size=20), st.sampled_from([None, *Compression]), st.booleans())
def test_wrapped_content_is_unwrapped(content: bytes, schema: str, how: Compression | None, sealed: bool) -> None:
    record = wrap(content, HERE, schema=schema, compression=how, sealer=KEYS[b"k1"] if sealed else None)
    opened = unwrap(record, HERE, keys=KEYS)
    assert opened == (content, BodyKind.PACKED, schema, b"k1" if sealed else b"")
    assert unwrap(wrap(content, HERE, codec=BodyKind.RAW), HERE).codec is BodyKind.RAW


@pytest.mark.parametrize("sealer", [None, Aes()])
def test_every_flipped_bit_and_every_cut_is_noticed(sealer: Any) -> None:
    record = wrap(b"some content " * 20, HERE, schema="1.2.0", sealer=sealer)
    for i in range(len(record)):
        for bit in range(8):
            damaged = bytearray(record)
            damaged[i] ^= 1 << bit
            with pytest.raises(HoldfastError):
                unwrap(bytes(damaged), HERE, keys=KEYS)
        with pytest.raises(HoldfastError):
            unwrap(record[:i], HERE, keys=KEYS)
    with pytest.raises(CorruptError):
        unwrap(record + b"\0", HERE, keys=KEYS)


ELSEWHERE: list[Any] = [
    HERE._replace(tenant="other"),
    HERE._replace(line="thread-2"),
    HERE._replace(kind="node"),
    HERE._replace(name=b"id-2"),
    RecordContext("acm", "ethread-1", "step", b"id-1"),
]


def test_a_record_opens_only_where_it_belongs(subtests: pytest.Subtests) -> None:
    for sealer in [None, Aes()]:
        for elsewhere in ELSEWHERE:
            with case(subtests, "sealed" if sealer else "open", elsewhere), pytest.raises(CorruptError):
                unwrap(wrap(b"content", HERE, sealer=sealer), elsewhere, keys=KEYS)


def test_errors_say_where() -> None:
    record = wrap(b"content", HERE)
    with pytest.raises(CorruptError, match="checksum differs .at step id-1 of line 'thread-1', tenant 'acme'."):
        unwrap(record[:-1] + b"x", HERE)
    with pytest.raises(CorruptError, match="step ff00"):
        unwrap(record, HERE._replace(name=b"\xff\x00"))
    with pytest.raises(CorruptError, match="shorter than its header"):
        unwrap(b"HF", HERE)
    with pytest.raises(CorruptError, match="Holdfast's magic bytes"):
        unwrap(b"XX" + record[2:], HERE)
    with pytest.raises(UnsupportedError, match="format version 2.*newer release"):
        unwrap(b"HF\x02" + record[3:], HERE)
    with pytest.raises(UnsupportedError, match="protected by method 9"):
        unwrap(record[:5] + b"\x09" + record[6:], HERE)
    with pytest.raises(DeniedError, match="key 6b31, which this store does not have"):
        unwrap(wrap(b"content", HERE, sealer=Aes()), HERE)


def test_records_of_a_newer_release() -> None:
    record = wrap(b"content", HERE, codec=7)  # type: ignore[arg-type]
    with pytest.raises(UnsupportedError, match="content is of kind 7"):
        unwrap(record, HERE)
    with pytest.raises(UnsupportedError, match="compressed by method 5"):
        decompress(5, b"x", 1, 10)


def test_names_of_any_unicode() -> None:
    odd = RecordContext("\ud800", "\0\U0001f600", "step", b"")
    assert unwrap(wrap(b"x", odd), odd).content == b"x"


def test_limits() -> None:
    record = wrap(b"x" * 1000, HERE)
    with pytest.raises(TooLargeError, match="claims to hold 1000 bytes, over the limit of 999"):
        unwrap(record, HERE, max_bytes=999)
    for sealer, schema in ((Aes(b""), ""), (Aes(b"k" * 256), ""), (None, "s" * 256)):
        with pytest.raises(InvalidError, match="1 to 255 bytes"):
            wrap(b"", HERE, sealer=sealer, schema=schema)

    class Huge(bytes):
        def __len__(self) -> int:
            return 1 << 32

    with pytest.raises(TooLargeError, match="over the limit of 4 GB"):
        wrap(Huge(), HERE)


def test_compression_is_chosen_by_size() -> None:
    assert compress(b"x" * 127)[0] is Compression.NONE
    assert compress(b"x" * 128)[0] is Compression.ZSTD
    assert compress(os.urandom(500))[0] is Compression.NONE
    how, body = compress(b"x" * 500, Compression.GZIP)
    assert gzip.decompress(body) == b"x" * 500
    assert compress(b"x" * 500, Compression.GZIP) == (how, body)


@pytest.mark.parametrize("how", [Compression.ZSTD, Compression.GZIP])
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
