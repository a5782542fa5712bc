"""The URLs of stores that are made of others: `cache:?store=sqlite:///agents.db&max_age=5`.

Each part is the URL of a store, percent-encoded where it holds `&`, `?`, `#`, `%` or `+`; `compose` does that. A part
may be made of others in turn.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, quote, unquote, urlencode

from holdfast.backends.interface import Backend
from holdfast.backends.registry import backend_for
from holdfast.backends.urls import without_password
from holdfast.errors import ConfigError

COMPOSITIONS: Mapping[str, tuple[str, ...]] = {
    "retry": ("store",),
    "readonly": ("store",),
    "metrics": ("store",),
    "cache": ("store", "in"),
    "behind": ("local", "remote"),
    "mirror": ("local", "remote"),
    "tiers": ("hot", "cold"),
}
"""The kinds of stores that are made of others, and what of their parts are stores."""

_AGES = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def compose(kind: str, /, **parts: object) -> str:
    """The URL of a store made of others: `compose("behind", local="sqlite:///agents.db", remote="postgresql://…")`.

    Further parts are options. A name that is a word of Python is written with an underscore: `in_`.
    """
    if kind not in COMPOSITIONS:
        raise ConfigError(f"{kind!r} is no kind of composition", hint=f"There are {', '.join(COMPOSITIONS)}")
    pairs = [(name.rstrip("_"), _text(value)) for name, value in parts.items()]
    return f"{kind}:?{urlencode(pairs, quote_via=quote, safe='/:@$,')}"


def parts_of(url: str, kind: str, options: tuple[str, ...], given: Mapping[str, Any]) -> dict[str, Any]:
    """The parts and options of a composition: from the query, or given, which counts for more."""
    address, _, query = url.partition("?")
    if address not in (f"{kind}:", f"{kind}://"):
        raise ConfigError(f"this is no URL of a store of the kind {kind}", where=shown(url), hint=f"Write {kind}:?…")
    stores = COMPOSITIONS[kind]
    found: dict[str, Any] = dict(parse_qsl(query, keep_blank_values=True))
    found.update({name.rstrip("_"): value for name, value in given.items()})
    unknown = sorted(found.keys() - {*stores, *options})
    if unknown:
        raise ConfigError(
            f"a store of the kind {kind} takes no option {unknown[0]!r}",
            where=shown(url),
            hint=f"It takes {', '.join([*stores, *options])}. In a part's URL, & is written %26, and ? %3F",
        )
    for name in stores:
        if name != "in" and not found.get(name):
            raise ConfigError(f"a store of the kind {kind} needs {name!r}", where=shown(url), hint=f"{name} is a URL")
    return found


async def open_parts(*urls: str, tenant: str | None = None) -> list[Backend]:
    """The stores that some URLs name: all of them open, or none. Those that take a tenant are told."""
    opened: list[Backend] = []
    try:
        for url in urls:
            kind = backend_for(url)
            options = {"tenant": tenant} if kind.takes_tenant and tenant is not None else {}
            opened.append(await kind.open(url, **options))
    except BaseException:
        for backend in reversed(opened):
            await backend.close()
        raise
    return opened


def shown(url: str) -> str:
    """A URL as it may be shown: without passwords, those in its parts among them."""
    kind, _, rest = url.partition(":")
    if kind not in COMPOSITIONS:
        return without_password(url)
    pairs = parse_qsl(rest.partition("?")[2], keep_blank_values=True)
    return compose(kind, **{name: shown(value) if name in COMPOSITIONS[kind] else value for name, value in pairs})


def age(url: str, name: str, value: object) -> float:
    """An option that is a span of time: seconds, or `90s`, `15m`, `12h`, `30d`."""
    found = re.fullmatch(r"(\d{1,9}(?:\.\d{1,9})?)([smhd]?)", str(value))
    if found is None or isinstance(value, bool):
        raise ConfigError(
            f"{name} cannot be {value!r}", where=shown(url), hint="It is a time such as 90s, 15m, 12h or 30d"
        )
    return float(found[1]) * _AGES[found[2] or "s"]


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def store_parts(url: str) -> Iterator[str]:
    """Yield the URLs of the stores that a store consists of; its own, if it is no composition."""
    kind, _, rest = url.partition(":")
    if kind not in COMPOSITIONS:
        yield url
        return
    for name, value in parse_qsl(rest.partition("?")[2], keep_blank_values=True):
        if name in COMPOSITIONS[kind] and value:
            yield from store_parts(value)


def store_path(url: str) -> Path | None:
    """Return the file or directory of a store, if it has one."""
    scheme, colon, rest = url.partition(":///")
    return Path(unquote(rest.partition("?")[0])) if colon and scheme in ("sqlite", "file") else None
