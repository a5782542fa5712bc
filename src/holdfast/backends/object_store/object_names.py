"""The names of objects: readable, short, and valid in every file system and object storage.

Lowercase letters, digits, `-`, `_` and `.` stand for themselves; any other byte of UTF-8 is `=` and two hex digits,
also that of a capital, since some file systems ignore case. A name that is too long is cut and followed by `==` and a
digest; the objects themselves have the whole name.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from typing import TypeAlias

ShardNames: TypeAlias = tuple[str, str]
"""Tenant and line."""

FORMAT = "format"
"""The object with the version of the layout."""

TRANSACTIONS = "transactions"

TURNS = "turns"
"""The folder of requests for turns."""

IN_FOLD = -1
"""Stands for a fold instead of the number of an entry."""

FOLD_POSITION = 1 << 30
"""The position of a fold in its epoch."""

_TENANT = "tenant="
_LINE = "line="
_PLAIN = frozenset(b"abcdefghijklmnopqrstuvwxyz0123456789-_.")
_ESCAPED = re.compile(r"=([0-9a-f]{2})")
_LONGEST = 180
_CUT = 100


def tenant_folder(tenant: str) -> str:
    """The folder of a tenant."""
    return _TENANT + _encode(tenant)


def folder(names: ShardNames) -> str:
    """The folder of a shard."""
    return f"{tenant_folder(names[0])}/{_LINE}{_encode(names[1])}"


def is_tenant(name: str) -> bool:
    """Whether a folder is that of a tenant."""
    return name.startswith(_TENANT)


def is_line(name: str) -> bool:
    """Whether a folder in a tenant's is that of a line."""
    return name.startswith(_LINE)


def decode_name(part: str) -> str | None:
    """Decode the tenant or the line from the name of a folder; None if only its objects have the whole name."""
    name = part.partition("=")[2]
    if "==" in name:
        return None
    try:
        return _ESCAPED.sub(lambda found: chr(int(found[1], 16)), name).encode("latin-1").decode()
    except UnicodeError:
        return None


def first_object(shard: str) -> str:
    """The first object of a generation."""
    return f"{shard}/birth"


def folds(shard: str) -> str:
    """The folder of the folds."""
    return f"{shard}/fold"


def fold(shard: str, token: str) -> str:
    """The fold of an epoch."""
    return f"{shard}/fold/{token}"


def log(shard: str, token: str) -> str:
    """The folder of the log of an epoch."""
    return f"{shard}/log/{token}"


def entry(shard: str, token: str, position: int) -> str:
    """An entry of the log of an epoch. The first of the first epoch is the first object."""
    if position == 0 and epoch_of(token) == 0:
        return first_object(shard)
    return f"{shard}/log/{token}/{position:02}"


def body_object(token: str, position: int) -> str:
    """The object with bodies of an epoch, by its name in the shard's folder: the fold, or an entry of the log."""
    return (fold("", token) if position == IN_FOLD else entry("", token, position))[1:]


def transaction(id: str) -> str:
    """The object with the decision of a transaction."""
    return f"{TRANSACTIONS}/{id}"


def new_generation() -> str:
    """Create the token of the first epoch of a new generation."""
    return f"{secrets.token_hex(6)}.{0:08}.{secrets.token_hex(6)}"


def next_token(token: str) -> str:
    """Create the token of the epoch after this one."""
    return f"{generation_of(token)}.{epoch_of(token) + 1:08}.{secrets.token_hex(6)}"


def generation_of(token: str) -> str:
    """Return the generation of an epoch."""
    return token.partition(".")[0]


def epoch_of(token: str) -> int:
    """Return the number of an epoch in its generation."""
    return int(token.split(".")[1])


def token_of(name: str, folder: str) -> str:
    """Return the token in the name of an object in a shard's folder; empty for the first object, which has none."""
    parts = name[len(folder) + 1 :].split("/")
    return parts[1] if len(parts) > 1 else ""


def order_of(name: str, folder: str) -> tuple[int, int]:
    """Return the epoch of an object in a shard's folder, and its position there. A fold comes after all entries."""
    parts = name[len(folder) + 1 :].split("/")
    if len(parts) < 2:
        return (0, 0)
    return (epoch_of(parts[1]), FOLD_POSITION if parts[0] == "fold" else int(parts[2]))


def _encode(name: str) -> str:
    data = name.encode()
    text = "".join(chr(byte) if byte in _PLAIN else f"={byte:02x}" for byte in data)
    if len(text) <= _LONGEST:
        return text
    return f"{text[:_CUT].rstrip('=')}=={hashlib.sha256(data).hexdigest()[:40]}"
