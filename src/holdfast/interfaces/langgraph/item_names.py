"""Names of namespaces and items of LangGraph's, as scopes and keys: every text has one, and none is anybody else's."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from urllib.parse import quote, unquote

from holdfast.engine.model.scopes import ITEMS, MARK, Scope, ScopePart, check_key
from holdfast.errors import InvalidError

USER = "{user}"
"""Stands for the label of a namespace that names a user."""


class ItemNames:
    """The scopes of namespaces. `users` are starts of namespaces that belong to a user, such as
    `("memories", "{user}")`."""

    def __init__(self, users: Sequence[Sequence[str]] = ()) -> None:
        self._users = [tuple(each) for each in users if not isinstance(each, str)]
        if len(self._users) < len(users) or any(each.count(USER) != 1 for each in self._users):
            raise InvalidError(
                "a namespace of users is a tuple of labels, one of which is {user}",
                where="users",
                hint='users=[("memories", "{user}")]',
            )

    def scope(self, namespace: Sequence[str]) -> Scope:
        """Return the scope of a namespace."""
        user = self._user(namespace)
        return Scope.of(user=None if user is None else _escape(user), items=".".join(map(_escape, namespace)))

    def namespace(self, scope: Scope) -> tuple[str, ...] | None:
        """Return the namespace of a scope; None if it is that of none."""
        if not scope.parts or scope.parts[-1].kind != ITEMS:
            return None
        found = tuple(map(unquote, scope.parts[-1].name.split(".")))
        return found if self.scope(found) == scope else None

    def line_starts(self, prefix: Sequence[str]) -> list[str]:
        """Return how the names of lines start that have the namespaces with a prefix: whole parts, since more cannot be
        told of names that are encrypted."""
        user = self._user(prefix)
        if user is not None:
            return [MARK + f"{ScopePart('user', _escape(user))}/{ITEMS}:"]
        return [f"{MARK}{ITEMS}:", *([f"{MARK}user:"] if self._users else [])]

    def _user(self, namespace: Sequence[str]) -> str | None:
        for pattern in self._users:
            labels = namespace[: len(pattern)]
            if len(labels) == len(pattern) and all(p in (USER, n) for p, n in zip(pattern, labels, strict=True)):
                return labels[pattern.index(USER)]
        return None

    @staticmethod
    def key(text: str) -> str:
        """Return the key of an item."""
        if "%" not in text:
            try:
                if check_key(text) == text:
                    return text
            except InvalidError:
                pass
        return check_key(_escape(text))

    @staticmethod
    def original(key: str) -> str:
        """Return the text that a key stands for."""
        return unquote(key) if "%" in key else key


def _escape(text: str) -> str:
    """Return a text without what names of scopes do not have or treat alike; plain words stay as they are."""
    is_plain = text.isprintable() and unicodedata.normalize("NFC", text) == text
    if is_plain and not any(each in text for each in "%/\\."):
        return text
    kept = "".join({each for each in text if is_plain and each not in "%/\\."})
    return quote(text, safe=kept).replace(".", "%2E") if kept.isascii() else _escape_some(text, kept)


def _escape_some(text: str, kept: str) -> str:
    return "".join(each if each in kept else "".join(f"%{byte:02X}" for byte in each.encode()) for each in text)
