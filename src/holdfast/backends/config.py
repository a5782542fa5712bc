"""Stores by name: `holdfast.toml`, and what to open when nothing is named.

::

    [stores.main]
    kind = "behind"
    local = "sqlite:///agents.db"
    remote = "stores.archive"                      # another store of this file, or a URL

    [stores.archive]
    url = "postgresql://agents:${PASSWORD}@db/agents"
    schema = "agents"                              # further keys are options

`stores.main` is then the name of the first. The file is the one that `$HOLDFAST_CONFIG` names, or else the first
`holdfast.toml` in the current directory and those above it. `${NAME}` stands for a variable of the environment, so that
no password has to be in the file; within a URL, its value is percent-encoded.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from holdfast.backends.wrappers.composite_urls import COMPOSITIONS, compose
from holdfast.errors import ConfigError

FILE = "holdfast.toml"
PREFIX = "stores."
DEFAULT = "stores.default"

_WINDOWS_DRIVE = 1

_VARIABLE = re.compile(r"\$\{([^}]*)\}")


def resolve(name: str | os.PathLike[str] | None = None) -> str:
    """Find the URL of a store that is given by a URL, a path, or its name in the file (`stores.main`).

    Without any it is `$HOLDFAST_STORE`, which may be each of these; else the store `default` of the file.
    """
    given = os.environ.get("HOLDFAST_STORE") if name is None else name
    if given or name is not None:
        url = of_path(given or "")
        return _by_name(url) if is_name(url) else url
    path = find_file()
    if path is None:
        raise ConfigError(
            "no store is named",
            hint=f"Open a URL such as sqlite:///agents.db, set HOLDFAST_STORE, or write [{DEFAULT}] into a {FILE}",
            code="no-store-named",
        )
    return _Named(path).url(DEFAULT)


def is_name(name: str) -> bool:
    """Whether this is the name of a store in the file, and no URL."""
    return name.startswith(PREFIX) and ":" not in name


def of_path(given: str | os.PathLike[str]) -> str:
    """The URL for a path to a file or directory; a URL, or the name of a store, stays as it is."""
    text: object = os.fspath(given) if isinstance(given, os.PathLike) else given
    if not isinstance(text, str) or not text:
        raise ConfigError(
            f"a store is named by a URL or a path, not by {given!r}",
            hint="For example agents.db, or sqlite:///agents.db",
        )
    scheme, colon, _ = text.partition(":")
    if is_name(text) or (colon and len(scheme) > _WINDOWS_DRIVE):
        return text
    path = Path(text).expanduser()
    kind = "file" if path.is_dir() or text.endswith("/") else "sqlite"
    # A path that starts at the root has four slashes in a URL: `sqlite:////var/lib/agents.db`.
    return f"{kind}:///{quote(str(path), safe='/:~')}"


def find_file() -> Path | None:
    """The file that says which stores there are, if there is one."""
    given = os.environ.get("HOLDFAST_CONFIG")
    if given:
        return Path(given)
    here = Path.cwd()
    return next((path for folder in (here, *here.parents) if (path := folder / FILE).is_file()), None)


def _by_name(name: str) -> str:
    path = find_file()
    if path is None:
        raise ConfigError(
            f"{name} is to be found in {FILE}, and there is none here",
            where=str(Path.cwd()),
            hint="Write one in this directory or above it, or name it in HOLDFAST_CONFIG",
        )
    return _Named(path).url(name)


class _Named:
    """The stores of a file."""

    def __init__(self, path: Path) -> None:
        import tomllib  # not needed by those who give a URL

        self._path = path
        try:
            found = tomllib.loads(path.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
            raise ConfigError(f"cannot be read: {error}", where=str(path)) from error
        stores = found.get("stores", {})
        if not isinstance(stores, dict):
            raise self._wrong("stores is a table", "Write [stores.main]")
        self._stores: dict[str, Any] = stores

    def url(self, name: str, asked: tuple[str, ...] = ()) -> str:
        """The URL of a store."""
        if name in asked:
            raise self._wrong(f"{name} is made of itself: {' of '.join((*asked, name))}")
        table = self._stores.get(name.removeprefix(PREFIX))
        if not isinstance(table, dict):
            known = ", ".join(f"{PREFIX}{each}" for each in sorted(self._stores)) or "none"
            raise self._wrong(f"there is no [{name}]", f"There are: {known}")
        values = {key: self._value(name, key, value) for key, value in table.items()}
        kind = values.pop("kind", None)
        if kind is None:
            return self._plain(name, values)
        if kind not in COMPOSITIONS:
            raise self._wrong(f"{name} cannot be of the kind {kind!r}", f"There are {', '.join(COMPOSITIONS)}")
        for part in COMPOSITIONS[kind]:
            value = values.get(part)
            if isinstance(value, str) and is_name(value):
                values[part] = self.url(value, (*asked, name))
        return compose(kind, **values)

    def _plain(self, name: str, values: dict[str, str]) -> str:
        url = values.pop("url", None)
        if not url:
            raise self._wrong(f"{name} has neither a url nor a kind", 'Write url = "sqlite:///agents.db"')
        if is_name(url):
            raise self._wrong(f"{name} is a URL, not the name of another store", "Open the other one")
        if not values:
            return url
        return f"{url}{'&' if '?' in url else '?'}{urlencode(values, quote_via=quote)}"

    def _value(self, name: str, key: str, value: object) -> str:
        if isinstance(value, bool):
            return str(value).lower()
        if isinstance(value, int | float):
            return str(value)
        if not isinstance(value, str):
            raise self._wrong(f"{name}.{key} is text, a number, or true or false")
        return _VARIABLE.sub(lambda found: self._variable(f"{name}.{key}", found), value)

    def _variable(self, where: str, found: re.Match[str]) -> str:
        value = os.environ.get(found[1])
        if value is None:
            raise self._wrong(f"{where} needs the variable {found[1]} of the environment, and it is not set")
        before, after = found.string[: found.start()], found.string[found.end() :]
        if "://" not in before:
            return value
        # In a URL: what has a meaning there is encoded; a password may have any character.
        return quote(value, safe="" if "@" in after.partition("/")[0] else "/")

    def _wrong(self, what: str, hint: str = "") -> ConfigError:
        return ConfigError(what, where=str(self._path), hint=hint)
