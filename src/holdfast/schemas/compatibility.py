"""Compatibility of two schemas, field by field, each change with its reason."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from enum import StrEnum
from typing import Annotated, Any

import msgspec

from holdfast._fields import Hidden, Internal, Label, computed
from holdfast.schemas.definition import CONSTRAINTS, Node, encode, type_text, unfold

Lookup = Callable[[str], Node]


class CompatibilityLevel(StrEnum):
    """How two versions get along, seen from the newer one."""

    FULL = "full"
    """Either reads what the other wrote."""
    BACKWARD = "backward"
    """The newer reads what the older wrote."""
    FORWARD = "forward"
    """The older reads what the newer wrote."""
    BREAKING = "breaking"
    """Neither reads what the other wrote: it takes a migration."""


class SchemaChange(msgspec.Struct, frozen=True):
    """A difference between two schemas."""

    path: str
    kind: Annotated[str, Label("change")]
    """`added`, `removed`, `type`, `required`, `optional`, `constraint`, `open` or `closed`."""
    backward: Hidden[bool]
    """Whether the newer schema takes values of the older one."""
    forward: Hidden[bool]
    """Whether the older schema takes values of the newer one."""
    reason: str
    old: Internal[Node | None] = None
    new: Internal[Node | None] = None

    @property
    @computed
    def level(self) -> CompatibilityLevel:
        """The compatibility of this change alone."""
        return _level(self.backward, self.forward)


class Compatibility(msgspec.Struct, frozen=True):
    """The result of a comparison."""

    level: CompatibilityLevel
    changes: tuple[SchemaChange, ...]

    @property
    def backward(self) -> bool:
        """Whether the newer version reads what the older one wrote."""
        return self.level in (CompatibilityLevel.FULL, CompatibilityLevel.BACKWARD)

    @property
    def forward(self) -> bool:
        """Whether the older version reads what the newer one wrote."""
        return self.level in (CompatibilityLevel.FULL, CompatibilityLevel.FORWARD)


def compare(old: Node, new: Node, lookup: Lookup | None = None) -> Compatibility:
    """Compare two canonical forms."""
    changes = tuple(_Comparison(lookup).changes(old, new, ""))
    backward, forward = all(each.backward for each in changes), all(each.forward for each in changes)
    return Compatibility(_level(backward, forward), changes)


def _level(backward: bool, forward: bool) -> CompatibilityLevel:
    if backward:
        return CompatibilityLevel.FULL if forward else CompatibilityLevel.BACKWARD
    return CompatibilityLevel.FORWARD if forward else CompatibilityLevel.BREAKING


class _Comparison:
    """Compares nodes. A pair that is met again inside itself is assumed to fit: the types are recursive."""

    def __init__(self, lookup: Lookup | None) -> None:
        self._lookup = lookup
        self._compared: set[tuple[str, str]] = set()
        self._assumed: set[tuple[str, str]] = set()

    def _open(self, node: Node) -> Node:
        node = unfold(node)
        while node["type"] == "schema" and self._lookup is not None:
            node = unfold(self._lookup(node["ref"]))
        return node

    def changes(self, old: Node, new: Node, path: str) -> Iterator[SchemaChange]:
        """Iterate over the changes between two nodes."""
        pair = encode(old), encode(new)
        if pair[0] == pair[1] or pair in self._compared:
            return
        self._compared.add(pair)
        old, new = self._open(old), self._open(new)
        kind = old["type"]
        if kind == new["type"] and kind in ("record", "list", "set", "frozenset", "map", "tuple"):
            if kind == "tuple" and not _same_length(old, new):
                yield self._changed_type(old, new, path)
                return
            yield from self._limits(old, new, path)
            if kind == "record":
                yield from self._fields(old, new, path)
            else:
                for part, one, other in _inside(old, new):
                    yield from self.changes(one, other, path + part)
            return
        single = _one_record_each(old, new)
        if single is not None:
            yield from self.changes(*single, path)
            return
        if kind == new["type"] and kind not in ("union", "literal", "enum", "instance", "schema"):
            yield from self._limits(old, new, path)
            return
        yield self._changed_type(old, new, path)

    def _fields(self, old: Node, new: Node, path: str) -> Iterator[SchemaChange]:
        before, after = old["fields"], new["fields"]
        for name in sorted({*before, *after}):
            where = f"{path}.{name}" if path else name
            if name not in before:
                yield _added(where, after[name], is_open=old["open"])
            elif name not in after:
                yield _removed(where, before[name], is_open=new["open"])
            else:
                was, now = before[name]["required"], after[name]["required"]
                if was and not now:
                    why = "it may be missing now, and the older version requires it"
                    yield SchemaChange(where, "optional", True, False, why, before[name]["type"], after[name]["type"])
                elif now and not was:
                    why = "it is required now, and states without it may exist"
                    yield SchemaChange(where, "required", False, True, why, before[name]["type"], after[name]["type"])
                yield from self.changes(before[name]["type"], after[name]["type"], where)
        if old["open"] != new["open"]:
            kind, why = (
                ("open", "further fields are allowed") if new["open"] else ("closed", "further fields are refused")
            )
            yield SchemaChange(path, kind, new["open"], old["open"], f"{why} now")

    def _limits(self, old: Node, new: Node, path: str) -> Iterator[SchemaChange]:
        for key in CONSTRAINTS:
            if old.get(key) != new.get(key):
                backward, forward = _implies(key, old.get(key), new.get(key)), _implies(key, new.get(key), old.get(key))
                texts = [str(each[key]) if key in each else "none" for each in (old, new)]
                yield SchemaChange(path, "constraint", backward, forward, f"{key} was {texts[0]}, and is {texts[1]}")

    def _changed_type(self, old: Node, new: Node, path: str) -> SchemaChange:
        backward, forward = self.fits(old, new), self.fits(new, old)
        why = f"{type_text(old)} became {type_text(new)}"
        if backward and not forward:
            why += ": wider, so the older version may meet what it does not know"
        elif forward and not backward:
            why += ": narrower, so stored values may not fit"
        return SchemaChange(path, "type", backward, forward, why, old, new)

    def fits(self, source: Node, target: Node) -> bool:
        """Return whether every value of one node is one of the other."""
        pair = encode(source), encode(target)
        if pair[0] == pair[1] or pair in self._assumed:
            return True
        self._assumed.add(pair)
        fits = self._fits(self._open(source), self._open(target))
        if not fits:
            self._assumed.discard(pair)
        return fits

    def _fits(self, source: Node, target: Node) -> bool:
        if target["type"] == "any":
            return True
        if source["type"] == "union":
            return all(self.fits(each, target) for each in source["of"])
        if target["type"] == "union":
            return any(self.fits(source, each) for each in target["of"])
        if source["type"] == "literal":
            return all(_accepts(target, value) for value in source["values"])
        if source["type"] != target["type"]:
            number = source["type"] == "int" and target["type"] == "float"
            return number and _limits_fit(source, target)
        return _limits_fit(source, target) and self._same_type_fits(source, target)

    def _same_type_fits(self, source: Node, target: Node) -> bool:
        match source["type"]:
            case "enum":
                return set(map(encode, source["values"])) <= set(map(encode, target["values"]))
            case "record":
                return all(change.backward for change in self._fields(source, target, ""))
            case "tuple":
                if not _same_length(source, target):
                    return (
                        isinstance(source["items"], list)
                        and not isinstance(target["items"], list)
                        and all(self.fits(each, target["items"]) for each in source["items"])
                    )
                return all(self.fits(one, other) for _, one, other in _inside(source, target))
            case "list" | "set" | "frozenset" | "map":
                return all(self.fits(one, other) for _, one, other in _inside(source, target))
            case "instance":
                return bool(source["class"] == target["class"])
            case "schema":
                return bool(source["ref"] == target["ref"])
            case _:
                return True


def _added(path: str, field: Node, *, is_open: bool) -> SchemaChange:
    required = field["required"]
    reasons = [
        "a new field that is required: older states do not have it" if required else "a new field that may be missing"
    ]
    if not is_open:
        reasons.append("the older version refuses fields that it does not know")
    return SchemaChange(path, "added", not required, is_open, "; ".join(reasons), None, field["type"])


def _removed(path: str, field: Node, *, is_open: bool) -> SchemaChange:
    required = field["required"]
    reasons = [
        "the field is gone, and the older version requires it" if required else "a field that could be missing is gone"
    ]
    if not is_open:
        reasons.append("states that have it do not fit any more")
    return SchemaChange(path, "removed", is_open, not required, "; ".join(reasons), field["type"], None)


def _inside(old: Node, new: Node) -> Iterator[tuple[str, Node, Node]]:
    if old["type"] == "map":
        yield "{}", old["keys"], new["keys"]
        yield "[]", old["values"], new["values"]
    elif isinstance(old["items"], list):
        for place, (one, other) in enumerate(zip(old["items"], new["items"], strict=True)):
            yield f"[{place}]", one, other
    else:
        yield "[]", old["items"], new["items"]


def _same_length(old: Node, new: Node) -> bool:
    lengths = [len(each["items"]) if isinstance(each["items"], list) else -1 for each in (old, new)]
    return lengths[0] == lengths[1]


def _one_record_each(old: Node, new: Node) -> tuple[Node, Node] | None:
    """Return the members in which two unions differ, if it is one of the same kind each: `Plan | None`."""
    if old["type"] != "union" or new["type"] != "union":
        return None
    before, after = ({encode(each): each for each in node["of"]} for node in (old, new))
    one = [each for key, each in before.items() if key not in after]
    other = [each for key, each in after.items() if key not in before]
    if len(one) == len(other) == 1 and one[0]["type"] == other[0]["type"]:
        return one[0], other[0]
    return None


_LOWER = ("minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties")


def _implies(key: str, stricter: Any, other: Any) -> bool:
    """Return whether values under one limit are also under another."""
    if other is None or stricter == other:
        return True
    if stricter is None:
        return key in ("minLength", "minItems", "minProperties") and other == 0
    if key in ("pattern", "uniqueItems"):
        return key == "uniqueItems" and not other
    if key == "multipleOf":
        return bool(stricter % other == 0)
    return bool(stricter >= other if key in _LOWER else stricter <= other)


def _limits_fit(source: Node, target: Node) -> bool:
    return all(_implies(key, source.get(key), target.get(key)) for key in CONSTRAINTS)


_PYTHON_TYPES: dict[str, tuple[type, ...]] = {
    "null": (type(None),),
    "bool": (bool,),
    "int": (int,),
    "float": (int, float),
    "str": (str,),
}


def _accepts(target: Node, value: Any) -> bool:
    if target["type"] in ("literal", "enum"):
        return encode(value) in map(encode, target["values"])
    if type(value) not in _PYTHON_TYPES.get(target["type"], ()):
        return False
    from holdfast.schemas.validator import Validator

    return not Validator(target).check(value)
