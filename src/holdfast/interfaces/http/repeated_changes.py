"""Changes by their Idempotency-Key: one that is sent again is answered again, and not made again."""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from holdfast.errors import ConflictError, OutcomeUnknownError

_MAX_CHANGES = 10_000
"""How many changes are known by their keys."""

_MAX_BYTES = 64 << 20
"""How many bytes of their results are kept."""

_MAX_RESULT = 16 << 20
"""The most bytes of a result that is kept."""


def change_digest(method: str, address: str, if_match: tuple[str, ...], body: bytes) -> bytes:
    """Return the digest of a change: two are the same if all of it is."""
    digest = hashlib.sha256(msgspec.json.encode([method, address, if_match]))
    digest.update(body)
    return digest.digest()


@dataclass(slots=True)
class _Change:
    digest: bytes
    made: bool = False
    result: bytes | None = None
    """None while the change is under way, and when its result is no longer kept."""


class RepeatedChanges:
    """The latest changes. Their bodies are kept as digests, and their results as long as there is room: that a change
    was made is known for longer than what it returned."""

    def __init__(self) -> None:
        self._changes: OrderedDict[tuple[str, str], _Change] = OrderedDict()
        self._kept: OrderedDict[tuple[str, str], int] = OrderedDict()
        self._size = 0
        self._lock = threading.Lock()

    @property
    def size(self) -> int:
        """How many bytes of results are kept."""
        return self._size

    def once(self, key: tuple[str, str], digest: bytes, run: Callable[[], bytes]) -> bytes:
        """Make a change, unless it was made before. `ConflictError` if it is under way, or another had the key;
        `OutcomeUnknownError` if it was made, and its result is no longer kept."""
        with self._lock:
            found = self._changes.get(key)
            if found is not None:
                return _answer(found, digest)
            change = self._changes[key] = _Change(digest)
            self._forget_changes()
        try:
            result = run()
        except BaseException:
            with self._lock:
                self._changes.pop(key, None)
            raise
        with self._lock:
            change.made = True
            if len(result) <= _MAX_RESULT and key in self._changes:
                change.result = result
                self._kept[key] = len(result)
                self._size += len(result)
            while self._size > _MAX_BYTES:
                self._drop_result(next(iter(self._kept)))
        return result

    def _forget_changes(self) -> None:
        while len(self._changes) > _MAX_CHANGES:
            oldest = next((key for key, each in self._changes.items() if each.made), None)
            if oldest is None:  # all are under way, and each of them has a thread
                return
            self._drop_result(oldest)
            del self._changes[oldest]

    def _drop_result(self, key: tuple[str, str]) -> None:
        self._size -= self._kept.pop(key, 0)
        self._changes[key].result = None


def _answer(found: _Change, digest: bytes) -> bytes:
    if found.digest != digest:
        raise ConflictError(
            "this Idempotency-Key was already used for another change", hint="Use a new key for a new change"
        )
    if not found.made:
        raise ConflictError("this change is still in progress", hint="Wait, and send it again", code="under-way")
    if found.result is None:
        raise OutcomeUnknownError(
            "this change was made, and its result is no longer kept",
            hint="Read what the change concerns, and do not repeat it",
        )
    return found.result
