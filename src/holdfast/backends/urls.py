"""URLs of stores: their options, the paths that they name, compositions, and redaction.

A composition is a store made of others: `cache:?store=sqlite:///agents.db&max_age=5`. Each part is the URL or the path
of a store, percent-encoded where it contains `&`, `?`, `#`, `%` or `+`, as `compose` does. A part may be a composition
itself.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit

from holdfast.errors import ConfigError, InvalidError
from holdfast.time_parser import DURATION_FORMS, parse_seconds

COMPOSITIONS: Mapping[str, tuple[str, ...]] = {
    "retry": ("store",),
    "readonly": ("store",),
    "cache": ("store", "in"),
    "write-behind": ("local", "remote"),
    "mirror": ("local", "remote"),
    "tiered": ("hot", "cold"),
}
"""The compositions, and which of their options are stores."""

_NUMBER = re.compile(r"\d+\.?\d*|\.\d+")
_WINDOWS_DRIVE = 1
_AUTHORITY_END = re.compile("[/?#]")
_MAX_PORT = 65_535


# Paths


def is_url(text: str) -> bool:
    """Whether a text starts with a scheme. A single letter is a drive of Windows."""
    scheme, colon, _ = text.partition(":")
    return bool(colon) and len(scheme) > _WINDOWS_DRIVE


def path_to_url(path: str | os.PathLike[str]) -> str:
    """Return the URL of the store at a path: of a SQLite file, or of a directory if one is there or it ends in `/`."""
    text = os.fspath(path)
    try:
        expanded = Path(text).expanduser()
        quote(str(expanded))
    except (ValueError, RuntimeError) as error:  # a NUL, half a character, or the home of nobody
        raise ConfigError(
            f"this is not a path: {error}", where=ascii(text)[:100], hint="Name a file or a directory"
        ) from None
    if not os.path.isdir(expanded) and not text.endswith("/"):  # noqa: PTH112 - false if it may not be seen
        return f"sqlite:///{quote(str(expanded), safe='/:~')}"
    start = "" if not expanded.is_absolute() else "//" if expanded.as_posix().startswith("/") else "///"
    return f"file:{start}{quote(expanded.as_posix(), safe='/:~')}"


def url_to_path(url: str) -> Path | None:
    """Return the file or directory that a `file:` or `sqlite:` URL names; None for other URLs and empty paths.

    `file:///srv/agents` is absolute and `file:agents` relative (RFC 8089). `sqlite:///agents.db` is relative and
    `sqlite:////srv/agents.db` absolute, as in SQLAlchemy.
    """
    scheme, _, rest = url.partition("?")[0].partition(":")
    if scheme == "sqlite" and rest.startswith("///"):
        path = rest[3:]
    elif scheme == "file" and not rest.startswith("//"):
        path = rest
    elif scheme == "file" and rest.startswith(("///", "//localhost/")):
        path = "/" + rest.removeprefix("//").removeprefix("localhost").lstrip("/")
        path = path[1:] if os.name == "nt" and path[2:3] == ":" else path
    else:
        return None
    return Path(unquote(path)) if path.strip("/") else None


# Compositions


def compose(kind: str, /, **parts: object) -> str:
    """Return the URL of a composition: `compose("write-behind", local="agents.db", remote="postgresql://…")`.

    Further parts are options. A name that is a keyword of Python is written with an underscore: `in_`.
    """
    if kind not in COMPOSITIONS:
        raise ConfigError(f"there is no wrapper store of kind {kind!r}", hint=suggest(kind, COMPOSITIONS))
    pairs = [(name.rstrip("_"), _text(value)) for name, value in parts.items()]
    return f"{kind}:?{urlencode(pairs, quote_via=quote, safe='/:@$,')}"


def suggest(name: str, names: Iterable[str]) -> str:
    """Return the hint for a wrong name: which is similar, and which there are."""
    from difflib import get_close_matches  # for mistakes alone

    names = list(names)
    similar = get_close_matches(name, names, 1)
    return f"{f'Did you mean {similar[0]}? ' if similar else ''}There are {', '.join(names)}"


def redacted_url(url: str) -> str:
    """Return a URL without passwords: in its address, its query, or in URLs within its query."""
    scheme, colon, rest = url.partition("://")
    if "?" in scheme or not colon:
        scheme, colon, rest = url.partition(":")
        # Not a path; of what is no URL at all, `me:password@host`, only the start is certain to be no password.
        has_user = scheme != "file" and "@" in rest.partition("?")[0]
    else:
        has_user = "@" in rest and not rest.startswith("/") and ":" in rest.partition("@")[0]
    if has_user:
        user, _, host = rest.rpartition("@")  # the last one: a password that was not quoted is removed too
        name = user.partition(":")[0] if ":" in user or colon == "://" else ""
        rest = f"{name}@{host}"
    address, mark, query = f"{scheme}{colon}{rest}".partition("?")
    pairs = [
        (name, redacted_url(value) if ":" in value else value)
        for name, value in parse_qsl(query, keep_blank_values=True)
        if not _is_secret(name)
    ]
    return f"{address}{mark if pairs else ''}{urlencode(pairs, quote_via=quote, safe='/:@$,')}"


def check_address(url: str) -> None:
    """Refuse the URL of a server if its port is not a number, or its password not quoted.

    What is wrong is not shown, because it may be a part of the password.
    """
    rest = url.partition("://")[2]
    authority = _AUTHORITY_END.split(rest, maxsplit=1)[0]
    path = rest[len(authority) :].partition("?")[0]
    if authority.count("@") > 1 or "@" in path:
        raise _address_error(url, "the password in the URL is not quoted")
    for host in authority.rpartition("@")[2].split(","):
        port = host.rpartition("]")[2].partition(":")[2]  # an IPv6 address is in brackets
        if not is_port(port or "1"):
            raise _address_error(url, "the port in the URL is not a number from 1 to 65535")


_MAX_DIGITS = 10
"""Python refuses to convert thousands of digits."""


def is_port(text: str) -> bool:
    """Return whether a text is the number of a port."""
    return text.isascii() and text.isdigit() and len(text) < _MAX_DIGITS and 0 < int(text) <= _MAX_PORT


def _address_error(url: str, what: str) -> ConfigError:
    hint = "An address is user:password@host:port; in a password, @ : / ? # % are written as %40 %3A %2F %3F %23 %25"
    return ConfigError(what, where=redacted_url(url), hint=hint)


# Options


def split_options(url: str, known: Mapping[str, object], overrides: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return a URL without the options of Holdfast, and these options: from the query, or from `overrides`.

    The rest of the query stays in the URL, for the driver. Unknown names in `overrides` are refused.
    """
    unknown = sorted(overrides.keys() - known.keys())
    if unknown:
        raise ConfigError(
            f"a {urlsplit(url).scheme}:// store does not accept the option {unknown[0]!r}",
            where=redacted_url(url),
            hint=f"It takes {', '.join(sorted(known))}" if known else "It takes none",
        )
    address, mark, query = url.partition("?")
    pairs = parse_qsl(query, keep_blank_values=True)
    options = {name: value for name, value in pairs if name in known}
    rest = urlencode([pair for pair in pairs if pair[0] not in known], quote_via=quote)
    return (f"{address}{mark}{rest}" if rest else address), {**options, **overrides}


def parse_int(url: str, name: str, value: object, least: int = 0, most: int = 1 << 40) -> int:
    try:
        number = least - 1 if isinstance(value, bool) else int(str(value))
    except ValueError:
        number = least - 1
    if not least <= number <= most:
        raise invalid_option(url, name, value, f"a whole number from {least} to {most}")
    return number


def parse_bool(url: str, name: str, value: object) -> bool:
    words = {"true": True, "1": True, "on": True, "yes": True, "false": False, "0": False, "off": False, "no": False}
    parsed = value if isinstance(value, bool) else words.get(str(value).lower())
    if parsed is None:
        raise invalid_option(url, name, value, "true or false")
    return parsed


def parse_mode(url: str, name: str, value: object) -> int:
    """Return the permissions of a file: `0o660`, or "660" in a URL."""
    text = format(value, "o") if type(value) is int else str(value)
    if not re.fullmatch("0?[67][0-7]{2}", text) or int(text, 8) & ~0o666:
        raise invalid_option(url, name, value, "permissions with those of the owner, such as 660")
    return int(text, 8)


def parse_choice(url: str, name: str, value: object, choices: tuple[str, ...]) -> str:
    if value not in choices:
        raise invalid_option(url, name, value, f"one of {', '.join(choices)}")
    return str(value)


def parse_duration(url: str, name: str, value: object, least: float = 0.0, most: float = 1e9) -> float:
    """Return the seconds of an option that is a duration, such as `90s` or `15m`. A number is of seconds, also as
    text."""
    try:
        seconds = float(value) if isinstance(value, str) and _NUMBER.fullmatch(value) else parse_seconds(value)
    except InvalidError:
        seconds = math.nan
    if not least <= seconds <= most:
        hint = f"a duration from {least:g} to {most:g} seconds: a number of seconds, or {DURATION_FORMS}"
        raise invalid_option(url, name, value, hint)
    return seconds


def invalid_option(url: str, name: str, value: object, what: str) -> ConfigError:
    """Return the error for an option with a wrong value."""
    return ConfigError(f"{name} cannot be {value!r}", where=redacted_url(url), hint=f"It is {what}")


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _is_secret(name: str) -> bool:
    return any(part in name.lower() for part in ("pass", "pwd", "secret", "token", "key", "credential"))


def store_parts(url: str) -> Iterator[str]:
    """Yield the URLs of the stores that a composition consists of; a plain store is its own part."""
    kind, _, rest = url.partition(":")
    if kind not in COMPOSITIONS:
        yield url if is_url(url) else path_to_url(url)
        return
    for name, value in parse_qsl(rest.partition("?")[2], keep_blank_values=True):
        if name in COMPOSITIONS[kind] and value:
            yield from store_parts(value)
