"""What comes to light while an object is taken apart: classes, secrets, and what must not get into the file."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from holdfast.errors import SnapshotInvalid, SnapshotRefused

_LOOKS_SECRET = re.compile(
    r"api[-_]?key|passw(or)?d|passphrase|secret|authorization|bearer|private[-_]?key|credential"
    r"|(access|auth|bearer|refresh|session|api|id)[-_]?token|^token$",
    re.IGNORECASE,
)
_LEAST = 8
"""Shorter values of secrets that were come upon are not searched for: they would be found in any text."""


class Gathering:
    """One snapshot in the making."""

    def __init__(self, secrets: Mapping[str, str] | None = None, not_secret: Iterable[str] = ()) -> None:
        """`secrets` are values that must not be in the file; `not_secret`, names of fields that only look like it."""
        self.secrets: set[str] = set()
        """What `restore` has to be given, by name."""
        self.classes: set[str] = set()
        """Classes that `restore` has to allow."""
        self._values: dict[str, str] = {}
        if isinstance(not_secret, str):
            raise SnapshotInvalid("not_secret is a list of names of fields", hint=f"not_secret=[{not_secret!r}]")
        self._not_secret = frozenset(not_secret)
        value: Any
        for name, value in (secrets or {}).items():
            if not isinstance(value, str) or not value:
                raise SnapshotInvalid(f"the secret {name} is no text, or an empty one")
            self._values[value] = name

    def found_secret(self, name: str, value: Any) -> None:
        """A field that its class declares to be a secret. Its value is then searched for everywhere else."""
        self.secrets.add(name)
        plain = value.get_secret_value() if hasattr(value, "get_secret_value") else value
        if isinstance(plain, str) and len(plain) >= _LEAST:
            self._values.setdefault(plain, name)

    def check_field(self, name: str, value: Any, path: str) -> None:
        """Refuse text in a field whose name says that it is secret, and of which nobody said that it is not."""
        if type(value) is str and value and name not in self._not_secret and _LOOKS_SECRET.search(name):
            raise SnapshotRefused(
                f"the field {name!r} looks like a secret, and would be in the file in clear",
                where=path,
                hint=f"Have the class declare it in lc_secrets, leave it out, or say that it is none: "
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
                raise SnapshotRefused(
                    f"the value of the secret {name} would be in the file",
                    where=held.sub("…", at),
                    hint="Take it out of the text, the headers or the settings where it stands",
                )
