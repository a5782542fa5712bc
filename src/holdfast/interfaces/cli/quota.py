"""`holdfast quota`: how much a tenant may store, and stores."""

from __future__ import annotations

from typing import Any

import click

from holdfast._views import plain, size
from holdfast.errors import InvalidError
from holdfast.interfaces.cli.base import CliContext, command
from holdfast.interfaces.cli.prune import SizeType

_NO_LIMIT = "none"


class LimitType(click.ParamType["int | str"]):
    """A limit, or `none` for no limit."""

    def __init__(self, limit: click.ParamType[int]) -> None:
        self.name: str = limit.name
        self._limit = limit

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int | str:
        """Parse a limit."""
        return _NO_LIMIT if value == _NO_LIMIT else self._limit.convert(value, param, ctx)


_COUNT = LimitType(click.IntRange(0))


@command("quota")
@click.option("--bytes", "bytes_", type=LimitType(SizeType()), metavar="SIZE", help="The most bytes: 500MB, 10GB.")
@click.option("--threads", type=_COUNT, metavar="N", help="The most threads.")
@click.option("--steps", type=_COUNT, metavar="N", help="The most checkpoints, and changes of state and of agents.")
@click.option("--remove", is_flag=True, help="Remove all limits.")
def quota(
    session: CliContext, bytes_: int | str | None, threads: int | str | None, steps: int | str | None, remove: bool
) -> None:
    """Show or set how much a tenant may store. A save that exceeds it fails, and saves nothing.

    Limits that are not given stay as they are; `none` removes one.

    holdfast quota --tenant acme                             show limits and use
    holdfast quota --tenant acme --bytes 10GB --threads 500  set limits
    holdfast quota --tenant acme --threads none              remove a limit
    """
    limits = {"bytes": bytes_, "threads": threads, "steps": steps}
    changes = {name: None if limit == _NO_LIMIT else limit for name, limit in limits.items() if limit is not None}
    if remove and changes:
        raise InvalidError(
            "--remove removes all limits, and cannot be combined with new limits", hint="Give --remove alone"
        )
    store = session.open(write=bool(remove or changes))
    if remove:
        store.maintenance.set_quota()
    elif changes:
        store.maintenance.set_quota(**plain(store.maintenance.quota().limits) | changes)
    report = store.maintenance.quota()
    if session.json:
        session.emit(report, {"tenant": session.tenant})
        return
    rows = []
    for name, limit in plain(report.limits).items():
        used = getattr(report.used, name)
        texts = [size(each) if name == "bytes" else f"{each:,}" for each in (used, limit) if each is not None]
        rows.append({"quota": name, "used": texts[0], "limit": texts[1] if limit is not None else _NO_LIMIT})
    session.list(rows)
