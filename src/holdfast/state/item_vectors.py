"""Vectors of items: kept with them, and compared exactly, with numpy if it is installed."""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from holdfast.engine.model.packed_state import unpack, unpack_name
from holdfast.engine.model.scopes import Scope
from holdfast.errors import ConfigError
from holdfast.security.handle import StoreHandle
from holdfast.state import keys as names
from holdfast.state.reader import ScopeView

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
