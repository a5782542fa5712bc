"""Every kind of store, each at a fresh place, as a URL that holds all options. For tests that run on all of them."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import pytest

from holdfast.backends.urls import compose
from tests import servers

LOCAL = ("memory", "sqlite", "file")
REMOTE = ("postgres", "pgbouncer", "mongodb", "redis", "s3")
KINDS = (*LOCAL, *REMOTE)
EMULATED = ("azure", "gcs")
"""Services that are not to be had, as emulators serve them. The code on top is that of `s3`, and tested there: on these
run the tests of stores, and not those of features."""
DURABLE = tuple(kind for kind in KINDS if kind != "memory")
COMPOSED = ("retry", "cache", "write-behind", "mirror", "tiered")
"""Stores made of others; on which, `place` says."""


@cache
def place(kind: str, folder: Path) -> str:
    """The URL of a store of a kind. For the same folder it is the same store."""
    match kind:
        case "memory":
            return "memory://"
        case "sqlite":
            return f"sqlite:///{folder}/store.db"
        case "file":
            return f"file://{folder}/files"
        case "postgres":
            return servers.postgres()
        case "pgbouncer":
            return servers.pgbouncer()
        case "mongodb":
            return servers.mongodb()
        case "redis":
            return servers.redis()
        case "s3":
            return with_options(*servers.s3())
        case "moto":
            return with_options(*servers.moto())
        case "azure":
            return with_options(*servers.azure())
        case "gcs":
            return with_options(*servers.gcs())
        case "retry":
            return compose(kind, store=place("sqlite", folder))
        case "cache":
            return compose(kind, store=place("postgres", folder), in_=place("redis", folder))
        case "write-behind":
            return compose(kind, local=place("sqlite", folder), remote=place("postgres", folder))
        case "mirror":
            return compose(kind, local=place("sqlite", folder), remote=place("mongodb", folder), patience=30)
        case "tiered":
            return compose(kind, hot=place("postgres", folder), cold=place("s3", folder), after=0, keep=0)
    pytest.fail(f"there is no kind {kind!r} of store")


def with_options(url: str, options: dict[str, Any]) -> str:
    """A URL that says by itself what was given beside it: for programs that take nothing else."""
    if not options:
        return url
    return f"{url}{'&' if '?' in url else '?'}{urlencode(options, quote_via=quote, safe=':/')}"
