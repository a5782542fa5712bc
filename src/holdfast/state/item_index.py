"""Items: the keys of scopes whose last part is `items:…`. They are found by the fields of their values, latest first.

The index is in the state of the scope, in channels that are no keys, so it changes in the same step as the items, and
whatever holds for the state holds for it. An item has one channel with its times, one with its vectors if it has any,
and an entry for each field: `\\0~by/.pages␁n402c000000000000␁`, a stamp, which is smaller the later the item was
changed, and its key.
"""

from __future__ import annotations

import heapq
import math
import struct
from array import array
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from hashlib import sha256
from typing import TYPE_CHECKING, Any, TypeAlias

from holdfast._named_tuple import NamedTuple
from holdfast.codec import Codec
from holdfast.engine.model.operations import Operation, Set
from holdfast.engine.model.packed_state import Packed, flatten, pack_name, unpack, unpack_name
from holdfast.engine.model.scopes import ITEMS, Scope
from holdfast.errors import ConfigError, InvalidError
from holdfast.security.handle import StoreHandle
from holdfast.state import keys as names
from holdfast.state.reader import ScopeView, StoredValue

if TYPE_CHECKING:
    from holdfast.engine.protection import Protection


_BY = "\0~by/"
_END, _AFTER = "\x01", "\x02"
"""What follows a part of an entry's name, and what sorts after all that start with that part."""

_EVERY = f"{_BY}{_END}{_END}"
"""The start of the entries that all items have."""

_UNKNOWN = f"{_BY}*{_END}{_END}"
"""The start of the entries of items with too many fields: each is a candidate for every filter."""

_MAX_FIELDS = 16
"""How many fields of an item are indexed."""

_MAX_DEPTH = 4

_MAX_TEXT = 128
"""How many characters a text that is indexed has at most: a name, an address or an id, and not what is remembered."""

_PAGE = 64
"""How many entries are read at a time."""

_MOST_SORTED = 20_000
"""An index is not used for a range of more entries: they are in the order of values, and all had to be sorted."""

_SORTING = 16
"""How much more an entry costs that has to be sorted, of which many are not needed."""

_NEVER = 1 << 62

_LATEST = (1 << 63) - 1


class ItemTimes(NamedTuple):
    """When an item was made and last changed, and how long it lives after that or after a read; 0 for ever."""

    created: int
    updated: int
    ttl: int = 0

    @classmethod
    def unpack(cls, codec: Codec, packed: Packed) -> ItemTimes:
        """Unpack the stored form."""
        return cls(*unpack(codec, packed))


class FoundItem(NamedTuple):
    """An item, its value as new objects, and when it expires; 0 for never."""

    key: str
    value: Any
    times: ItemTimes
    expires: int


def has_items(scope: Scope) -> bool:
    """Return whether the keys of a scope are items."""
    return bool(scope.parts) and scope.parts[-1].kind == ITEMS


# Changing ---------------------------------------------------------------------------------------------------------


class ItemChanges:
    """Adds what the index needs to the changes of a scope's keys. With policies for sensitive data, of an item that has
    some nothing is indexed."""

    def __init__(self, codec: Codec, protection: Protection | None) -> None:
        self._codec = codec
        self._protection = protection

    async def add(
        self,
        view: ScopeView,
        key: str,
        old: StoredValue | None,
        packed: Packed,
        ttl: int,
        vectors: Mapping[str, bytes] | None,
        put: list[tuple[bytes, Operation]],
        removed: list[bytes],
    ) -> None:
        """Add the changes for a new value of a key. An old one may have expired."""
        before = await self._times(view, key)
        is_live = before is not None and old is not None and not 0 < old.expires <= view.now
        now = view.now if before is None else max(view.now, before.updated + 1)
        times = ItemTimes(before.created if is_live and before is not None else now, now, ttl)
        gone = set() if old is None or before is None else await self._stored(view, old.entry.value, key, before)
        whole = flatten(packed)
        is_clear = self._protection is None or self._protection.redact(whole) == whole
        new = self._entries(whole if is_clear else None, key, times)
        put.append((names.pack_item(key), Set(self._codec.pack(list(times)))))
        put += ((name, Set(_NIL)) for name in sorted(new - gone))
        removed += sorted(gone - new)
        if vectors:
            put.append((names.pack_vectors(key), Set(self._codec.pack(dict(vectors)))))
        elif old is not None and await view.find_internal(names.pack_vectors(key)) is not None:
            removed.append(names.pack_vectors(key))

    async def removals(self, view: ScopeView, key: str, old: StoredValue | None) -> list[bytes]:
        """Return the channels to remove with a key."""
        before = await self._times(view, key)
        if old is None or before is None:
            return []
        beside = [names.pack_item(key), names.pack_vectors(key)]
        there = [name for name in beside if await view.find_internal(name) is not None]
        return there + sorted(await self._stored(view, old.entry.value, key, before))

    async def _times(self, view: ScopeView, key: str) -> ItemTimes | None:
        entry = await view.find_internal(names.pack_item(key))
        return None if entry is None else ItemTimes.unpack(self._codec, entry.value)

    async def _stored(self, view: ScopeView, packed: Packed, key: str, times: ItemTimes) -> set[bytes]:
        """Return the packed names of the entries that an item has."""
        nothing_known = self._entries(None, key, times)
        for name in nothing_known - {pack_name(_EVERY + _entry_end(key, times))}:
            if await view.find_internal(name) is not None:
                return nothing_known
        return self._entries(packed, key, times)

    def _entries(self, packed: Packed | None, key: str, times: ItemTimes) -> set[bytes]:
        """Return the packed names of an item's entries. None stands for a value of which nothing is indexed."""
        end = _entry_end(key, times)
        fields = None if packed is None else _fields(unpack(self._codec, packed))
        starts = [_UNKNOWN] if fields is None else (_start(*field) for field in fields)
        return {pack_name(_EVERY + end), *(pack_name(start + end) for start in starts)}


def _entry_end(key: str, times: ItemTimes) -> str:
    return f"{_LATEST - times.updated:016x}{_END}{key}"


_NIL = b"\xc0"
"""The packed form of None, the value of entries."""


def _fields(value: object) -> set[tuple[str, str]] | None:
    """Return the fields of a value and their texts; None if there are too many."""
    found: set[tuple[str, str]] = set()

    def add(name: str, inner: object, depth: int) -> None:
        if isinstance(inner, dict):
            for key, each in inner.items() if depth < _MAX_DEPTH else ():
                if isinstance(key, str):
                    add(_field(name, key), each, depth + 1)
        elif len(found) <= _MAX_FIELDS and (text := _text(name, inner)) is not None:
            found.add((name, text))

    if isinstance(value, dict):
        add("", value, 0)
    return found if len(found) <= _MAX_FIELDS else None


def _field(name: str, key: str) -> str:
    return f"{name}.{key.replace('~', '~0').replace('.', '~1').replace(_END, '~2')}"


def _start(field: str, text: str) -> str:
    return f"{_BY}{field}{_END}{text}{_END}"


def _text(field: str, value: object) -> str | None:
    """Return the text of a value in the index; None if it is not indexed. Values that are equal have the same.

    A digest stands for text: it stays in the index when sensitive data is replaced in what is stored.
    """
    if isinstance(value, bool | int | float):
        return _number(value)
    if not isinstance(value, str) or len(value) > _MAX_TEXT:
        return None
    return "s" + sha256(f"{field}{_END}{value}".encode(errors="surrogatepass")).hexdigest()[:24]


def _number(value: float) -> str | None:
    """Return a text that sorts as numbers do; None for what is no number."""
    try:
        rounded = float(value) + 0.0
    except OverflowError:
        rounded = math.inf if value > 0 else -math.inf
    if math.isnan(rounded):
        return None
    packed = struct.pack(">d", rounded)
    flips = b"\xff" * 8 if rounded < 0 else b"\x80".ljust(8, b"\0")
    return "n" + bytes(each ^ flip for each, flip in zip(packed, flips, strict=True)).hex()


# Finding ----------------------------------------------------------------------------------------------------------


async def read_item(view: ScopeView, codec: Codec, key: str) -> FoundItem | None:
    """Return an item; None if there is none, or it has expired."""
    found = await view.find_live(key)
    times = None if found is None else await view.find_internal(names.pack_item(key))
    if found is None or times is None:
        return None
    return FoundItem(key, unpack(codec, found.entry.value), ItemTimes.unpack(codec, times.value), found.expires)


async def find_items(
    view: ScopeView, codec: Codec, filters: Mapping[str, Any], limit: int | None = None
) -> list[FoundItem]:
    """Return the items that pass filters, the latest first."""
    found: list[FoundItem] = []
    if limit == 0:
        return found
    async for key in _candidates(view, filters):
        item = await read_item(view, codec, key)
        if item is not None and passes(item.value, filters):
            found.append(item)
            if len(found) == limit:
                break
    return found


class _Range(NamedTuple):
    """Entries that all items have which pass a condition."""

    start: str
    stop: str
    is_ordered: bool
    """Whether the latest item comes first."""


async def _candidates(view: ScopeView, filters: Mapping[str, Any]) -> AsyncIterator[str]:
    """Yield keys of which all items are that pass filters, the latest first."""
    best, least = None, _NEVER
    for each in _ranges("", filters):
        cost = await view.count_internal(each.start, each.stop)
        if not each.is_ordered:
            cost = cost * _SORTING if cost <= _MOST_SORTED else _NEVER
        if cost < least:
            best, least = each, cost
    if best is None:
        streams = [_entries_of(view, _EVERY)]
    elif best.is_ordered:
        streams = [_entries_of(view, best.start), _entries_of(view, _UNKNOWN)]
    else:
        stored = await view.internal_names(best.start, best.stop, None)
        streams = [_each(sorted(map(_parse, stored))), _entries_of(view, _UNKNOWN)]
    heads = [(head, number) for number, each in enumerate(streams) if (head := await anext(each, None)) is not None]
    heapq.heapify(heads)
    while heads:
        head, number = heads[0]
        yield head[1]
        after = await anext(streams[number], None)
        if after is None:
            heapq.heappop(heads)
        else:
            heapq.heapreplace(heads, (after, number))


async def _entries_of(view: ScopeView, start: str) -> AsyncIterator[tuple[str, str]]:
    """Yield the stamps and keys of the entries that start with a text."""
    stop = start[: -len(_END)] + _AFTER
    while True:
        found = await view.internal_names(start, stop, _PAGE)
        for name in found:
            yield _parse(name)
        if len(found) < _PAGE:
            break
        start = found[-1] + "\0"


async def _each(found: Sequence[tuple[str, str]]) -> AsyncIterator[tuple[str, str]]:
    for each in found:
        yield each


def _parse(name: str) -> tuple[str, str]:
    """Return the stamp and the key of an entry."""
    _, stamp, key = name.rsplit(_END, 2)
    return stamp, key


def _ranges(name: str, filters: Mapping[str, Any]) -> Iterable[_Range]:
    """Return the ranges of the index that have all items which pass filters."""
    for key, wanted in filters.items():
        if "." in key:
            continue  # it may be a path
        field = _field(name, key)
        if not isinstance(wanted, Mapping):
            yield from _equal(field, wanted)
        elif not _is_operator(wanted):
            yield from _ranges(field, wanted) if field.count(".") < _MAX_DEPTH else ()
        else:
            if "$eq" in wanted:
                yield from _equal(field, wanted["$eq"])
            low = [each for name in ("$gt", "$gte") if (each := _bound(wanted.get(name))) is not None]
            high = [each for name in ("$lt", "$lte") if (each := _bound(wanted.get(name))) is not None]
            if low or high:
                first, last = max(low, default="n"), min(high, default="o")
                yield _Range(f"{_BY}{field}{_END}{first}", f"{_BY}{field}{_END}{last}{_AFTER}", is_ordered=False)


def _bound(value: object) -> str | None:
    return _number(value) if isinstance(value, bool | int | float) else None


def _equal(field: str, value: object) -> Iterable[_Range]:
    text = _text(field, value)
    if text is not None and field.count(".") <= _MAX_DEPTH:
        start = _start(field, text)
        yield _Range(start, start[: -len(_END)] + _AFTER, is_ordered=True)


# Comparing --------------------------------------------------------------------------------------------------------


def _is_operator(wanted: Mapping[Any, Any]) -> bool:
    return any(isinstance(key, str) and key.startswith("$") for key in wanted)


def passes(value: Any, filters: Mapping[str, Any]) -> bool:
    """Return whether the value of an item passes all filters. A field that it does not have is None; one with dots may
    be a path."""
    fields: Mapping[str, Any] = value if isinstance(value, Mapping) else {}
    return all(_matches(_look_up(fields, key), wanted) for key, wanted in filters.items())


def _look_up(fields: Mapping[str, Any], key: str) -> Any:
    if key in fields or "." not in key:
        return fields.get(key)
    first, _, rest = key.partition(".")
    inner = fields.get(first)
    return _look_up(inner, rest) if isinstance(inner, Mapping) else None


def _matches(value: Any, wanted: Any) -> bool:
    if isinstance(wanted, Mapping):
        if _is_operator(wanted):
            return all(_compare(value, name, each) for name, each in wanted.items())
        return isinstance(value, Mapping) and passes(value, wanted)
    if isinstance(wanted, list | tuple):
        return (
            isinstance(value, list | tuple)
            and len(value) == len(wanted)
            and all(_matches(each, other) for each, other in zip(value, wanted, strict=True))
        )
    return bool(value == wanted)


def _compare(value: Any, name: str, wanted: Any) -> bool:
    if name == "$eq":
        return _matches(value, wanted) if isinstance(wanted, list | tuple) else bool(value == wanted)
    if name == "$ne":
        return bool(value != wanted)
    if name not in ("$gt", "$gte", "$lt", "$lte"):
        raise InvalidError(
            f"there is no operator {name!r}"[:80],
            where="filter",
            hint="The operators are $eq, $ne, $gt, $gte, $lt, $lte",
        )
    comparable = (isinstance(value, str) and isinstance(wanted, str)) or (
        isinstance(value, int | float) and isinstance(wanted, int | float)
    )
    if not comparable:
        return False
    if name.startswith("$g"):
        return bool(value > wanted or (name == "$gte" and value == wanted))
    return bool(value < wanted or (name == "$lte" and value == wanted))


Vector: TypeAlias = Sequence[float]

_MAX_SCOPES = 64
"""How many scopes' vectors are kept in memory."""

_FIRST, _LAST = unpack_name(names.pack_vectors()), unpack_name(names.pack_vectors())[:-1] + "0"
"""The bounds of the names of channels with vectors."""


def pack_vector(vector: Vector) -> bytes:
    """Return a vector as it is stored: numbers of four bytes."""
    return array("f", vector).tobytes()


class _ScopeVectors:
    """The vectors of a scope at one of its steps, and the items that they are of."""

    def __init__(self, point: object) -> None:
        self.point = point
        self.keys: list[str] = []
        self.rows: list[bytes] = []
        self.matrix: Any = None
        """The rows for numpy, when they were first compared."""


class VectorIndex:
    """The vectors of scopes, cached as of the latest step that was read."""

    def __init__(self, handle: StoreHandle, distance: str) -> None:
        if distance not in _PLAIN:
            raise ConfigError(
                f"there is no distance {distance!r}", where="index", hint=f"The distances are {', '.join(_PLAIN)}"
            )
        self._handle = handle
        self._distance = distance
        self._cached: dict[Scope, _ScopeVectors] = {}

    async def scores(self, view: ScopeView, scope: Scope, query: Vector) -> dict[str, float]:
        """Return how similar the items of a scope are to a query; of several vectors of an item, the best counts."""
        found = self._cached.get(scope)
        if found is None or found.point != view.point:
            found = await self._read(view)
            if len(self._cached) >= _MAX_SCOPES:
                self._cached.clear()
            self._cached[scope] = found
        scores: dict[str, float] = {}
        for key, score in zip(found.keys, self._compare(found, query), strict=True):
            if score > scores.get(key, float("-inf")):
                scores[key] = score
        return scores

    async def _read(self, view: ScopeView) -> _ScopeVectors:
        found = _ScopeVectors(view.point)
        for name in await view.internal_names(_FIRST, _LAST, None):
            key = name[len(_FIRST) :]
            entry = await view.find_internal(names.pack_vectors(key))
            for row in () if entry is None else unpack(self._handle.codec, entry.value).values():
                found.keys.append(key)
                found.rows.append(row)
        return found

    def _compare(self, found: _ScopeVectors, query: Vector) -> Sequence[float]:
        if not found.rows:
            return []
        length = 4 * len(query)
        if any(len(row) != length for row in found.rows):
            raise ConfigError(
                f"the query has {len(query)} dimensions, and stored vectors have others",
                hint="Use the embedder that the items were stored with, or store them again",
                code="dimensions",
            )
        try:
            import numpy as np
        except ImportError:
            compare = _PLAIN[self._distance]
            return [compare(array("f", row), query) for row in found.rows]
        if found.matrix is None:
            found.matrix = np.frombuffer(b"".join(found.rows), dtype="float32").reshape(len(found.rows), -1)
        wanted = np.asarray(query, dtype="float32")
        if self._distance == "l2":
            return [-float(each) for each in np.linalg.norm(found.matrix - wanted, axis=1)]
        scores = found.matrix @ wanted
        if self._distance == "cosine":
            sizes = np.linalg.norm(found.matrix, axis=1) * np.linalg.norm(wanted)
            scores = np.divide(scores, sizes, out=np.zeros_like(scores), where=sizes != 0)
        return [float(each) for each in scores]


def _dot(a: Vector, b: Vector) -> float:
    return sum(x * y for x, y in zip(a, b, strict=True))


def _cosine(a: Vector, b: Vector) -> float:
    size = (_dot(a, a) * _dot(b, b)) ** 0.5
    return _dot(a, b) / size if size else 0.0


def _l2(a: Vector, b: Vector) -> float:
    return -math.dist(a, b)


_PLAIN: dict[str, Callable[[Vector, Vector], float]] = {"cosine": _cosine, "inner_product": _dot, "l2": _l2}
"""What compares vectors without np."""
