"""Semantic versions of schemas, and references such as `chat@1.2.0`."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any, NamedTuple

from holdfast._fields import sent_as_text
from holdfast.errors import InvalidError

_VERSION = re.compile(
    r"(0|[1-9]\d{0,8})(?:\.(0|[1-9]\d{0,8}))?(?:\.(0|[1-9]\d{0,8}))?(?:-([0-9A-Za-z-]+(?:\.[0-9A-Za-z-]+)*))?"
)
_NAME = re.compile(r"[A-Za-z_][\w.:/-]{0,99}")


@sent_as_text
class Version(NamedTuple):
    """A semantic version. It sorts as https://semver.org says; `1.2` is `1.2.0`."""

    major: int
    minor: int = 0
    patch: int = 0
    prerelease: str = ""

    @staticmethod
    def parse(text: object) -> Version:
        """Parse a version. Raises `InvalidError`."""
        if isinstance(text, Version):
            return text
        return _parse(text) if isinstance(text, str) else _refuse(text)

    def __str__(self) -> str:
        text = f"{self.major}.{self.minor}.{self.patch}"
        return f"{text}-{self.prerelease}" if self.prerelease else text

    @property
    def order(self) -> tuple[Any, ...]:
        """A key to sort by: a prerelease comes before its release, and its numbers count as numbers."""
        parts = tuple(
            (0, int(part), "") if part.isdigit() else (1, 0, part) for part in self.prerelease.split(".") if part
        )
        return (self.major, self.minor, self.patch, not parts, parts)

    def __lt__(self, other: tuple[Any, ...]) -> bool:
        return self.order < other.order if isinstance(other, Version) else NotImplemented

    def __gt__(self, other: tuple[Any, ...]) -> bool:
        return self.order > other.order if isinstance(other, Version) else NotImplemented

    def __le__(self, other: tuple[Any, ...]) -> bool:
        return self.order <= other.order if isinstance(other, Version) else NotImplemented

    def __ge__(self, other: tuple[Any, ...]) -> bool:
        return self.order >= other.order if isinstance(other, Version) else NotImplemented


@lru_cache(1024)
def _parse(text: str) -> Version:
    match = _VERSION.fullmatch(text)
    if match is None:
        return _refuse(text)
    return Version(int(match[1]), int(match[2] or 0), int(match[3] or 0), match[4] or "")


def _refuse(text: object) -> Version:
    raise InvalidError(
        f"the version of a schema must have the form 1.2.0, not {text!r}",
        hint="Use semantic versions, https://semver.org",
    )


def require_name(name: object) -> str:
    """Require the name of a schema."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise InvalidError(
            f"the name of a schema has letters, digits and any of _ . : / -, at most 100, not {name!r}",
            hint='For example "chat", or "agent:researcher"',
        )
    return name


def parse_reference(text: str) -> tuple[str, Version | None]:
    """Parse `chat@1.2.0` into name and version; the version is None if there is none."""
    name, at, version = text.partition("@")
    return require_name(name), Version.parse(version) if at else None
