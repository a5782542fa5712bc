"""The skeleton of a migration, ready to paste: what the difference of two schemas suggests."""

from __future__ import annotations

from collections.abc import Callable

from holdfast.schemas.compatibility import Compatibility, SchemaChange
from holdfast.schemas.definition import Node, encode
from holdfast.schemas.schema import Schema
from holdfast.schemas.version import Version

_EMPTY = {
    "str": '""',
    "int": "0",
    "float": "0.0",
    "bool": "False",
    "bytes": 'b""',
    "any": "None",
    "null": "None",
    "list": "[]",
    "map": "{}",
    "set": "set()",
    "tuple": "()",
    "record": "{}",
}


def migration_skeleton(
    name: str,
    source: Version,
    target: Version,
    old: Schema | None,
    new: Schema | None,
    compare: Callable[[Schema, Schema], Compatibility],
) -> str:
    """Return the source of a migration."""
    lines = (
        _operations(old, new, compare) if old is not None and new is not None else ["# add(…), rename(…), convert(…)"]
    )
    body = "".join(f"    {line}\n" for line in lines)
    return f'Migration(\n    "{name}", "{source}", "{target}",\n{body})'


def _operations(old: Schema, new: Schema, compare: Callable[[Schema, Schema], Compatibility]) -> list[str]:
    changes = [each for each in compare(old, new).changes if "[" not in each.path and "{" not in each.path]
    renamed = _find_renamed(changes)
    lines = []
    for each in changes:
        if each.path in renamed:
            lines.append(f'rename("{each.path}", "{renamed[each.path].rpartition(".")[2]}"),  # or remove and add')
        elif each.path in renamed.values():
            continue
        elif each.kind in ("added", "required"):
            lines.append(f'add("{each.path}", default={_default(new, each)}),')
        elif each.kind == "removed":
            lines.append(f'remove("{each.path}"),')
        elif each.kind in ("type", "constraint"):
            lines.append(f'convert("{each.path}", up=lambda value: value, down=lambda value: value),  # {each.reason}')
    inside = [each for each in compare(old, new).changes if "[" in each.path]
    lines += [f"# each(…): {each.path} ({each.kind}: {each.reason})" for each in inside]
    return lines or ["# nothing to do"]


def _find_renamed(changes: list[SchemaChange]) -> dict[str, str]:
    """Return fields that went while exactly one of the same type came beside them, as in a rename."""
    found = {}
    for gone in (each for each in changes if each.kind == "removed" and each.old is not None):
        parent = gone.path.rpartition(".")[0]
        beside = [each for each in changes if each.path.rpartition(".")[0] == parent]
        same = [each for each in beside if each.kind == "added" and each.new and encode(each.new) == encode(gone.old)]
        others = [
            each for each in beside if each.kind == "removed" and each.old and encode(each.old) == encode(gone.old)
        ]
        if len(same) == len(others) == 1:
            found[gone.path] = same[0].path
    return found


def _default(schema: Schema, change: SchemaChange) -> str:
    node: Node = schema.definition
    for name in change.path.split("."):
        node = node["of"] if node["type"] == "recursive" else node
        field = node.get("fields", {}).get(name, {}) if node["type"] == "record" else {}
        if "default" in field:
            return repr(field["default"])
        node = field.get("type", {"type": "any"})
    kind = change.new or {"type": "any"}
    if kind["type"] == "union":
        members = {each["type"] for each in kind["of"]}
        return "None" if "null" in members else _EMPTY.get(kind["of"][0]["type"], "None")
    return repr(kind["values"][0]) if kind["type"] in ("literal", "enum") else _EMPTY.get(kind["type"], "None")
