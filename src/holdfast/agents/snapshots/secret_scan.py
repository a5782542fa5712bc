"""What comes to light while an object is taken apart: classes, secrets, and what must not get into the file."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from holdfast.errors import SnapshotInvalidError, SnapshotRefusedError

_LOOKS_SECRET = re.compile(
    r"(api|private|access|account|signing|encryption)[-_]?key|passw(or)?d|^pwd$|passphrase|secret|authorization|bearer"
    r"|credential|connection[-_]?string|^(set-)?cookies?$|(access|auth|bearer|refresh|session|api|id)[-_]?token|^token$"
    # Any token but those that models write: `hf_token` is one, `eos_token` is none.
    r"|(?<!bos)(?<!eos)(?<!pad)(?<!unk)(?<!sep)(?<!cls)(?<!mask)(?<!stop)(?<!start)(?<!end)[-_]token$",
    re.IGNORECASE,
)
_SCHEMA = {"type", "$ref", "anyOf", "allOf", "oneOf", "enum", "const", "title", "description"}
"""What a schema has: `password` in one says that there is such a field, and not what is in it."""
_HOLDS_SECRET = re.compile(
    r"[a-z][a-z0-9+.-]*://([^/?#@:]*:[^/?#@{]+@|[^?]*\?(.*&)?[^=&]*(key|token|password|secret|signature)=[^&{])"
    r"|(bearer|basic)\s+[^\s{]{8,}$",
    re.IGNORECASE,
)
"""A URL with a password, `https://me:…@host` or `https://host?key=…`, and what is sent as `Authorization`."""

_LEAST = 8
"""Shorter values of secrets that were come upon are not searched for: they would be found in any text."""


def told(secrets: Mapping[str, Any] | None) -> dict[str, str]:
    """Secrets as the caller gave them: text, or what pydantic keeps text in."""
    found = {}
    for name, value in (secrets or {}).items():
        plain = _plain(value)
        if not isinstance(plain, str) or not plain:
            raise SnapshotInvalidError(f"the secret {name} is no text, or an empty one")
        found[str(name)] = plain
    return found


def _plain(value: Any) -> Any:
    return value.get_secret_value() if hasattr(value, "get_secret_value") else value


def _has_text(value: Any) -> bool:
    """Whether there is any text in a value: right there, in a list, or by name in a dict that is no schema."""
    if isinstance(value, Mapping):
        return not value.keys() & _SCHEMA and any(map(_has_text, value.values()))
    if isinstance(value, list | tuple):
        return any(map(_has_text, value))
    return isinstance(value, str | bytes) and bool(value)


class SecretScan:
    """One snapshot in the making."""

    def __init__(self, secrets: Mapping[str, Any] | None = None, not_secret: Iterable[str] = ()) -> None:
        """`secrets` are values that must not be in the file; `not_secret`, names of fields that only look like it."""
        self.secrets: set[str] = set()
        """What `restore` has to be given, by name."""
        self.classes: set[str] = set()
        """Classes that `restore` has to allow."""
        self._values: dict[str, str] = {}
        if isinstance(not_secret, str):
            raise SnapshotInvalidError("not_secret is a list of names of fields", hint=f"not_secret=[{not_secret!r}]")
        self._not_secret = frozenset(not_secret)
        self._values |= {value: name for name, value in told(secrets).items()}

    def found_secret(self, name: str, value: Any) -> None:
        """A field that its class declares to be a secret. Its value is then searched for everywhere else."""
        self.secrets.add(name)
        plain = _plain(value)
        if isinstance(plain, str) and len(plain) >= _LEAST:
            self._values.setdefault(plain, name)

    def check_field(self, name: str, value: Any, path: str) -> None:
        """Refuse what is secret by the name of its field, or looks like it, and of which nobody said that it is not."""
        if name in self._not_secret:
            return
        looks = type(value) is str and _HOLDS_SECRET.match(value)
        if looks or (_LOOKS_SECRET.search(name) and _has_text(value)):
            raise SnapshotRefusedError(
                f"the field {name!r} looks like a secret, or holds one, and would be in the file in clear",
                where=path,
                hint=f"Leave it out, have the class of LangChain's declare it in lc_secrets, or say that it is none: "
                f"not_secret=[{name!r}]",
            )

    def check_names(self, value: Any, path: str) -> None:
        """The same for all fields in settings, all the way down."""
        if isinstance(value, Mapping):
            for name, item in value.items():
                self.check_field(str(name), item, f"{path}.{name}")
                self.check_names(item, f"{path}.{name}")
        elif isinstance(value, list | tuple):
            for index, item in enumerate(value):
                self.check_names(item, f"{path}[{index}]")

    def check_texts(self, tree: Any, path: str) -> None:
        """Refuse a tree of JSON in which the value of a secret stands anywhere."""
        if not self._values:
            return
        held = re.compile("|".join(re.escape(value) for value in sorted(self._values, key=len, reverse=True)))
        left: list[tuple[Any, str]] = [(tree, path)]
        while left:
            value, at = left.pop()
            if type(value) is dict:
                left += [(key, f"{at} (a key)") for key in value]
                left += [(item, f"{at}.{key}") for key, item in value.items()]
            elif type(value) is list:
                left += [(item, f"{at}[{index}]") for index, item in enumerate(value)]
            elif type(value) is str and (found := held.search(value)):
                name = self._values[found.group()]
                raise SnapshotRefusedError(
                    f"the value of the secret {name} would be in the file",
                    where=held.sub("…", at),
                    hint="Take it out of the text, the headers or the settings where it stands",
                )
