"""Prints the messages that people read, one a line, with their places: `python -m tools.messages [WORD]...`.

They are the texts and hints of errors, warnings and log records in the source, and the explanations of codes. With
words, only messages that contain one of them.
"""

from __future__ import annotations

import ast
import sys
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

SOURCE = Path(__file__).resolve().parent.parent / "src" / "holdfast"
LOGGED = {"debug", "info", "warning", "error", "exception", "critical", "warn", "note"}
"""Methods whose first argument is a message."""


class Message(NamedTuple):
    """A message, and where it is."""

    place: str
    text: str


def messages(source: Path = SOURCE) -> Iterator[Message]:
    """Yield the messages of a package."""
    for path in sorted(source.rglob("*.py")):
        name = path.relative_to(source.parent)
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call):
                yield from (Message(f"{name}:{node.lineno}", text) for text in _texts(node))
    for path in sorted(source.rglob("*.toml")):
        for code, entry in tomllib.loads(path.read_text(encoding="utf-8")).items():
            texts = entry.values() if isinstance(entry, dict) else ()
            found = (each for value in texts for each in (value if isinstance(value, list) else [value]))
            yield from (Message(f"{path.relative_to(source.parent)}:{code}", each) for each in found if _is_words(each))


def _texts(call: ast.Call) -> Iterator[str]:
    """Yield the message and the hint of a call that makes an error, or logs something."""
    called = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    makes = called.endswith(("Error", "_error")) or called in LOGGED
    given = [*(call.args[:1] if makes else ()), *(each.value for each in call.keywords if each.arg == "hint")]
    for each in given:
        if (text := _text(each)) and _is_words(text):
            yield text


def _text(node: ast.expr) -> str:
    """Return a text with names in braces where values are put in; empty for what is no text."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(
            f"{{{ast.unparse(each.value)}}}"
            if isinstance(each, ast.FormattedValue)
            else str(getattr(each, "value", ""))
            for each in node.values
        )
    return ""


def _is_words(text: object) -> bool:
    return isinstance(text, str) and " " in text


def main(words: Sequence[str]) -> None:
    """Print the messages that have one of the words, or all."""
    for message in messages():
        if not words or any(word in message.text for word in words):
            print(f"{message.place}: {message.text}")


if __name__ == "__main__":
    main(sys.argv[1:])
