"""Find the location of a snapshot by its path or URL."""

from __future__ import annotations

import io
import os
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any, TypeAlias

from holdfast.agents.snapshots.locations import SUFFIX, FileObject, Location, PlainDirectory, SnapshotStorage
from holdfast.backends.urls import redacted_url, split_options, url_to_path
from holdfast.errors import ConfigError, InvalidError

Target: TypeAlias = "str | os.PathLike[str]"
"""A path, or a URL: `file:///srv/agent.hfsnap`, `s3://bucket/agent.hfsnap`, `gs://…`, `az://…`."""

FileTarget: TypeAlias = "Target | IO[bytes]"
"""A path, a URL, or a binary file object to write to."""

FileSource: TypeAlias = "Target | IO[bytes] | bytes | bytearray | memoryview"
"""A path, a URL, a binary file object to read from, or the bytes of a snapshot."""

_BUCKETS = ("s3", "gs", "az")


def locate(target: FileSource, options: Mapping[str, Any], *, require_suffix: bool = False) -> Location:
    """Return the location that a path or URL names, or that a file object, or bytes to read, are."""
    if isinstance(target, bytes | bytearray | memoryview) and not require_suffix:
        target = io.BytesIO(target)
    if not isinstance(target, str | os.PathLike) and (hasattr(target, "read") or hasattr(target, "write")):
        split_options("file:", {}, options)  # refuses them
        name = getattr(target, "name", "")
        return Location(FileObject(target), name if isinstance(name, str) and name else "file object")
    text = _text(target)
    scheme = _scheme(text) if isinstance(target, str) else ""
    last = text.partition("?")[0] if scheme else text
    if require_suffix and (not last.endswith(SUFFIX) or last.endswith(f"/{SUFFIX}") or last == SUFFIX):
        raise InvalidError(
            f"the name of a snapshot ends in {SUFFIX}", where=redacted_url(text), hint=f"For example agent{SUFFIX}"
        )
    if scheme in _BUCKETS:
        _require_driver(text)
        from holdfast.agents.snapshots.buckets import SnapshotBucket, split

        url, name = split(text)
        return Location(SnapshotBucket(url, options), name)
    path = _path(text, scheme, options)
    return Location(PlainDirectory(path.parent), path.name)


def locate_folder(target: Target, options: Mapping[str, Any]) -> SnapshotStorage:
    """Return the directory, or the prefix in a bucket, that a path or URL names."""
    text = _text(target)
    scheme = _scheme(text) if isinstance(target, str) else ""
    if scheme in _BUCKETS:
        _require_driver(text)
        from holdfast.agents.snapshots.buckets import SnapshotBucket

        return SnapshotBucket(text, options)
    return PlainDirectory(_path(text, scheme, options))


def _require_driver(url: str) -> None:
    from holdfast.backends.registry import backend_for

    backend_for(url)  # its error says what to install


def _text(target: object) -> str:
    value: Any = target
    text = os.fspath(value) if isinstance(value, str | os.PathLike) else None
    if not isinstance(text, str) or not text:
        raise InvalidError(f"{target!r} is neither a path nor a URL", hint=f"agent{SUFFIX}, or s3://bucket/…")
    if "\0" in text:
        raise InvalidError("there is a NUL in the name", where=repr(text)[:100])
    return text


def _scheme(text: str) -> str:
    scheme, colon, _ = text.partition("://")
    if text.startswith("file:"):
        return "file"
    if not colon or "/" in scheme:
        return ""
    if scheme not in _BUCKETS:
        raise ConfigError(
            f"snapshots cannot be stored at {scheme}://",
            where=redacted_url(text),
            hint="Name a file, or s3://bucket/…, gs://bucket/…, az://container/…",
        )
    return scheme


def _path(text: str, scheme: str, options: Mapping[str, Any]) -> Path:
    if options:
        split_options("file:", {}, options)  # refuses them
    if not scheme:
        return Path(text)
    path = url_to_path(text)
    if path is None or "?" in text:
        raise ConfigError(
            "this names no file",
            where=redacted_url(text),
            hint=f"file:agent{SUFFIX} is a file here, file:///srv/agent{SUFFIX} one anywhere",
        )
    if "\0" in str(path):
        raise InvalidError("there is a NUL in the name", where=repr(text)[:100])
    return path
