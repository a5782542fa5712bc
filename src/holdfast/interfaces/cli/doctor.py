"""`holdfast doctor` and `holdfast explain`: checks of the installation, and the meaning of codes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import click

from holdfast.interfaces.cli.base import CliContext, command
from holdfast.interfaces.cli.exit_codes import EXIT_CODES, FINDINGS, NO_STORE
from holdfast.interfaces.cli.formatting import first_line, safe

if TYPE_CHECKING:
    from holdfast.maintenance.doctor.result import CheckResult
    from holdfast.maintenance.explain.explanations import Explanation

_TITLES = {"error": "Errors", "finding": "Findings of verify", "check": "Checks of the doctor"}
_WIDTH = 88
_STYLES = {"ok": "green", "note": "cyan", "warning": "yellow", "problem": "red"}


@command("doctor")
@click.option("--full", is_flag=True, help="Also run a large store's own check, which may take long.")
def doctor(session: CliContext, full: bool) -> None:
    """Check the installation, the settings and the store, and recommend what to do.

    It creates no store. The exit code is 0 if all checks pass, 6 if one fails, 10 if there is no store.

    holdfast doctor --store sqlite:///agents.db
    """
    from holdfast.store.doctor import examine

    failed, missing = 0, False
    for check in examine(session.store_name, tenant=session.tenant, full=full, token=session.token):
        failed += not check.ok
        missing = missing or (check.code in ("store-there", "store-named") and not check.ok)
        session.report(() if session.quiet and check.ok else _lines(session, check), check, page=False)
        session.out.flush()
    session.exit_if(missing, NO_STORE)
    if failed:
        session.note(f"{failed} checks failed. `holdfast explain CODE` explains them.")
        raise click.exceptions.Exit(FINDINGS)


def _lines(session: CliContext, check: CheckResult) -> Iterator[str]:
    level = session.out.style(f"{check.level:7}", _STYLES[check.level])
    yield f"{level}  {check.code:18}  {safe(check.found)}"
    if check.remedy:
        yield f"{'':27}  → {safe(check.remedy)}"


class CodeType(click.ParamType[str]):
    """The code of an error, a finding or a check."""

    name = "code"

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[Any]:  # noqa: ARG002
        from click.shell_completion import CompletionItem

        from holdfast.maintenance.explain.explanations import explanations

        return [CompletionItem(each) for each in explanations() if each.startswith(incomplete)]


@command("explain", code=CodeType())
def explain(session: CliContext, code: str | None) -> None:
    """Explain the code of an error, of a finding of verify, or of a check of the doctor.

    Without a code, list them all.

    holdfast explain no-store
    """
    from holdfast.maintenance.explain.explanations import explain as explained
    from holdfast.maintenance.explain.explanations import explanations

    if code is None:
        listed = list(explanations().values())
        if session.json:
            session.list(listed)
        else:
            session.report(_all_lines(session, listed), None)
        return
    one = explained(code)
    session.report(_explanation_lines(session, one), one)


def _all_lines(session: CliContext, listed: Sequence[Explanation]) -> Iterator[str]:
    kind = ""
    for each in listed:
        if each.kind != kind:
            yield ("\n" if kind else "") + session.out.style(_TITLES[each.kind], "bold")
            kind = each.kind
        sentence = first_line(each.meaning).partition(". ")[0].rstrip(".")
        yield f"  {session.out.style(f'{each.code:20}', 'yellow')} {sentence}"


def _explanation_lines(session: CliContext, one: Explanation) -> Iterator[str]:
    style = session.out.style
    yield from (f"{style(one.code, 'bold', 'yellow')}  ({_TITLES[one.kind].lower()})", "")
    yield from _wrap(one.meaning)
    if one.causes:
        yield from ("", style("Usual causes", "bold"))
        for cause in one.causes:
            yield from _wrap(cause, "- ")
    yield from ("", style("What to do", "bold"), *_wrap(one.remedy), "")
    yield f"Exit code {one.exit_code}: {EXIT_CODES[one.exit_code]}."


def _wrap(text: str, start: str = "") -> list[str]:
    from textwrap import wrap

    return wrap(text, _WIDTH, initial_indent=start, subsequent_indent=" " * len(start))
