"""`holdfast doctor`: checks of the installation, the settings and the store."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from holdfast.interfaces.cli.base import CliContext, command
from holdfast.interfaces.cli.exit_codes import FINDINGS, NO_STORE
from holdfast.interfaces.cli.formatting import safe

if TYPE_CHECKING:
    from holdfast.maintenance.doctor.result import CheckResult

_STYLES = {"ok": "green", "note": "cyan", "warning": "yellow", "problem": "red"}


@command("doctor")
@click.option("--full", is_flag=True, help="Run the own check of a large store too, which may take long.")
def doctor(session: CliContext, full: bool) -> None:
    """Check the installation, the settings and the store, and suggest remedies.

    It creates no store. Exit code 0 if there is nothing to do, 6 if there is, 10 if there is no store.

    \b
    holdfast doctor --store sqlite:///agents.db
    """
    from holdfast.store.doctor import examine

    wrong, missing = 0, False
    for check in examine(session.store_name, tenant=session.tenant, full=full):
        wrong += not check.ok
        missing = missing or (check.code in ("store-there", "store-named") and not check.ok)
        if session.json:
            session.emit(check)
        elif not (session.quiet and check.ok):
            _print(session, check)
        session.out.flush()
    if missing:
        raise click.exceptions.Exit(NO_STORE)
    if wrong:
        session.note(f"{wrong} of these need attention. `holdfast explain CODE` says more.")
        raise click.exceptions.Exit(FINDINGS)


def _print(session: CliContext, check: CheckResult) -> None:
    level = session.out.style(f"{check.level:7}", _STYLES[check.level])
    session.out.line(f"{level}  {check.code:18}  {safe(check.found)}")
    if check.remedy:
        session.out.line(f"{'':27}  → {safe(check.remedy)}")
