"""Find the secrets and the classes of an object, and keep secrets out of the file."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from holdfast.errors import SnapshotInvalidError, SnapshotRefusedError
from holdfast.security.sensitive.detector import Detector, parse_formats

_LOOKS_SECRET = re.compile(
    r"(api|private|access|account|signing|encryption)[-_]?key|passw(or)?d|^pwd$|passphrase|secret|authorization|bearer"
    r"|credential|connection[-_]?string|^(set-)?cookies?$|(access|auth|bearer|refresh|session|api|id)[-_]?token|^token$"
    # Any token except those of models: `hf_token` is a secret, `eos_token` is not.
    r"|(?<!bos)(?<!eos)(?<!pad)(?<!unk)(?<!sep)(?<!cls)(?<!mask)(?<!stop)(?<!start)(?<!end)[-_]token$",
    re.IGNORECASE,
)
_SCHEMA = {"type", "$ref", "anyOf", "allOf", "oneOf", "enum", "const", "title", "description"}
"""The keys of a schema, in which `password` is the name of a field and has no value, except for these:"""
_SCHEMA_VALUES = ("default", "const", "examples", "example", "value")
_HOLDS_SECRET = re.compile(
    r"[a-z][a-z0-9+.-]*://([^/?#@:]*:[^/?#@{]+@|[^?]*\?(.*&)?[^=&]*(key|token|password|secret|signature)=[^&{])"
    r"|(bearer|basic)\s+[^\s{]{8,}$",
    re.IGNORECASE,
)
"""A URL with a password, `https://me:…@host` or `https://host?key=…`, or a value of the header `Authorization`."""

_KEYS = Detector(parse_formats("credentials") - {"field", "high-entropy", "named-secret", "bearer-token"})
"""Finds keys that are unmistakable by their form."""

_STEP = re.compile(r"\.kwargs(?=\.|\[|$| )")
"""In trees of LangChain, the fields of an object are below `kwargs`."""

_MIN_LENGTH = 8
"""Shorter values of secrets that are found in the object are not searched for: they would occur in any text."""


def secret_texts(secrets: Mapping[str, Any] | None) -> dict[str, str]:
    """Return the caller's secrets as text: they are text, or secret types of pydantic."""
    if not isinstance(secrets, Mapping | None):
        raise SnapshotInvalidError("secrets must be a dict of names and values", hint="secrets={'OPENAI_API_KEY': …}")
    texts = {}
    for name, value in (secrets or {}).items():
        plain = _plain(value)
        if not isinstance(plain, str) or not plain:
            raise SnapshotInvalidError(f"the secret {name} is not text, or is empty")
        texts[str(name)] = plain
    return texts


def _plain(value: Any) -> Any:
    return value.get_secret_value() if hasattr(value, "get_secret_value") else value


def _has_text(value: Any) -> bool:
    """Whether a value is or contains text, also in lists, and in dicts that are no schemas."""
    if isinstance(value, Mapping):
        if value.keys() & _SCHEMA:
            return any(_has_text(value[key]) for key in _SCHEMA_VALUES if key in value)
        return any(map(_has_text, value.values()))
    if isinstance(value, list | tuple):
        return any(map(_has_text, value))
    return isinstance(value, str | bytes) and bool(value)


class SecretScan:
    """Collects the secrets and classes of one object, and refuses secrets elsewhere in it."""

    def __init__(self, secrets: Mapping[str, Any] | None = None, not_secret: Iterable[str] = ()) -> None:
        """`secrets` are values that must not be in the file; `not_secret`, names or paths of fields that only look
        like secrets."""
        self.secrets: set[str] = set()
        """The names of the secrets that `restore` needs."""
        self.classes: set[str] = set()
        """The classes that `restore` has to allow."""
        if isinstance(not_secret, str) or not isinstance(not_secret, Iterable):
            raise SnapshotInvalidError("not_secret must be a list of field names", hint=f"not_secret=[{not_secret!r}]")
        self._not_secret = frozenset(map(str, not_secret))
        self._values = {value: name for name, value in secret_texts(secrets).items()}

    def add_secret(self, name: str, value: Any) -> None:
        """Add a field that its class declares as a secret. Its value is then searched for everywhere else."""
        self.secrets.add(name)
        plain = _plain(value)
        if isinstance(plain, str) and len(plain) >= _MIN_LENGTH:
            self._values.setdefault(plain, name)

    def check_field(self, name: str, value: Any, path: str, *, is_message: bool = False) -> None:
        """Refuse a field whose name or value looks like a secret, unless the caller said that it is none. In messages
        and documents, texts may begin like a header: there, only the name counts."""
        if name in self._not_secret or path in self._not_secret:
            return
        holds_secret = not is_message and type(value) is str and _HOLDS_SECRET.match(value)
        if holds_secret or (_LOOKS_SECRET.search(name) and _has_text(value)):
            raise SnapshotRefusedError(
                f"the field {name!r} looks like a secret, or contains one, and would be in the file as plain text",
                where=path,
                hint=f"Leave it out, have its LangChain class declare it in lc_secrets, or say that it is not one: "
                f"not_secret=[{name!r}]",
            )

    def check_names(self, value: Any, path: str, *, is_message: bool = False) -> None:
        """Check all fields of nested settings."""
        if isinstance(value, Mapping):
            for name, item in value.items():
                self.check_field(str(name), item, f"{path}.{name}", is_message=is_message)
                self.check_names(item, f"{path}.{name}", is_message=is_message)
        elif isinstance(value, list | tuple):
            for index, item in enumerate(value):
                self.check_names(item, f"{path}[{index}]", is_message=is_message)

    def check_texts(self, tree: Any, path: str) -> None:
        """Refuse a tree of JSON with a text that contains the value of a secret, or a key in a known format."""
        known = [re.escape(value) for value in sorted(self._values, key=len, reverse=True)]
        values = re.compile("|".join(known)) if known else None
        stack: list[tuple[Any, str, str]] = [(tree, path, path)]
        while stack:
            value, at, name = stack.pop()
            if type(value) is dict:
                stack += [(key, f"{at} (a key)", name) for key in value]
                stack += [(item, f"{at}.{key}", key) for key, item in value.items()]
            elif type(value) is list:
                stack += [(item, f"{at}[{index}]", name) for index, item in enumerate(value)]
            elif type(value) is str:
                if values is not None and (match := values.search(value)):
                    raise SnapshotRefusedError(
                        f"the value of the secret {self._values[match.group()]} would be in the file",
                        where=values.sub("…", _STEP.sub("", at)),
                        hint="Remove it from the text, the headers or the settings",
                    )
                if spans := _KEYS.find(value):
                    self._check_key(spans[0].format, _STEP.sub("", at), name)

    def _check_key(self, format_: str, path: str, name: str) -> None:
        for span in reversed(_KEYS.find(path)):
            path = f"{path[: span.start]}…{path[span.end :]}"
        if name not in self._not_secret and path not in self._not_secret:
            raise SnapshotRefusedError(
                f"a text contains what looks like a key ({format_})",
                where=path,
                hint=f"Remove it, or say that it is not a secret: not_secret=[{path!r}]",
            )
