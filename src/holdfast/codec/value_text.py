"""Values as text for people. `plain_json` makes the JSON of a value; this is how it is written and shortened."""

from __future__ import annotations

import json
from typing import Any


def json_text(tree: Any, indent: int | None = None) -> str:
    """Return a tree of JSON values as JSON with the letters of all scripts, on one line or on several."""
    return json.dumps(tree, ensure_ascii=False, indent=indent)


def text_of(tree: Any, indent: int | None = None) -> str:
    """Return text as it is, and any other tree of JSON values as JSON."""
    return tree if isinstance(tree, str) else json_text(tree, indent)


def shorten(text: str, most: int) -> str:
    """Return a text of at most so many characters, the last of which is an ellipsis if something was cut off."""
    return text if len(text) <= most else f"{text[: most - 1]}…"
