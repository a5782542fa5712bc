"""HTML tables for notebooks (`_repr_html_`)."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from datetime import datetime
from html import escape
from types import NoneType
from typing import Any

MAX_ROWS = 50
"""Longer listings are cut off."""

_MAX_TEXT = 200


def html_table(
    header: Sequence[str], rows: Iterable[Sequence[object]], *, total: int | None = None, caption: str = ""
) -> str:
    """Format rows as an HTML table, with all text escaped. `total` is their number if only some are passed."""
    shown = list(rows)
    parts = ["<table>"]
    if caption:
        parts.append(f"<caption>{_cell(caption)}</caption>")
    parts.append(f"<thead><tr>{''.join(f'<th>{_cell(name)}</th>' for name in header)}</tr></thead><tbody>")
    parts += (f"<tr>{''.join(f'<td>{_cell(value)}</td>' for value in row)}</tr>" for row in shown)
    if total is not None and total > len(shown):
        parts.append(f'<tr><td colspan="{len(header)}">… and {total - len(shown)} more</td></tr>')
    return "".join([*parts, "</tbody></table>"])


def html_listing(items: Sequence[Any]) -> str:
    """Format a listing of tuples or dataclasses as a table of their fields, without those that are empty in all."""
    rows = items[:MAX_ROWS]
    names: Sequence[str] = getattr(rows[0], "_fields", ()) if rows else ()
    if rows and dataclasses.is_dataclass(rows[0]):
        names = [field.name for field in dataclasses.fields(rows[0])]
    if not names:
        return html_table(("item",), [(row,) for row in rows], total=len(items))
    columns = [name for name in names if not all(_is_empty(getattr(row, name)) for row in rows)]
    cells = [[_format(getattr(row, name)) for name in columns] for row in rows]
    return html_table(columns, cells, total=len(items))


def _is_empty(value: object) -> bool:
    return type(value) in (NoneType, str, tuple, list, dict) and not value


def _format(value: object) -> object:
    return format_time(value) if isinstance(value, datetime) else value


def format_time(time: datetime) -> str:
    """Format a time to the second."""
    return f"{time:%Y-%m-%d %H:%M:%S}"


def _cell(value: object) -> str:
    text = str(value)
    return escape(text if len(text) <= _MAX_TEXT else f"{text[:_MAX_TEXT]}…")
