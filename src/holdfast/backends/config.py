"""Stores by name: `holdfast.toml`, and the store to open when none is named.

::

    [stores.main]
    kind = "write-behind"
    local = "agents.db"
    remote = "stores.archive"                      # another store of this file, a URL or a path

    [stores.archive]
    url = "postgresql://agents:${PASSWORD}@db/agents"
    schema = "agents"                              # further keys are options
    encryption = "file:/etc/holdfast.key"          # where the key of an encrypted store is
    redaction = "redact:all"                       # what is done with secrets in what is saved

    [prices]                                       # of a million tokens, for the usage of models
    "gpt-5" = { input = 1.25, cached = 0.125, output = 10 }

`stores.main` is then the name of the first. The file is the one that `$HOLDFAST_CONFIG` names, or else the first
`holdfast.toml` in the current directory and those above it. `${NAME}` is replaced by an environment variable, so that
no password has to be in the file; within a URL, its value is percent-encoded.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from holdfast.backends.urls import COMPOSITIONS, compose, is_url, path_to_url, suggest
from holdfast.errors import ConfigError

FILE = "holdfast.toml"
PREFIX = "stores."
DEFAULT = "stores.default"
ENCRYPTION = "encryption"
REDACTION = "redaction"

_APART = (ENCRYPTION, REDACTION)
"""Entries of a store that are no options of its backend."""

_VARIABLE = re.compile(r"\$\{([^}]*)\}")


def store_url(name: str | os.PathLike[str] | None = None) -> str:
    """Return the URL of a store, by a URL, a path, or its name in the file (`stores.main`).

    None stands for `$HOLDFAST_STORE`, which may be any of these, or else for the store `default` of the file.
    """
    store = os.environ.get("HOLDFAST_STORE") if name is None else name
    if store or name is not None:
        url = to_url(store or "")
        return _by_name(url) if is_name(url) else url
    path = find_file()
    if path is None:
        raise ConfigError(
            "no store was given",
            hint=f"Open a path such as agents.db or a URL, set HOLDFAST_STORE, or write [{DEFAULT}] into a {FILE}",
            code="no-store-named",
        )
    return _StoreTables(path).url(DEFAULT)


def encryption_settings(name: str | os.PathLike[str] | None = None) -> dict[str, Any] | None:
    """Return how a store is encrypted according to `$HOLDFAST_ENCRYPTION`, or the entry `encryption` of the file, by
    the name of the store as for `store_url`. None if neither says that it is."""
    if text := os.environ.get("HOLDFAST_ENCRYPTION"):
        return {"keys": text}
    found = _tables_of(name)
    return None if found is None else found[0].encryption(found[1])


def redaction_settings(name: str | os.PathLike[str] | None = None) -> object:
    """Return what is done with sensitive data in a store according to `$HOLDFAST_REDACTION`, or the entry `redaction`
    of the file, by the name of the store as for `store_url`. None if neither says anything."""
    if text := os.environ.get("HOLDFAST_REDACTION"):
        return text.split()
    found = _tables_of(name)
    return None if found is None else found[0].redaction(found[1])


def _tables_of(name: str | os.PathLike[str] | None) -> tuple[_StoreTables, str] | None:
    """Return the file that has a store, and the name of that; None if it is not one of a file."""
    store = os.environ.get("HOLDFAST_STORE") if name is None else name
    if store is None:
        store = DEFAULT
    path = find_file() if isinstance(store, str) and is_name(store) else None
    return None if path is None else (_StoreTables(path), str(store))


def alert_settings() -> tuple[list[str], list[list[str]]]:
    """Return where alerts are sent according to the file: webhooks, and commands with their arguments."""
    path = find_file()
    return ([], []) if path is None or not path.is_file() else _StoreTables(path).alerts()


def price_settings() -> dict[str, Any]:
    """Return the prices of models according to the file."""
    path = find_file()
    return {} if path is None or not path.is_file() else _StoreTables(path).prices()


def _is_texts(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(each, str) for each in value)


def is_name(name: str) -> bool:
    """Return whether this is the name of a store in the file."""
    return name.startswith(PREFIX) and ":" not in name


def to_url(store: str | os.PathLike[str]) -> str:
    """Return the URL of a store at a path. URLs and names are returned unchanged."""
    text: object = os.fspath(store) if isinstance(store, os.PathLike) else store
    if not isinstance(text, str) or not text:
        raise ConfigError(
            f"a store must be given as a URL or a path, not {store!r}",
            hint="For example agents.db, or sqlite:///agents.db",
        )
    return text if is_name(text) or is_url(text) else path_to_url(text)


def find_file() -> Path | None:
    """Return the path of the configuration file, if there is one."""
    configured = os.environ.get("HOLDFAST_CONFIG")
    if configured:
        return Path(configured)
    here = Path.cwd()
    return next((path for folder in (here, *here.parents) if (path := folder / FILE).is_file()), None)


def _by_name(name: str) -> str:
    path = find_file()
    if path is None:
        raise ConfigError(
            f"the store {name} must be defined in {FILE}, but no such file was found",
            where=str(Path.cwd()),
            hint="Write one in this directory or above it, or name it in HOLDFAST_CONFIG",
        )
    return _StoreTables(path).url(name)


class _StoreTables:
    """The tables of a configuration file, one for each store."""

    def __init__(self, path: Path) -> None:
        import tomllib  # not needed with a URL

        self._path = path
        try:
            document = tomllib.loads(path.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
            raise ConfigError(f"cannot be read: {error}", where=str(path)) from error
        stores = document.get("stores", {})
        if not isinstance(stores, dict):
            raise self._error("stores must be a table", "Write [stores.main]")
        self._stores: dict[str, Any] = stores
        self._alerts = document.get("alerts", {})
        self._prices = document.get("prices", {})

    def url(self, name: str, containing: tuple[str, ...] = ()) -> str:
        """Return the URL of a store that is part of others, the outermost first."""
        if name in containing:
            raise self._error(f"{name} contains itself: {' of '.join((*containing, name))}")
        table = self._stores.get(name.removeprefix(PREFIX))
        if not isinstance(table, dict):
            names = ", ".join(f"{PREFIX}{each}" for each in sorted(self._stores)) or "none"
            raise self._error(f"there is no [{name}]", f"There are: {names}")
        values = {key: self._value(name, key, value) for key, value in table.items() if key not in _APART}
        kind = values.pop("kind", None)
        if kind is None:
            return self._plain(name, values)
        if kind not in COMPOSITIONS:
            raise self._error(f"{name} cannot be of the kind {kind!r}", suggest(kind, COMPOSITIONS))
        for part in COMPOSITIONS[kind]:
            value = values.get(part)
            if isinstance(value, str) and is_name(value):
                values[part] = self.url(value, (*containing, name))
        return compose(kind, **values)

    def encryption(self, name: str) -> dict[str, Any] | None:
        """Return how a store is encrypted: where its key is, as text, or a table of settings."""
        table = self._stores.get(name.removeprefix(PREFIX))
        value = table.get(ENCRYPTION) if isinstance(table, dict) else None
        if value is None:
            return None
        if isinstance(value, dict):
            return {key: self._value(name, key, each) if isinstance(each, str) else each for key, each in value.items()}
        return {"keys": self._value(name, ENCRYPTION, value)}

    def redaction(self, name: str) -> object:
        """Return what is done with sensitive data in a store."""
        table = self._stores.get(name.removeprefix(PREFIX))
        return table.get(REDACTION) if isinstance(table, dict) else None

    def alerts(self) -> tuple[list[str], list[list[str]]]:
        """Return the webhooks and the commands of the table `alerts`."""
        table = self._alerts
        known = isinstance(table, dict) and table.keys() <= {"webhooks", "commands"}
        webhooks, commands = (table.get(name, []) for name in ("webhooks", "commands")) if known else ((), ())
        if not (known and _is_texts(webhooks) and isinstance(commands, list) and all(map(_is_texts, commands))):
            raise self._error(
                "[alerts] may contain only webhooks, a list of URLs, and commands, a list of lists of strings",
                'Write webhooks = ["https://example.org/alerts"], or commands = [["notify", "ops"]]',
            )
        return (
            [self._value("alerts", "webhooks", each) for each in webhooks],
            [[self._value("alerts", "commands", text) for text in each] for each in commands],
        )

    def prices(self) -> dict[str, Any]:
        """Return the table `prices`: a table for each model."""
        table = self._prices
        if not (isinstance(table, dict) and all(isinstance(each, dict) for each in table.values())):
            raise self._error(
                "[prices] may contain only models, each with what a million tokens cost",
                'Write "gpt-5" = { input = 1.25, cached = 0.125, output = 10 }',
            )
        return table

    def _plain(self, name: str, values: dict[str, str]) -> str:
        url = values.pop("url", None)
        if not url:
            raise self._error(f"{name} has neither a url nor a kind", 'Write url = "sqlite:///agents.db"')
        if is_name(url):
            raise self._error(f"{name} is a URL, not the name of another store", "Open the other one")
        url = to_url(url)
        if not values:
            return url
        return f"{url}{'&' if '?' in url else '?'}{urlencode(values, quote_via=quote)}"

    def _value(self, name: str, key: str, value: object) -> str:
        if isinstance(value, bool):
            return str(value).lower()
        if isinstance(value, int | float):
            return str(value)
        if not isinstance(value, str):
            raise self._error(f"{name}.{key} must be a string, a number, or true or false")
        return _VARIABLE.sub(lambda match: self._variable(f"{name}.{key}", match), value)

    def _variable(self, where: str, match: re.Match[str]) -> str:
        value = os.environ.get(match[1])
        if value is None:
            raise self._error(f"{where} needs the environment variable {match[1]}, which is not set")
        before, after = match.string[: match.start()], match.string[match.end() :]
        if "://" not in before:
            return value
        # A password may have any character. Elsewhere in a URL, slashes stay.
        return quote(value, safe="" if "@" in after.partition("/")[0] else "/")

    def _error(self, what: str, hint: str = "") -> ConfigError:
        return ConfigError(what, where=str(self._path), hint=hint)
