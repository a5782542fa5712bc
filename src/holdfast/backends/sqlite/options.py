"""The options of a SQLite store, from its URL and from arguments."""

from __future__ import annotations

from typing import Any
from urllib.parse import parse_qsl

from holdfast.backends.fsutil import PRIVATE
from holdfast.backends.sqlite.database_file import FileOptions
from holdfast.backends.urls import parse_bool, parse_choice, parse_duration, parse_mode, redacted_url, url_to_path
from holdfast.errors import ConfigError


def parse_options(url: str, options: dict[str, Any]) -> FileOptions:
    """Return the options of a store. `ConfigError` if one is wrong or unknown."""
    path = url_to_path(url)
    if path is None or not url.startswith("sqlite:"):
        raise ConfigError(
            "this names no SQLite file",
            where=redacted_url(url),
            hint="Write sqlite:///agents.db for a file in the current directory, sqlite:////var/agents.db for another",
        )
    if "\0" in str(path):
        raise ConfigError("the path of a file has no NUL in it", where=repr(redacted_url(url)))
    if str(path) == ":memory:":
        raise ConfigError(
            "a SQLite store is a file", where=redacted_url(url), hint="For a store in memory open memory://"
        )
    values = {**dict(parse_qsl(url.partition("?")[2], keep_blank_values=True)), **options}
    vfs: str | None = options.get("vfs")
    known = {"synchronous", "busy_timeout", "read_only", "file_mode"} | ({"vfs", "exclusive"} & options.keys())
    unknown = sorted(values.keys() - known)
    if unknown:
        raise ConfigError(
            f"a SQLite store takes no option {unknown[0]!r}",
            where=redacted_url(url),
            hint="It takes synchronous, busy_timeout, read_only and file_mode",
        )
    levels = ("full", "normal") if vfs is None else ("full", "normal", "off")
    synchronous = parse_choice(url, "synchronous", values.get("synchronous", "full"), levels)
    busy_timeout = parse_duration(url, "busy_timeout", values.get("busy_timeout", 60))
    # In a VFS of its own a name is not a path here, and stays as it is.
    absolute = str(path if vfs is not None else path.resolve())
    exclusive = bool(values.get("exclusive", vfs is not None))
    read_only = parse_bool(url, "read_only", values.get("read_only", False))
    file_mode = parse_mode(url, "file_mode", values.get("file_mode", PRIVATE))
    return FileOptions(url, absolute, synchronous, busy_timeout, vfs, exclusive, read_only, file_mode=file_mode)
