"""Reading the URL of a store: its parts, its options, and how to show it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

from holdfast._durations import match_duration
from holdfast.errors import ConfigError, DeniedError

T = TypeVar("T")


def split_options(url: str, known: Mapping[str, object], given: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """A URL without the options that Holdfast knows, and these: from the query, or given, which counts for more.

    What else is in the query stays in the URL, for the driver. An option that is given and not known is refused.
    """
    unknown = sorted(given.keys() - known.keys())
    if unknown:
        raise ConfigError(
            f"a store at {urlsplit(url).scheme}:// takes no option {unknown[0]!r}",
            where=without_password(url),
            hint=f"It takes {', '.join(sorted(known))}" if known else "It takes none",
        )
    address, mark, query = url.partition("?")
    pairs = parse_qsl(query, keep_blank_values=True)
    options = {name: value for name, value in pairs if name in known}
    rest = urlencode([pair for pair in pairs if pair[0] not in known], quote_via=quote)
    return (f"{address}{mark}{rest}" if rest else address), {**options, **given}


def number(url: str, name: str, value: object, least: float = 0.0, most: float = 1e9) -> float:
    """An option that is a number."""
    return _read(url, name, value, float, lambda found: least <= found <= most, f"a number from {least:g} to {most:g}")


def duration(url: str, name: str, value: object, most: float = 1e9) -> float:
    """An option that is a duration: a number of seconds, a text such as `30s`, or a `timedelta`. Returns seconds."""
    parsed = match_duration(value.strip().lower()) if isinstance(value, str) else value
    seconds = parsed.total_seconds() if isinstance(parsed, timedelta) else value
    return _read(url, name, seconds, float, lambda found: 0 <= found <= most, "a number of seconds, or such as 30s")


def whole(url: str, name: str, value: object, least: int = 0, most: int = 1 << 40) -> int:
    """An option that is a whole number."""
    return _read(url, name, value, int, lambda found: least <= found <= most, f"a whole number from {least} to {most}")


def switch(url: str, name: str, value: object) -> bool:
    """An option that is on or off."""
    known = {"true": True, "1": True, "on": True, "yes": True, "false": False, "0": False, "off": False, "no": False}
    found = value if isinstance(value, bool) else known.get(str(value).lower())
    if found is None:
        raise ConfigError(f"{name} cannot be {value!r}", where=without_password(url), hint="It is true or false")
    return found


def choice(url: str, name: str, value: object, choices: tuple[str, ...]) -> str:
    """An option that is one of some words."""
    if value not in choices:
        raise ConfigError(
            f"{name} cannot be {value!r}", where=without_password(url), hint=f"It is one of {', '.join(choices)}"
        )
    return str(value)


def without_password(url: str) -> str:
    """A URL as it may be shown: without the password, in the address or in the query."""
    scheme, colon, rest = url.partition("://")
    if "@" in rest and not rest.startswith("/") and ":" in rest.partition("@")[0]:
        user, _, place = rest.rpartition("@")  # the last one: a password that was not quoted is not shown either
        rest = f"{user.partition(':')[0]}@{place}"
    rest, mark, query = rest.partition("?")
    pairs = [pair for pair in parse_qsl(query, keep_blank_values=True) if not _secret(pair[0])]
    return f"{scheme}{colon}{rest}{mark if pairs else ''}{urlencode(pairs, quote_via=quote, safe='/:@')}"


def _secret(name: str) -> bool:
    return any(part in name.lower() for part in ("password", "secret", "token", "key"))


def _read(url: str, name: str, value: object, kind: Callable[[Any], T], fits: Callable[[T], bool], what: str) -> T:
    try:
        found = kind(value)
    except (TypeError, ValueError):
        found = None
    if found is None or isinstance(value, bool) or not fits(found):
        raise ConfigError(f"{name} cannot be {value!r}", where=without_password(url), hint=f"It is {what}")
    return found


def is_there(path: Path, where: str) -> bool:
    """Whether there is a file or directory. `DeniedError` if this user may not know."""
    try:
        return path.exists()
    except OSError as error:
        raise DeniedError(
            f"this user may not look for the store: {error.strerror}",
            where=where,
            hint="Grant entering the directories above it, and reading there",
        ) from error
