"""Built-in hooks for validation, audit, caches and metrics. They are quick, and run where the change is made."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, MutableMapping
from typing import TYPE_CHECKING, Any

from holdfast.backends.runtime.metrics import Metrics
from holdfast.engine.model.missing import MISSING
from holdfast.errors import InvalidError, VetoError
from holdfast.hooks.context import AFTER, BEFORE, FixedFields, HookContext
from holdfast.hooks.hook import check_signature, name_of

if TYPE_CHECKING:
    from holdfast.schemas.schema import Schema


class Validate:
    """Refuses values that do not match a schema, or are too large.

    `schema` is a `holdfast.schemas.Schema`, or what one is made of: a JSON Schema, a pydantic model, a dataclass, a
    TypedDict, or another type such as `list[int]`. `max_bytes` limits the size of a value as stored. Deletions are not
    checked. If the check itself fails, the change is refused.
    """

    phase = BEFORE
    inline = True
    wants_value = True
    wants_old = False
    fail_closed = True
    pure = True
    validates = True

    def __init__(self, schema: Any = MISSING, *, max_bytes: int | None = None) -> None:
        if schema is MISSING and max_bytes is None:
            raise InvalidError("a validation has a schema, or a number of bytes, to check against")
        if max_bytes is not None and (type(max_bytes) is not int or max_bytes < 0):
            raise InvalidError(f"max_bytes must be a number of bytes, not {max_bytes!r}")
        self._schema: Schema | None = None
        if schema is not MISSING:
            from holdfast.schemas.schema import as_schema

            self._schema = as_schema(schema)
        self._max_bytes = max_bytes

    def __call__(self, call: HookContext) -> None:
        """Raise `VetoError` if the value is not valid."""
        if self._max_bytes is not None and (size := call.value_size or 0) > self._max_bytes:
            raise VetoError(f"the value takes {size} bytes, and at most {self._max_bytes} are allowed")
        if self._schema is not None and (value := call.value) is not MISSING:
            problems = self._schema.check(value)
            if problems:
                first = problems[0]
                where = f"at {first.path}, " if first.path else ""
                raise VetoError(f"the value does not fit its schema: {where}{first.reason}")


class AddAuditFields:
    """Adds fields to the audit row of every change: fixed ones, or what a function returns for a `HookContext`."""

    phase = BEFORE
    inline = True
    wants_value = False

    def __init__(self, fields: Mapping[str, Any] | Callable[[HookContext], Mapping[str, Any]]) -> None:
        if callable(fields):
            check_signature(fields, name_of(fields), "call: HookContext")
        self._make = fields if callable(fields) else None
        self.pure: bool = self._make is None
        self.wants_old: bool = not self.pure
        self._fields = FixedFields() if callable(fields) else FixedFields(fields)

    def __call__(self, call: HookContext) -> None:
        """Note the fields."""
        call.notes = self._fields if self._make is None else self._make(call)


class InvalidateCache:
    """Removes what was changed from a cache: a mapping with keys `(scope, key)`, or a function of both.

    It does so before the writer proceeds. Other processes watch the scope instead.
    """

    phase = AFTER
    inline = True
    wants_value = False
    wants_old = False

    def __init__(self, cache: MutableMapping[tuple[str, str], Any] | Callable[[str, str], object]) -> None:
        if callable(cache):
            check_signature(cache, name_of(cache), "scope: str", "key: str")
        self._drop = cache if callable(cache) else None
        self.pure: bool = self._drop is None
        self._cache = {} if callable(cache) else cache

    def __call__(self, call: HookContext) -> None:
        """Remove the entry."""
        if self._drop is None:
            self._cache.pop((call.scope, call.key), None)
        else:
            self._drop(call.scope, call.key)


class CountChanges:
    """Counts changes and their durations, by point."""

    phase = AFTER
    inline = True
    wants_value = False
    wants_old = False
    pure = True

    def __init__(self) -> None:
        self._metrics = Metrics()

    def __call__(self, call: HookContext) -> None:
        """Count a change."""
        self._metrics.add_duration(call.point, (time.perf_counter_ns() - call.started) / 1e9)

    def snapshot(self) -> dict[str, dict[str, Any]]:
        """Return by point: `count`, total `seconds`, `worst`, and `buckets`, the number that took at most so many
        seconds."""
        _, timings = self._metrics.read()
        return {
            point: {"count": each.count, "seconds": each.total, "worst": each.worst, "buckets": each.buckets()}
            for point, each in timings.items()
        }
