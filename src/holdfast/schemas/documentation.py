"""Documentation of schemas in Markdown and HTML: fields, types, defaults, versions, changes and migrations."""

from __future__ import annotations

import json
from collections.abc import Iterator
from html import escape
from itertools import pairwise
from typing import Any

from holdfast.schemas.definition import Node, type_text
from holdfast.schemas.schema import Schema
from holdfast.schemas.schema_set import SchemaSet


def to_markdown(schemas: SchemaSet) -> str:
    """Return the documentation as Markdown."""
    lines = ["# Schemas", ""]
    for name, sections in _document(schemas):
        lines += [f"## {name}", ""]
        for title, text, heads, rows in sections:
            lines += [f"### {title}", ""]
            if text:
                lines += [text, ""]
            if rows:
                lines += [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
                lines += [f"| {' | '.join(map(_cell, row))} |" for row in rows]
                lines.append("")
    return "\n".join(lines).rstrip() + "\n"


def to_html(schemas: SchemaSet) -> str:
    """Return the documentation as a page of HTML that loads nothing from elsewhere."""
    parts = ["<!doctype html>", '<html lang="en">', '<meta charset="utf-8">', "<title>Schemas</title>", _STYLE]
    parts.append("<h1>Schemas</h1>")
    for name, sections in _document(schemas):
        parts.append(f"<h2>{escape(name)}</h2>")
        for title, text, heads, rows in sections:
            parts.append(f"<h3>{escape(title)}</h3>")
            if text:
                parts.append(f"<p>{escape(text)}</p>")
            if rows:
                parts.append("<table><tr>" + "".join(f"<th>{escape(head)}</th>" for head in heads) + "</tr>")
                parts += ["<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows]
                parts.append("</table>")
    return "\n".join([*parts, "</html>"]) + "\n"


_STYLE = (
    "<style>body{font-family:sans-serif;max-width:60em;margin:2em auto;padding:0 1em}"
    "table{border-collapse:collapse}td,th{border:1px solid #bbb;padding:.3em .6em;text-align:left}</style>"
)

_Section = tuple[str, str, tuple[str, ...], list[tuple[str, ...]]]


def _document(schemas: SchemaSet) -> Iterator[tuple[str, list[_Section]]]:
    for name in schemas.names():
        yield name, list(_sections(schemas, name))


def _sections(schemas: SchemaSet, name: str) -> Iterator[_Section]:
    known = [each for each in schemas if each.name == name]
    if known:
        newest = known[-1]
        yield f"Version {newest.version}", f"Hash {newest.hash}", FIELD_HEADS, describe_fields(newest)
    changes = [row for older, newer in pairwise(known) for row in _changes(schemas, older, newer)]
    if changes:
        yield "Changes", "", ("versions", "path", "change", "compatibility", "reason"), changes
    migrations = schemas.graph(name).migrations
    if migrations:
        rows: list[tuple[str, ...]] = [
            (f"{each.source} -> {each.target}", "; ".join(map(str, each.operations)) or "nothing", _remarks(each))
            for each in migrations
        ]
        yield "Migrations", "", ("versions", "operations", "remarks"), rows


FIELD_HEADS = ("field", "type", "required", "default", "description")


def describe_fields(schema: Schema) -> list[tuple[str, ...]]:
    """Return a row for each field of a schema, with fields of records inside."""
    return list(_fields(schema.definition, ""))


def _fields(node: Node, path: str) -> Iterator[tuple[str, ...]]:
    node = node["of"] if node["type"] == "recursive" else node
    if node["type"] != "record":
        if not path:
            yield "", type_text(node), "", "", str(node.get("description", ""))
        return
    for name, field in node["fields"].items():
        where = f"{path}.{name}" if path else name
        kind = field["type"]
        default = json.dumps(field["default"], ensure_ascii=False) if "default" in field else ""
        text = "record" if kind["type"] == "record" else type_text(_without_notes(kind))
        yield where, text, "yes" if field["required"] else "no", default, str(field.get("description", ""))
        if kind["type"] == "record":
            yield from _fields(kind, where)
        elif kind["type"] == "list" and kind["items"]["type"] == "record":
            yield from _fields(kind["items"], f"{where}[]")


def _without_notes(node: Any) -> Any:
    if isinstance(node, list):
        return [_without_notes(each) for each in node]
    if not isinstance(node, dict):
        return node
    return {key: _without_notes(value) for key, value in node.items() if key not in ("description", "default", "title")}


def _changes(schemas: SchemaSet, older: Schema, newer: Schema) -> Iterator[tuple[str, ...]]:
    for each in schemas.compare(older, newer).changes:
        yield f"{older.version} -> {newer.version}", each.path, each.kind, str(each.level), each.reason


def _remarks(migration: Any) -> str:
    remarks = [migration.description] if migration.description else []
    remarks += ["lossy"] if migration.lossy else []
    remarks += [] if migration.reversible else ["no way down"]
    remarks += [f"node {old} is {new}" for old, new in migration.nodes.items()]
    return "; ".join(remarks)


def _cell(text: str) -> str:
    return text.replace("\\", "\\\\").replace("|", "\\|").replace("\n", " ")
