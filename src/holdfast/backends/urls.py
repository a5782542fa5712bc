"""Reading the URL of a store: its parts, its options, and how to show it."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

from holdfast.errors import ConfigError, DeniedError, InvalidError
from holdfast.time_parsing import DURATION_FORMS, parse_seconds

_NUMBER = re.compile(r"\d+(\.\d*)?|\.\d+")


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


def seconds(url: str, name: str, value: object, least: float = 0.0, most: float = 1e9) -> float:
    """An option that is a duration, such as `90s` or `15m`; a number is of seconds, also as text."""
    try:
        found = float(value) if isinstance(value, str) and _NUMBER.fullmatch(value) else parse_seconds(value)
    except InvalidError:
        found = math.nan
    if not least <= found <= most:
        raise ConfigError(
            f"{name} cannot be {value!r}",
            where=without_password(url),
            hint=f"It is a duration from {least:g} to {most:g} seconds: a number of seconds, or {DURATION_FORMS}",
        )
    return found


def whole(url: str, name: str, value: object, least: int = 0, most: int = 1 << 40) -> int:
    """An option that is a whole number."""
    try:
        found = least - 1 if isinstance(value, bool) else int(value)  # type: ignore[call-overload]
    except (TypeError, ValueError):
        found = least - 1
    if not least <= found <= most:
        hint = f"It is a whole number from {least} to {most}"
        raise ConfigError(f"{name} cannot be {value!r}", where=without_password(url), hint=hint)
    return int(found)


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
    scheme, colon, rest = url.partition("://") if "://" in url else ("", "", url)
    if colon and "@" in rest and not rest.startswith("/") and ":" in rest.partition("@")[0]:
        user, _, place = rest.rpartition("@")  # the last one: a password that was not quoted is not shown either
        rest = f"{user.partition(':')[0]}@{place}"
    rest, mark, query = rest.partition("?")
    pairs = [
        (name, without_password(value) if "://" in value else value)  # a store that is part of this one
        for name, value in parse_qsl(query, keep_blank_values=True)
        if not _secret(name)
    ]
    return f"{scheme}{colon}{rest}{mark if pairs else ''}{urlencode(pairs, quote_via=quote, safe='/:@')}"


def _secret(name: str) -> bool:
    return any(part in name.lower() for part in ("password", "secret", "token", "key"))


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
