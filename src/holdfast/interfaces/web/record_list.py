"""The data of a page that lists records: what it is filtered by, and a page of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from holdfast.engine.pages import Page
from holdfast.errors import InvalidError, NotFoundError
from holdfast.interfaces.http.problems import to_problem


def list_values(
    read: Callable[..., Page[Any]], params: Mapping[str, str], names: Sequence[str], limit: int = 100, **options: Any
) -> dict[str, Any]:
    """Return what a list shows: the fields of its filter, and the records that they and the options select; or why
    there are none."""
    given = {name: params.get(name, "").strip() for name in names}
    chosen = {name: value for name, value in (given | options).items() if value}
    values: dict[str, Any] = {"given": given, "filtered": bool(chosen), "items": [], "next": None, "problem": None}
    try:
        page = read(**chosen, limit=limit, cursor=params.get("cursor") or None)
    except (InvalidError, NotFoundError) as error:
        return {**values, "problem": to_problem(error)}
    return {**values, "items": page, "next": page.next}
