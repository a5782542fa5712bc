"""Reads bodies, and caches objects: small objects whole, larger ones in as few ranges as possible."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from holdfast.backends.object_store.formats import BodyLocation, BodyObject, checksum, damaged_error
from holdfast.backends.object_store.object_storage import ObjectStorage, gather_limited
from holdfast.backends.object_store.shard_view import BodyLookup, ObjectMissing

_GAP = 32 << 10
"""Ranges of an object that are this close are read as one."""
_MAX_WHOLE = 512 << 10
"""Objects up to this size are read whole, and cached."""


class BodyReader:
    """Reads bodies from the objects of a store. `max_bytes` is the size of the cache in bytes."""

    def __init__(self, storage: ObjectStorage, max_bytes: int) -> None:
        self.storage = storage
        self._max_bytes = max_bytes
        self._objects: OrderedDict[tuple[str, str], bytes] = OrderedDict()
        """By name and token: the first object of each generation has the same name."""
        self._object_bytes = 0

    def cached(self, name: str, token: str) -> bytes | None:
        """Return an object from the cache, if it is there."""
        return self._objects.get((name, token))

    def cache(self, name: str, token: str, data: bytes) -> None:
        """Cache an object."""
        if len(data) > self._max_bytes // 8:
            return
        old = self._objects.pop((name, token), b"")
        self._objects[name, token] = data
        self._object_bytes += len(data) - len(old)
        while self._object_bytes > self._max_bytes:
            self._object_bytes -= len(self._objects.popitem(last=False)[1])

    async def fetch(self, lookups: Sequence[BodyLookup]) -> list[bytes]:
        """Read bodies. Raises `ViewOutdated` if an object does not exist any more."""
        by_name: dict[str, list[BodyLookup]] = {}
        for one in lookups:
            if one.location.length:
                by_name.setdefault(one.name, []).append(one)
        ranges: list[_Range] = []
        found: dict[tuple[str, BodyLocation], bytes] = {}
        for name, same_object in by_name.items():
            body_object, locations = same_object[0].body_object, [one.location for one in same_object]
            data = self._objects.get((name, body_object.token))
            if data is not None:
                self._objects.move_to_end((name, body_object.token))
                found.update(
                    ((name, location), _slice_body(data, body_object.base + location.offset, location, name))
                    for location in locations
                )
            elif body_object.base + body_object.size <= _MAX_WHOLE:
                ranges.append(_Range(name, body_object, 0, body_object.base + body_object.size, locations))
            else:
                ranges += _merge_ranges(name, body_object, sorted(set(locations), key=lambda location: location.offset))
        read = await gather_limited([self.storage.get(one.name, one.start, one.stop - one.start) for one in ranges])
        for range_, data in zip(ranges, read, strict=True):
            if data is None:
                raise ObjectMissing(range_.name)
            if range_.start == 0:
                self.cache(range_.name, range_.body_object.token, data)
            base = range_.body_object.base - range_.start
            for location in range_.locations:
                found[range_.name, location] = _slice_body(data, base + location.offset, location, range_.name)
        return [found[one.name, one.location] if one.location.length else b"" for one in lookups]


@dataclass
class _Range:
    """A range of an object that is read in one request."""

    name: str
    body_object: BodyObject
    start: int
    stop: int
    locations: list[BodyLocation]


def _slice_body(data: bytes, start: int, location: BodyLocation, name: str) -> bytes:
    body = data[start : start + location.length]
    if len(body) != location.length or checksum(body) != location.check:
        raise damaged_error(name)
    return body


def _merge_ranges(name: str, body_object: BodyObject, locations: list[BodyLocation]) -> list[_Range]:
    """Merge sorted locations into ranges of the object."""
    ranges: list[_Range] = []
    for location in locations:
        start = body_object.base + location.offset
        if ranges and start - ranges[-1].stop <= _GAP:
            ranges[-1].stop = start + location.length
            ranges[-1].locations.append(location)
        else:
            ranges.append(_Range(name, body_object, start, start + location.length, [location]))
    return ranges
