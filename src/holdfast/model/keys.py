"""Where a step stands: tenant, line, branch and number, as bytes that sort the same way.

The byte form orders like the tuple does, whatever characters the names hold; no two different places share one; and
the places of a tenant, a line or a branch are just those that start with its prefix.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from holdfast.errors import Corrupt, Invalid

_NUMBER = struct.Struct(">Q")

# A name ends in 00 01. A zero byte inside one is written 00 FF, so no name's form is the start of another's.
_END = b"\x00\x01"
_ZERO = b"\x00\xff"

MAX_NAME = 1024
"""How many bytes of UTF-8 a tenant's or a line's name may have: what every store's index can hold."""


class Key(NamedTuple):
    """The place of one step."""

    tenant: str
    line: str
    branch: int
    seq: int

    def encode(self) -> bytes:
        """The order-preserving byte form."""
        return line_prefix(self.tenant, self.line) + _number(self.branch, "branch") + _number(self.seq, "seq")

    @classmethod
    def decode(cls, data: bytes) -> Key:
        """The place that these bytes were made from."""
        try:
            tenant, rest = _take_name(data)
            line, rest = _take_name(rest)
            branch, seq = struct.unpack(">QQ", rest)
        except (ValueError, struct.error):
            raise Corrupt(f"{data.hex()} is not the place of a step") from None
        return cls(tenant, line, branch, seq)


def tenant_prefix(tenant: str) -> bytes:
    """How the keys of all of a tenant's lines start."""
    return _name(tenant, "tenant")


def line_prefix(tenant: str, line: str) -> bytes:
    """How the keys of all steps of a line start."""
    return _name(tenant, "tenant") + _name(line, "line")


def branch_prefix(tenant: str, line: str, branch: int) -> bytes:
    """How the keys of all steps of a branch start."""
    return line_prefix(tenant, line) + _number(branch, "branch")


def _name(text: str, what: str) -> bytes:
    if not isinstance(text, str):
        raise Invalid(f"the name of a {what} is a string, not {type(text).__name__}")
    data = text.encode("utf-8", "surrogatepass")
    if len(data) > MAX_NAME:
        raise Invalid(
            f"the name of a {what} has at most {MAX_NAME} bytes of UTF-8, and this one {len(data)}",
            where=f"{text[:40]}…",
            hint="Use a shorter name, or a digest of this one",
        )
    return data.replace(b"\x00", _ZERO) + _END


def _take_name(data: bytes) -> tuple[str, bytes]:
    at = 0
    while True:
        at = data.index(b"\x00", at)
        if data[at + 1 : at + 2] == b"\x01":
            name = data[:at].replace(_ZERO, b"\x00")
            return name.decode("utf-8", "surrogatepass"), data[at + 2 :]
        if data[at + 1 : at + 2] != b"\xff":
            raise ValueError(data)
        at += 2


def _number(value: int, what: str) -> bytes:
    try:
        return _NUMBER.pack(value)
    except struct.error:
        raise Invalid(f"the {what} of a step is a whole number from 0 up, not {value!r}") from None
