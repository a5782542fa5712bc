"""HTML tables for notebooks (`_repr_html_`)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from html import escape

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


def format_time(time: datetime) -> str:
    """Format a time to the second."""
    return f"{time:%Y-%m-%d %H:%M:%S}"


def _cell(value: object) -> str:
    text = str(value)
    return escape(text if len(text) <= _MAX_TEXT else f"{text[:_MAX_TEXT]}…")
