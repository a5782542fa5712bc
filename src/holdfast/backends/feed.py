"""The feed of changes: what stores have in common that record which lines their batches change.

A store records the lines of a group of batches in the same transaction, with a position that only increases. It
remembers the last changes only. What it forgot is a *gap*: a token from before its end is not answered completely.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

from holdfast.backends.interface import Batch, Changes, Delete, Expect
from holdfast.errors import InvalidError

MAX_LINES = 4096
"""How many of the last changes a store remembers, at least."""

Line = tuple[str, str]
"""The tenant and the name of a line."""


def changed_lines(batches: Iterable[Batch]) -> set[Line] | None:
    """Return the lines that batches change; None if they delete whole tenants, and so any line."""
    lines: set[Line] = set()
    for batch in batches:
        for change in batch:
            if isinstance(change, Expect) or not change.space.in_feed:
                continue
            key = change.prefix if isinstance(change, Delete) else change.row.key
            if len(key) < 2:
                return None
            lines.add(key[:2])  # type: ignore[arg-type] # all keys start with tenant and line
    return lines


def build_token(kind: str, *parts: object) -> str:
    """Return the token of a kind of store."""
    return ".".join((kind, *map(str, parts)))


def parse_token(token: object, kind: str, parts: int, where: str) -> list[str]:
    """Return the parts of a token of a kind of store."""
    found = token.split(".") if isinstance(token, str) else []
    if len(found) != parts + 1 or found[0] != kind or not all(found):
        raise foreign_token(token, where)
    return found[1:]


def parse_number(text: str, token: object, where: str) -> int:
    """Return a number of a token."""
    if not (text.isascii() and text.isdigit() and len(text) < 20):
        raise foreign_token(token, where)
    return int(text)


def foreign_token(token: object, where: str) -> InvalidError:
    """Return the error to raise for a token that the store did not issue."""
    shown = repr(token)
    return InvalidError(
        f"{shown if len(shown) < 80 else shown[:77] + '...'} is not a change token of this store",
        where=where,
        hint="Pass a token that this store returned earlier, or None to start",
    )


class RecentLines:
    """The lines that changed last, in memory, each with the number of its last change. Not thread-safe.

    Its tokens have the kind of store, and an `id` if numbers begin anew when the store is opened. `where` names the
    store in errors.
    """

    def __init__(self, kind: str, where: str, id: str = "") -> None:
        self._kind = (kind, id) if id else (kind,)
        self._where = where
        self._last = 0
        self._numbers: OrderedDict[Line, int] = OrderedDict()
        self._gap = 0
        """The number of the last change that was forgotten."""

    def add(self, batches: Iterable[Batch]) -> None:
        """Add the lines that batches changed."""
        lines = changed_lines(batches)
        if lines == set():
            return
        self._last += 1
        if lines is None:
            self._numbers.clear()
            self._gap = self._last
            return
        for line in lines:
            self._numbers[line] = self._last
            self._numbers.move_to_end(line)
        while len(self._numbers) > MAX_LINES:
            _, self._gap = self._numbers.popitem(last=False)

    def changes(self, since: str | None) -> Changes:
        """Return the lines that changed after a token, for `Backend.changes`."""
        token = build_token(*self._kind, self._last)
        if since is None:
            return Changes([], token, complete=True)
        *id, text = parse_token(since, self._kind[0], len(self._kind), self._where)
        number = parse_number(text, since, self._where)
        if tuple(id) != self._kind[1:]:
            return Changes([], token, complete=False)
        lines: list[Line] = []
        for line, changed in reversed(self._numbers.items()):
            if changed <= number:
                break
            lines.append(line)
        return Changes(lines, token, complete=self._gap <= number <= self._last)
