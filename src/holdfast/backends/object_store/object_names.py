"""Which names objects have: readable, of letters that every file system and every object storage takes, and short.

Small letters, digits, `-`, `_` and `.` stand for themselves; any other byte of UTF-8 is `=` and two hex digits, also
that of a capital: some file systems do not tell these apart. A name that gets too long is cut, and `==` and a digest of
it follow; the objects themselves hold the whole name.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from typing import TypeAlias

Names: TypeAlias = tuple[str, str]
"""Tenant and line."""

FORMAT = "format"
"""The object that tells which version of the layout is in use."""

TRANSACTIONS = "transactions"

_TENANT = "tenant="
_LINE = "line="
_PLAIN = frozenset(b"abcdefghijklmnopqrstuvwxyz0123456789-_.")
_ESCAPED = re.compile(r"=([0-9a-f]{2})")
_LONGEST = 180
_CUT = 100


def tenant_folder(tenant: str) -> str:
    """The folder of a tenant."""
    return _TENANT + _encode(tenant)


def folder(names: Names) -> str:
    """The folder of a shard."""
    return f"{tenant_folder(names[0])}/{_LINE}{_encode(names[1])}"


def is_tenant(name: str) -> bool:
    """Whether a folder is that of a tenant."""
    return name.startswith(_TENANT)


def is_line(name: str) -> bool:
    """Whether a folder in a tenant's is that of a line."""
    return name.startswith(_LINE)


def decoded(part: str) -> str | None:
    """The tenant or the line that a folder is named for; None where only its objects tell."""
    name = part.partition("=")[2]
    if "==" in name:
        return None
    try:
        return _ESCAPED.sub(lambda found: chr(int(found[1], 16)), name).encode("latin-1").decode()
    except UnicodeError:
        return None


def birth(shard: str) -> str:
    """The first object of a shard's life."""
    return f"{shard}/birth"


def folds(shard: str) -> str:
    """Where a shard's folds are."""
    return f"{shard}/fold"


def fold(shard: str, token: str) -> str:
    """The fold of an epoch."""
    return f"{shard}/fold/{token}"


def log(shard: str, token: str) -> str:
    """Where the log of an epoch is."""
    return f"{shard}/log/{token}"


def entry(shard: str, token: str, position: int) -> str:
    """An entry of an epoch's log. The first of the first epoch is the birth."""
    if position == 0 and number_of(token) == 0:
        return birth(shard)
    return f"{shard}/log/{token}/{position:02}"


def transaction(id: str) -> str:
    """Where it is decided what becomes of a transaction."""
    return f"{TRANSACTIONS}/{id}"


def new_life() -> str:
    """The token of the first epoch of a new life."""
    return f"{secrets.token_hex(6)}.{0:08}.{secrets.token_hex(6)}"


def next_token(token: str) -> str:
    """A token for the epoch after this one."""
    return f"{life_of(token)}.{number_of(token) + 1:08}.{secrets.token_hex(6)}"


def life_of(token: str) -> str:
    """Which life an epoch is of."""
    return token.partition(".")[0]


def number_of(token: str) -> int:
    """The how many-th epoch of its life it is."""
    return int(token.split(".")[1])


def _encode(name: str) -> str:
    data = name.encode()
    text = "".join(chr(byte) if byte in _PLAIN else f"={byte:02x}" for byte in data)
    if len(text) <= _LONGEST:
        return text
    return f"{text[:_CUT].rstrip('=')}=={hashlib.sha256(data).hexdigest()[:40]}"
