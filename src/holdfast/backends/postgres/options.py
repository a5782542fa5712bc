"""The URL and the options of a PostgreSQL store."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from holdfast.backends.async_backend import TIMEOUT
from holdfast.backends.urls import (
    check_address,
    invalid_option,
    is_port,
    parse_duration,
    parse_int,
    redacted_url,
    split_options,
)
from holdfast.errors import ConfigError

SCHEMES = ("postgresql", "postgres")
SCHEMA = "holdfast"
_POOL_SIZE = 8
_LONGEST_NAME = 63
_SCHEMA = re.compile(r"[^$\x00-\x1f]+")

# How soon a server that vanished without closing the connection is noticed: seconds, the last one milliseconds.
_TIMEOUTS = {
    "connect_timeout": "10",
    "keepalives_idle": "30",
    "keepalives_interval": "10",
    "keepalives_count": "3",
    "tcp_user_timeout": "30000",
}


class PostgresOptions(NamedTuple):
    """The options of a store."""

    url: str
    """Without the password."""
    conninfo: str
    """The connection string for libpq."""
    schema: str
    timeout: float
    connect_timeout: float
    pool_size: int
    tenant: str | None
    """Whose rows are visible, where row-level security is on."""
    read_from: PostgresOptions | None
    """How to connect to a standby that answers reads; None if there is none."""
    max_lag: float
    """How old what the standby answers may be, in seconds."""


_OPTIONS = {
    "schema": SCHEMA,
    "timeout": TIMEOUT,
    "connect_timeout": 0,
    "pool_size": _POOL_SIZE,
    "tenant": None,
    "read_from": None,
    "max_lag": 10,
}


def read_options(url: str, arguments: Mapping[str, Any]) -> PostgresOptions:
    """Read the options from a URL and from the arguments of `open`, which take precedence."""
    scheme, _, _ = url.partition("://")
    where = redacted_url(url)
    if scheme not in SCHEMES or "://" not in url:
        raise ConfigError(
            "the URL does not name a PostgreSQL database", where=where, hint="Open postgresql://user@host/database"
        )
    check_address(url)
    address, mark, query = url.partition("?")
    # To libpq, a plus is a plus and not a blank.
    rest, options = split_options(f"{address}{mark}{query.replace('+', '%2B')}", _OPTIONS, arguments)
    options = _OPTIONS | options
    schema = options["schema"]
    if not isinstance(schema, str) or not _SCHEMA.fullmatch(schema) or len(schema.encode()) > _LONGEST_NAME:
        raise invalid_option(url, "schema", schema, f"a name of up to {_LONGEST_NAME} bytes, without $")
    tenant = options["tenant"]
    if tenant is not None and not isinstance(tenant, str):
        raise invalid_option(url, "tenant", tenant, "a name")
    read = PostgresOptions(
        where,
        build_conninfo(rest),
        schema,
        parse_duration(url, "timeout", options["timeout"], 0.1, 86_400),
        parse_duration(url, "connect_timeout", options["connect_timeout"]),
        parse_int(url, "pool_size", options["pool_size"], 1, 1000),
        tenant,
        None,
        parse_duration(url, "max_lag", options["max_lag"], 0.1, 86_400),
    )
    return read._replace(read_from=_standby_options(read, options["read_from"]))


def _standby_options(options: PostgresOptions, url: object) -> PostgresOptions | None:
    """Return how to connect to the standby at a URL: all but the address is as for the store."""
    if url is None:
        return None
    if not isinstance(url, str) or url.partition("://")[0] not in SCHEMES:
        shown = redacted_url(url) if isinstance(url, str) else url
        raise invalid_option(
            options.url, "read_from", shown, "the URL of a standby, such as postgresql://user@host/database"
        )
    check_address(url)
    return options._replace(url=redacted_url(url), conninfo=build_conninfo(url, standby=True))


def build_conninfo(url: str, *, standby: bool = False) -> str:
    """Build the connection string for libpq: the parameters of the URL, and defaults. A standby must be one."""
    try:
        parameters = conninfo_to_dict(url)
    except psycopg.Error as error:
        # libpq repeats a password in which a % is not quoted.
        why = "a % is not followed by two hex digits" if "percent-encoded" in str(error) else str(error).strip()
        raise ConfigError(
            f"libpq cannot read the URL: {why}",
            where=redacted_url(url),
            hint="It looks like postgresql://user@host:5432/database?sslmode=require; a % in a password is %25",
        ) from None
    if not all(map(is_port, filter(None, str(parameters.get("port", "")).split(",")))):
        what = "the port in the URL is not a number from 1 to 65535"
        raise ConfigError(what, where=redacted_url(url), hint="It looks like postgresql://user@host:5432/database")
    defaults = {"fallback_application_name": "holdfast", "target_session_attrs": "read-write"}
    if "service" not in parameters and "PGSERVICE" not in os.environ:  # whose file may have them too
        defaults |= _TIMEOUTS
    for name, variable in (("connect_timeout", "PGCONNECT_TIMEOUT"), ("target_session_attrs", "PGTARGETSESSIONATTRS")):
        if variable in os.environ:
            defaults.pop(name, None)
    if standby:
        parameters["target_session_attrs"] = "standby"
    return make_conninfo(
        **{name: str(value) for name, value in {**defaults, **parameters}.items() if value is not None}
    )
