"""Reading bodies: small objects whole, of larger ones as few pieces as will do; and what was read or written last."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from holdfast.backends.object_store.formats import BodyLocation, BodyObject, check_of, damaged
from holdfast.backends.object_store.object_storage import ObjectStorage, together
from holdfast.backends.object_store.shard_view import BodyLookup
from holdfast.backends.object_store.staleness import ObjectMissing

_GAP = 32 << 10
"""Pieces of an object that lie this close are read as one."""
_WHOLE = 512 << 10
"""Objects up to this size are read whole, and remembered."""


class BodyReader:
    """The objects of a store, for what is in them. `room` is how many bytes to remember."""

    def __init__(self, blobs: ObjectStorage, room: int) -> None:
        self.blobs = blobs
        self._room = room
        self._objects: OrderedDict[tuple[str, str], bytes] = OrderedDict()
        """By name and token: the name of a birth comes again in another life."""
        self._object_bytes = 0

    def known(self, name: str, token: str) -> bytes | None:
        """What an object holds, if that is remembered."""
        return self._objects.get((name, token))

    def remember(self, name: str, token: str, data: bytes) -> None:
        """Keep what an object holds."""
        if len(data) > self._room // 8:
            return
        old = self._objects.pop((name, token), b"")
        self._objects[name, token] = data
        self._object_bytes += len(data) - len(old)
        while self._object_bytes > self._room:
            self._object_bytes -= len(self._objects.popitem(last=False)[1])

    async def fetch(self, wanted: Sequence[BodyLookup]) -> list[bytes]:
        """Bodies. Raises `ViewOutdated` where an object is not there any more."""
        by_name: dict[str, list[BodyLookup]] = {}
        for one in wanted:
            if one.place.length:
                by_name.setdefault(one.name, []).append(one)
        pieces: list[_Piece] = []
        found: dict[tuple[str, BodyLocation], bytes] = {}
        for name, of_one in by_name.items():
            holder, places = of_one[0].holder, [one.place for one in of_one]
            data = self._objects.get((name, holder.token))
            if data is not None:
                self._objects.move_to_end((name, holder.token))
                found.update(((name, place), _cut(data, holder.base + place.offset, place, name)) for place in places)
            elif holder.base + holder.size <= _WHOLE:
                pieces.append(_Piece(name, holder, 0, holder.base + holder.size, places))
            else:
                pieces += _merged(name, holder, sorted(set(places), key=lambda place: place.offset))
        read = await together([self.blobs.get(one.name, one.start, one.stop - one.start) for one in pieces])
        for piece, data in zip(pieces, read, strict=True):
            if data is None:
                raise ObjectMissing(piece.name)
            if piece.start == 0:
                self.remember(piece.name, piece.holder.token, data)
            base = piece.holder.base - piece.start
            for place in piece.places:
                found[piece.name, place] = _cut(data, base + place.offset, place, piece.name)
        return [found[one.name, one.place] if one.place.length else b"" for one in wanted]


@dataclass
class _Piece:
    """A piece of an object that is read at once."""

    name: str
    holder: BodyObject
    start: int
    stop: int
    places: list[BodyLocation]


def _cut(data: bytes, start: int, place: BodyLocation, name: str) -> bytes:
    body = data[start : start + place.length]
    if len(body) != place.length or check_of(body) != place.check:
        raise damaged(name)
    return body


def _merged(name: str, holder: BodyObject, places: list[BodyLocation]) -> list[_Piece]:
    """The pieces of an object to be read, for places that come in its order."""
    pieces: list[_Piece] = []
    for place in places:
        start = holder.base + place.offset
        if pieces and start - pieces[-1].stop <= _GAP:
            pieces[-1].stop = start + place.length
            pieces[-1].places.append(place)
        else:
            pieces.append(_Piece(name, holder, start, start + place.length, [place]))
    return pieces
