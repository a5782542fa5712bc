"""The options that name a repository of backups, and opening it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from holdfast.errors import HoldfastError
from holdfast.interfaces.cli.base import CliContext

if TYPE_CHECKING:
    from holdfast.store.backups import Backups
    from holdfast.store.store import Store

F = TypeVar("F", bound=Callable[..., Any])

_KEYS = "holdfast.backup.keys"


def repository_option(function: F) -> F:
    """Add the options that name the repository and its key."""
    keys = click.option(
        "-k",
        "--keys",
        envvar="HOLDFAST_BACKUP_KEYS",
        show_envvar=True,
        metavar="KEYS",
        expose_value=False,
        callback=_set_keys,
        help="Where the key of an encrypted repository is: file:PATH, passphrase:PATH, environment:NAME …",
    )
    return keys(_repository(function))


def _set_keys(context: click.Context, _: click.Parameter, value: str | None) -> None:
    context.meta[_KEYS] = value


def _repository(function: F) -> F:
    return click.option(
        "-r",
        "--repository",
        envvar="HOLDFAST_BACKUPS",
        show_envvar=True,
        required=True,
        metavar="URL",
        help="The repository: a directory, or s3://bucket/prefix, gs://…, az://…",
    )(function)


def of_option(function: F) -> F:
    text = "Backups of the store whose id starts so, where a repository has those of several."
    return click.option("--of", "of", metavar="STORE", help=text)(function)


def open_backups(session: CliContext, repository: str, *, write: bool = False, create: bool = False) -> Backups[Store]:
    """Open the repository that the options name."""
    return session.open(write=write, create=create).backups(repository, keys=click.get_current_context().meta[_KEYS])


def open_to_record(session: CliContext, repository: str) -> Backups[Store]:
    """Open a repository to change it, with a store that records that, if there is one."""
    return open_any(session, repository, write=True)


def open_any(session: CliContext, repository: str, *, write: bool = False) -> Backups[Store]:
    """Open a repository, also where there is no store."""
    try:
        return open_backups(session, repository, write=write)
    except HoldfastError as error:
        if error.code not in ("no-store", "no-store-named"):
            raise
        from holdfast.store.opener import open as open_store

        return open_store("memory://").backups(repository, keys=click.get_current_context().meta[_KEYS])
