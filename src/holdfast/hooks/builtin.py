"""Built-in hooks for validation, audit, caches and metrics. They are quick, and run where the change is made."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, MutableMapping
from typing import Any

import msgspec

from holdfast.backends.runtime.metrics import Metrics
from holdfast.engine.model.missing import MISSING
from holdfast.errors import ConfigError, InvalidError, VetoError
from holdfast.hooks.context import AFTER, BEFORE, FixedFields, HookContext
from holdfast.hooks.hook import check_signature, name_of

Check = Callable[[Any], str | None]
"""Returns what is wrong with a value, without quoting it; None if nothing is."""


class Validate:
    """Refuses values that do not match a schema, or are too large.

    `schema` is a JSON Schema (a dict, or True or False), a pydantic model, or a type such as `list[int]`, a TypedDict
    or a dataclass. `max_bytes` limits the size of a value as stored. Deletions are not checked. If the check itself
    fails, the change is refused.
    """

    phase = BEFORE
    inline = True
    wants_value = True
    wants_old = False
    fail_closed = True
    pure = True

    def __init__(self, schema: Any = MISSING, *, max_bytes: int | None = None) -> None:
        if schema is MISSING and max_bytes is None:
            raise InvalidError("a validation has a schema, or a number of bytes, to check against")
        if max_bytes is not None and (type(max_bytes) is not int or max_bytes < 0):
            raise InvalidError(f"max_bytes is a number of bytes, not {max_bytes!r}")
        self._check = None if schema is MISSING else _build_check(schema)
        self._max_bytes = max_bytes

    def __call__(self, call: HookContext) -> None:
        """Raise `VetoError` if the value is not valid."""
        if self._max_bytes is not None and (size := call.value_size or 0) > self._max_bytes:
            raise VetoError(f"the value takes {size} bytes, and at most {self._max_bytes} are allowed")
        if self._check is not None and (value := call.value) is not MISSING:
            wrong = self._check(value)
            if wrong is not None:
                raise VetoError(f"the value does not fit its schema: {wrong}")


def _build_check(schema: Any) -> Check:
    if isinstance(schema, dict | bool):
        return _json_schema_check(schema)
    if hasattr(schema, "model_validate") and hasattr(schema, "__pydantic_validator__"):
        return _model_check(schema)
    return _type_check(schema)


def _json_schema_check(schema: dict[str, Any] | bool) -> Check:
    try:
        import jsonschema_rs
    except ImportError as missing:
        raise ConfigError(
            "validation by JSON Schema needs jsonschema-rs, which is not installed",
            hint="pip install 'holdfast[schemas]'",
            code="not-installed",
        ) from missing
    try:
        validator = jsonschema_rs.validator_for(schema)
    except ValueError as error:
        raise InvalidError("this is no JSON Schema", where=str(error).splitlines()[0][:200]) from error

    def check(value: Any) -> str | None:
        try:
            if validator.is_valid(value):
                return None
        except ValueError:
            return "it holds what JSON does not know"
        error = next(validator.iter_errors(value))
        return _at_path(error.instance_path, f"it breaks the rule {'/'.join(map(str, error.schema_path))}")

    return check


def _model_check(model: Any) -> Check:
    from pydantic import ValidationError

    def check(value: Any) -> str | None:
        if isinstance(value, model):
            return None
        try:
            model.model_validate(value)
        except ValidationError as error:
            first = error.errors(include_input=False, include_url=False, include_context=False)[0]
            return _at_path(first["loc"], f"it is refused as {first['type']}")
        return None

    return check


def _type_check(kind: Any) -> Check:
    convert = msgspec.convert
    plain = kind if isinstance(kind, type) else None
    try:
        convert(None, kind)
    except msgspec.ValidationError:
        pass  # so it is a type that can be checked
    except (TypeError, NameError) as error:
        raise InvalidError(
            f"there is no check against {kind!r}", hint="Give a JSON Schema, a pydantic model, or a type"
        ) from error

    def check(value: Any) -> str | None:
        if plain is not None and type(value) is plain:
            return None
        try:
            convert(value, kind)
        except msgspec.ValidationError as error:
            return str(error)
        return None

    return check


def _at_path(path: Any, what: str) -> str:
    where = "".join(f"[{part!r}]" for part in path)
    return f"at {where}, {what}" if where else what


class AddAuditFields:
    """Adds fields to the audit row of every change: fixed ones, or what a function returns for a `HookContext`."""

    phase = BEFORE
    inline = True
    wants_value = False

    def __init__(self, fields: Mapping[str, Any] | Callable[[HookContext], Mapping[str, Any]]) -> None:
        if callable(fields):
            check_signature(fields, name_of(fields), "call: HookContext")
        self._make = fields if callable(fields) else None
        self.pure = self._make is None
        self.wants_old = not self.pure
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
        self.pure = self._drop is None
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
            point: {"count": each.count, "seconds": each.seconds, "worst": each.worst, "buckets": each.buckets()}
            for point, each in timings.items()
        }
