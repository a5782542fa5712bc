"""The cipher: what it refuses, and that a ciphertext commits to its key."""

from __future__ import annotations

import hmac
import os

import pytest
from cryptography.hazmat.primitives.ciphers import Cipher as BlockCipher
from cryptography.hazmat.primitives.ciphers import algorithms, modes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from holdfast.backends.interface import Put, Row, Scan
from holdfast.backends.registry import backend_for
from holdfast.backends.runtime.drivers import run
from holdfast.backends.tables import KEYS, STEPS
from holdfast.codec.envelope import RecordContext, seal, unseal
from holdfast.encryption import Encryption, LocalKeys
from holdfast.errors import CorruptError, DeniedError, InvalidError
from holdfast.security.encryption import cipher as module
from holdfast.security.encryption.cipher import Cipher, derive, new_key
from holdfast.security.encryption.encrypted_rows import EncryptedRows
from holdfast.security.encryption.key_rows import KeyRow

HERE = RecordContext("steps", ("", "t", 0, 0))


def test_what_is_sealed_opens_only_as_it_is() -> None:
    cipher = Cipher(new_key())
    sealed = cipher.seal(b"content", b"here")
    assert cipher.unseal(sealed, b"here") == b"content"
    assert b"content" not in sealed
    altered = [sealed[:place] + bytes([sealed[place] ^ 1]) + sealed[place + 1 :] for place in range(len(sealed))]
    for each in (*altered, sealed[:-1], sealed + b"x", b"", sealed[:20]):
        with pytest.raises(CorruptError) as caught:
            cipher.unseal(each, b"here")
        assert caught.value.code == "tampered"
    for other, associated in ((cipher, b"there"), (Cipher(new_key()), b"here")):
        with pytest.raises(CorruptError):
            other.unseal(sealed, associated)
    assert cipher.digest(b"x") != Cipher(new_key()).digest(b"x")
    for content in (b"", b"x", bytes(200)):
        assert cipher.digest(content) == hmac.digest(cipher.derive(b"digest 1"), content, "sha256")
    assert cipher.key_id.hex()[:16] in repr(cipher)
    with pytest.raises(InvalidError):
        Cipher(b"short")


def test_a_derived_key_is_renewed_before_its_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_SEALS", 10)
    cipher = Cipher(new_key())
    sealed = [cipher.seal(b"content", b"") for _ in range(25)]
    salts = [each[:16] for each in sealed]
    assert [salts.count(each) for each in dict.fromkeys(salts)] == [10, 10, 5]
    assert len({each[16:28] for each in sealed}) == 25
    assert all(cipher.unseal(each, b"") == b"content" for each in sealed)


# A ciphertext that opens under two keys. AES-GCM does not prevent it: its tag is linear in each block.


def _multiply(one: int, two: int) -> int:
    """Multiply in GCM's field, whose first bit is the highest."""
    product = 0
    for bit in range(127, -1, -1):
        if two >> bit & 1:
            product ^= one
        one = (one >> 1) ^ (0xE1 << 120 if one & 1 else 0)
    return product


def _power(value: int, exponent: int) -> int:
    result = 1 << 127
    while exponent:
        if exponent & 1:
            result = _multiply(result, value)
        value, exponent = _multiply(value, value), exponent >> 1
    return result


def _block(key: bytes, block: bytes) -> int:
    encryptor = BlockCipher(algorithms.AES(key), modes.ECB()).encryptor()
    return int.from_bytes(encryptor.update(block), "big")


def _ghash(key: int, blocks: list[int]) -> int:
    total = 0
    for block in blocks:
        total = _multiply(total ^ block, key)
    return total


def two_keys(one: bytes, two: bytes, nonce: bytes, associated: bytes) -> bytes:
    """Return a ciphertext of two blocks, with its tag, that opens under two keys."""
    padded = associated + bytes(-len(associated) % 16)
    first = [int.from_bytes(padded[at : at + 16], "big") for at in range(0, len(padded), 16)]
    fixed, lengths = int.from_bytes(os.urandom(16), "big"), (len(associated) * 8 << 64) | 256
    sums = 0
    factor = 0
    for key in (one, two):
        hashed, mask = _block(key, bytes(16)), _block(key, nonce + b"\0\0\0\1")
        # The tag is the mask, and the hash of: associated blocks, the fixed block, the free one, the lengths.
        sums ^= mask ^ _ghash(hashed, [*first, fixed, 0, lengths])
        factor ^= _power(hashed, 2)
    free = _multiply(sums, _power(factor, (1 << 128) - 2))
    blocks = [*first, fixed, free, lengths]
    tag = _block(one, nonce + b"\0\0\0\1") ^ _ghash(_block(one, bytes(16)), blocks)
    return b"".join(each.to_bytes(16, "big") for each in (fixed, free, tag))


def test_a_ciphertext_for_two_keys_opens_under_one() -> None:
    one, two = Cipher(first := new_key()), Cipher(second := new_key())
    salt, nonce = os.urandom(16), os.urandom(12)
    header = seal(b"", b"", one)[:44]
    assert header[12:] == one.key_id
    derived = [derive(each, b"seal 1" + salt) for each in (first, second)]
    crafted = two_keys(derived[0], derived[1], nonce, header + b"here")
    contents = [AESGCM(each).decrypt(nonce, crafted, header + b"here") for each in derived]
    assert contents[0] != contents[1]  # the control: AES-GCM alone opens it under both
    assert one.unseal(salt + nonce + crafted, header + b"here") == contents[0]
    assert two.unseal(salt + nonce + crafted, header + b"here") == contents[1]
    body = header + salt + nonce + crafted
    body += module_crc(body)
    keys = {one.key_id: one, two.key_id: two}
    assert unseal(body, b"here", keys, HERE) == contents[0]
    renamed = header[:12] + two.key_id + body[44:-4]
    with pytest.raises(CorruptError):  # its header names the key, and is part of what is sealed
        unseal(renamed + module_crc(renamed), b"here", keys, HERE)


def test_a_stored_key_is_the_one_that_its_id_says() -> None:
    """Somebody who can encrypt keys puts another key under an id: the ciphertext above would open under it."""
    backend = run(backend_for("memory://").open("memory://"))
    _, rows = EncryptedRows(Encryption(LocalKeys(b"m" * 32))).bind(backend)
    assert isinstance(rows, EncryptedRows)
    row = Row(("", "t", 0, 0), ("1", 0, 0, b"h" * 32, 0, "", "", 0, 0, -1))
    keys = rows.store_keys
    tenant = run(keys.require_tenant(""))
    run(keys.backend.apply([each.conditions[0] for each in run(keys.line_keys([("", "t")])).values()]))
    run(backend.apply([Put(STEPS, rows.encode(STEPS, row))]))
    (found,) = run(backend.read([Scan(KEYS, ("", "t"))]))[0]
    mine = KeyRow.of(found)
    wrapping = tenant.wrapping[mine.wrapped_by]
    forged = mine._replace(wrapped=wrapping.seal(new_key(), mine.associated()))
    for each, opens in ((mine, True), (forged, False)):
        run(backend.apply([Put(KEYS, each.stored())]))
        other, codec = EncryptedRows(Encryption(LocalKeys(b"m" * 32))).bind(backend)
        if opens:
            (sealed,) = run(other.read([Scan(STEPS, ("", "t"))]))[0]
            assert codec.decode(STEPS, sealed) == row
        else:
            with pytest.raises(DeniedError) as caught:
                run(other.read([Scan(STEPS, ("", "t"))]))
            assert caught.value.code == "key-wrong"


def module_crc(body: bytes) -> bytes:
    from zlib import crc32

    return crc32(body).to_bytes(4, "big")
