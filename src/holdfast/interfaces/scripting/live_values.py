"""Properties and fields of the objects that scripts have: read, and changed where Python can change them."""

from __future__ import annotations

from difflib import get_close_matches
from typing import Any

from holdfast.codec import default_codec
from holdfast.errors import InvalidError, UnsupportedError
from holdfast.history import MISSING
from holdfast.interfaces.scripting.functions import ABSENT, ScriptType, excluded_names
from holdfast.interfaces.scripting.values import RECORDS, field_names


def read_value(known: ScriptType, found: Any, name: str) -> Any:
    """Return a property of an object, or a field of an agent."""
    if name in known.properties:
        return getattr(found, name)
    if known.name in RECORDS and name in field_names(type(found)):
        return MISSING  # a field with a value came with the record
    fields = _read_fields(known, found)
    if name not in fields:
        raise unknown_name_error(known, name, fields)
    return fields[name]


def write_value(known: ScriptType, found: Any, name: str, values: list[Any]) -> None:
    """Set a field of an agent to a value; or make the changes that a script made to its copy of a field or a live
    property: `values` are the copy before and after them."""
    if not known.live:
        raise InvalidError(f"{name[:40]!r} of {known.name} cannot be set", hint="Call its functions")
    if len(values) not in (1, 2) or ABSENT in values:
        raise InvalidError(f"{name[:40]!r} of {known.name} is set to a value", hint="Use null for None")
    persister = found.persister
    with persister.lock:
        if name in known.live and len(values) == 2:
            _merge(getattr(found, name), *values)
        else:
            fields = _read_fields(known, found)
            if name in (*known.properties, *known.functions, *known.members):
                raise InvalidError(
                    f"{name!r} of {known.name} cannot be set",
                    hint=f"Change its entries: {name}.entry = …" if name in known.live else "Call its functions",
                )
            if name not in fields and name not in persister.spec.fields:
                raise unknown_name_error(known, name, fields)
            fields[name] = values[0] if len(values) == 1 else _merge(fields.get(name), *values)
            persister.spec.set_field(persister.agent, name, fields)
    persister.mark_changed()


def unknown_name_error(known: ScriptType, name: str, fields: dict[str, Any] | None = None) -> UnsupportedError:
    """Return the error for a name that an object does not have in scripts: it says why, or which name is nearest."""
    names = [*known.functions, *known.members, *known.properties, *(fields or ())]
    near = get_close_matches(name[:80], names, 1)
    reason = excluded_names(known.name).get(name) or (f"The nearest is {near[0]!r}" if near else "")
    return UnsupportedError(f"{known.name} has no {name[:40]!r} in scripts", hint=reason)


def _read_fields(known: ScriptType, found: Any) -> dict[str, Any]:
    """Return the fields of an agent; of other objects, none."""
    if not known.live:
        return {}
    fields: dict[str, Any] = found.persister.spec.persist(found.persister.agent)
    return fields


def _merge(live: Any, before: Any, after: Any) -> Any:
    """Make the changes between two copies to the live value, as far as it can be changed, and return the result. What
    did not change stays as it is: objects that scripts cannot make, and what the host changed meanwhile."""
    if _is_same(before, after):
        return live
    if type(before) is dict and type(after) is dict and isinstance(live, dict):
        for key in before.keys() - after.keys():
            live.pop(key, None)
        for key, value in after.items():
            if key not in before or not _is_same(before[key], value):
                live[key] = _merge(live.get(key), before.get(key), value)
        return live
    if type(before) is list and type(after) is list and isinstance(live, list) and len(live) == len(before):
        common = min(len(before), len(after))
        live[:common] = [_merge(*each) for each in zip(live[:common], before, after, strict=False)]
        live[common:] = after[common:]
        return live
    return after


def _is_same(one: Any, other: Any) -> bool:
    return default_codec.pack(one) == default_codec.pack(other)
