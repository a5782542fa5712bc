"""Finds the shards that changed, for `Backend.changes`: a listing of all objects shows where each log ends.

Nothing is written for it. A token has two digests of each shard: of its folder, and of the end of its log. If a folder
is gone, a line was deleted, and its name is not known any more: then the answer is not complete.

The parts of a batch on several shards are in their logs before the batch is committed. So a shard whose last entry
is undecided is named, and named again the next time.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from typing import NamedTuple

from holdfast.backends.feed import Line, build_token, foreign_token, parse_token
from holdfast.backends.interface import Changes
from holdfast.backends.object_store import object_names
from holdfast.backends.object_store.formats import ENTRY, LogEntry, bodies_start, decode
from holdfast.backends.object_store.object_names import FOLD_POSITION
from holdfast.backends.object_store.object_storage import ObjectInfo, gather_limited
from holdfast.backends.object_store.query import QueryRunner
from holdfast.backends.object_store.shard_log import ShardLog
from holdfast.errors import CorruptError, UnsupportedError

_KIND = "objects"
_EMPTY = "-"
_DIGEST = 8
_UNSETTLED = bytes(_DIGEST)
"""Stands for the end of a log whose last entry is undecided."""

_FIRST_READ = 16 << 10


class _ShardEnd(NamedTuple):
    """The end of the log of a shard, as a listing shows it: the last objects of its generations."""

    last: dict[str, tuple[tuple[int, int], str]]
    first_object: ObjectInfo | None

    def digest(self) -> bytes:
        """Return a digest that changes with every entry of the log."""
        # The name of the first object does not show its generation. Two of them are not as old and as long.
        first = None if self.first_object is None else (self.first_object.size, self.first_object.modified)
        return _digest(repr((sorted(self.last.items()), first)))

    def last_entries(self) -> list[str]:
        """Return the names of the last entries, those of generations whose log was not folded since."""
        if not self.last:
            return [] if self.first_object is None else [self.first_object.name]
        return [name for order, name in self.last.values() if order[1] != FOLD_POSITION]


class ChangeFinder:
    """Finds the shards that changed since a token."""

    def __init__(self, shard_log: ShardLog, queries: QueryRunner) -> None:
        self._log = shard_log
        self._queries = queries

    async def find(self, known: dict[bytes, bytes] | None) -> Changes:
        """Return the shards that changed, by the digests of a token; without them, a token alone."""
        ends = _find_ends(await self._log.storage.list_objects(""))
        digests = {folder: (_digest(folder), end.digest()) for folder, end in ends.items()}
        before = known or {}
        changed = [folder for folder, (name, end) in digests.items() if before.get(name) != end]
        settled = await gather_limited([self._is_settled(ends[folder]) for folder in changed])
        for folder in (folder for folder, is_settled in zip(changed, settled, strict=True) if not is_settled):
            digests[folder] = digests[folder][0], _UNSETTLED
        token = _encode_token(dict(digests.values()))
        if known is None:
            return Changes([], token, complete=True)
        named = await gather_limited([self._queries.shard_names(*folder.split("/")) for folder in changed])
        lines: list[Line] = [names for names in named if names is not None]
        gone = known.keys() - {name for name, _ in digests.values()}
        return Changes(lines, token, complete=not gone and len(lines) == len(named))

    async def _is_settled(self, end: _ShardEnd) -> bool:
        """Return whether the last entry of a log is decided."""
        for name in end.last_entries():
            try:
                entry = await self._read_entry(name)
                if entry is None or (entry.transaction and await self._log.read_decision(entry.transaction) is None):
                    return False
            except (CorruptError, UnsupportedError):
                return False
        return True

    async def _read_entry(self, name: str) -> LogEntry | None:
        data = await self._log.storage.get(name, 0, _FIRST_READ)
        if data is None:
            return None
        missing = bodies_start(data, name) - len(data)
        if missing > 0:
            rest = await self._log.storage.get(name, len(data), missing)
            if rest is None:
                return None
            data += rest
        return decode(ENTRY, LogEntry, data, name)


def parse_since(since: str | None, where: str) -> dict[bytes, bytes] | None:
    """Return the digests of a token."""
    if since is None:
        return None
    (text,) = parse_token(since, _KIND, 1, where)
    try:
        data = b"" if text == _EMPTY else base64.b64decode(text, altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        raise foreign_token(since, where) from None
    if len(data) % (2 * _DIGEST):
        raise foreign_token(since, where)
    parts = [data[at : at + _DIGEST] for at in range(0, len(data), _DIGEST)]
    return dict(zip(parts[::2], parts[1::2], strict=True))


def _encode_token(digests: dict[bytes, bytes]) -> str:
    data = b"".join(name + end for name, end in sorted(digests.items()))
    return build_token(_KIND, base64.urlsafe_b64encode(data).decode() or _EMPTY)


def _find_ends(listed: list[ObjectInfo]) -> dict[str, _ShardEnd]:
    """Return the end of the log of each shard of a listing, by folder."""
    ends: dict[str, _ShardEnd] = {}
    for info in listed:
        tenant, _, rest = info.name.partition("/")
        line, slash, _ = rest.partition("/")
        if not slash or not object_names.is_tenant(tenant) or not object_names.is_line(line):
            continue
        folder = f"{tenant}/{line}"
        end = ends.get(folder) or _ShardEnd({}, None)
        token = object_names.token_of(info.name, folder)
        if not token:
            ends[folder] = end._replace(first_object=info)
            continue
        ends[folder] = end
        generation, order = object_names.generation_of(token), object_names.order_of(info.name, folder)
        end.last[generation] = max(end.last.get(generation, (order, info.name)), (order, info.name))
    return ends


def _digest(text: str) -> bytes:
    return hashlib.blake2b(text.encode(), digest_size=_DIGEST).digest()
