"""What the URL and the options of a PostgreSQL store say."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from holdfast.backends.async_backend import TIMEOUT
from holdfast.backends.urls import parse_duration, parse_int, redacted_url, split_options
from holdfast.errors import ConfigError

SCHEMES = ("postgresql", "postgres")
SCHEMA = "holdfast"
_POOL_SIZE = 8
_LONGEST_NAME = 63
_SCHEMA = re.compile(r"[^$\x00-\x1f]+")

# What a server that is gone without a word needs to be noticed, in seconds; and in milliseconds.
_PATIENCE = {
    "connect_timeout": "10",
    "keepalives_idle": "30",
    "keepalives_interval": "10",
    "keepalives_count": "3",
    "tcp_user_timeout": "30000",
}


class PostgresOptions(NamedTuple):
    """Where a store is, and how to use it."""

    url: str
    """For people."""
    conninfo: str
    """For libpq."""
    schema: str
    timeout: float
    pool_size: int
    tenant: str | None
    """Whose rows are to be seen, where row-level security is on."""


_OPTIONS = {"schema": SCHEMA, "timeout": TIMEOUT, "pool_size": _POOL_SIZE, "tenant": None}


def settings(url: str, given: Mapping[str, Any]) -> PostgresOptions:
    """Read a URL and options."""
    scheme, _, _ = url.partition("://")
    shown = redacted_url(url)
    if scheme not in SCHEMES or "://" not in url:
        raise ConfigError("this names no PostgreSQL database", where=shown, hint="Open postgresql://user@host/database")
    address, mark, query = url.partition("?")
    # libpq takes a plus for a plus, and not for a blank.
    rest, options = split_options(f"{address}{mark}{query.replace('+', '%2B')}", _OPTIONS, given)
    options = _OPTIONS | options
    schema = options["schema"]
    if not isinstance(schema, str) or not _SCHEMA.fullmatch(schema) or len(schema.encode()) > _LONGEST_NAME:
        raise ConfigError(
            f"schema cannot be {schema!r}", where=shown, hint=f"It is a name of up to {_LONGEST_NAME} bytes, without $"
        )
    tenant = options["tenant"]
    if tenant is not None and not isinstance(tenant, str):
        raise ConfigError(f"tenant cannot be {tenant!r}", where=shown, hint="It is the name of one")
    return PostgresOptions(
        shown,
        conninfo(rest),
        schema,
        parse_duration(url, "timeout", options["timeout"], 0.1, 86_400),
        parse_int(url, "pool_size", options["pool_size"], 1, 1000),
        tenant,
    )


def conninfo(url: str) -> str:
    """What libpq is told: what the URL says, and in what it leaves open, what suits us."""
    try:
        said = conninfo_to_dict(url)
    except psycopg.Error as error:
        raise ConfigError(
            f"libpq cannot read the URL: {error}".strip(),
            where=redacted_url(url),
            hint="It looks like postgresql://user@host:5432/database?sslmode=require",
        ) from error
    more = {"fallback_application_name": "holdfast", "target_session_attrs": "read-write"}
    if "service" not in said and "PGSERVICE" not in os.environ:  # whose file may say these things too
        more |= _PATIENCE
    for name, variable in (("connect_timeout", "PGCONNECT_TIMEOUT"), ("target_session_attrs", "PGTARGETSESSIONATTRS")):
        if variable in os.environ:
            more.pop(name, None)
    return make_conninfo(**{name: str(value) for name, value in {**more, **said}.items() if value is not None})
