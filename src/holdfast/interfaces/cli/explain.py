"""`holdfast explain`: what a code means."""

from __future__ import annotations

from typing import Any

import click

from holdfast.interfaces.cli.base import CliContext, command
from holdfast.interfaces.cli.exit_codes import EXIT_CODES
from holdfast.interfaces.cli.formatting import first_line

_TITLES = {"error": "Errors", "finding": "Findings of verify", "check": "Checks of the doctor"}
_WIDTH = 88


class CodeType(click.ParamType[str]):
    """A code."""

    name = "code"

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[Any]:  # noqa: ARG002
        from click.shell_completion import CompletionItem

        from holdfast.maintenance.explain.explanations import explanations

        return [CompletionItem(each) for each in explanations() if each.startswith(incomplete)]


@command("explain")
@click.argument("code", required=False, type=CodeType())
def explain(session: CliContext, code: str | None) -> None:
    """Say what a code means: of an error, of what verify found, or of a check of the doctor.

    Without a code, list all.

    \b
    holdfast explain no-store
    """
    from holdfast.maintenance.explain.explanations import explain as explained
    from holdfast.maintenance.explain.explanations import explanations

    if code is None:
        found = list(explanations().values())
        if session.json:
            session.emit_all(found)
            return
        session.out.page()
        kind = ""
        for each in found:
            if each.kind != kind:
                session.out.line(("\n" if kind else "") + session.out.style(_TITLES[each.kind], "bold"))
                kind = each.kind
            sentence = first_line(each.meaning).partition(". ")[0].rstrip(".")
            session.out.line(f"  {session.out.style(f'{each.code:20}', 'yellow')} {sentence}")
        return
    one = explained(code)
    if session.json:
        session.emit(one)
        return
    out = session.out
    out.line(f"{out.style(one.code, 'bold', 'yellow')}  ({_TITLES[one.kind].lower()})")
    out.line()
    _paragraph(session, one.meaning)
    if one.causes:
        out.line()
        out.line(out.style("Usual causes", "bold"))
        for cause in one.causes:
            _paragraph(session, cause, "- ")
    out.line()
    out.line(out.style("What to do", "bold"))
    _paragraph(session, one.remedy)
    out.line()
    out.line(f"Exit code {one.exit_code}: {EXIT_CODES[one.exit_code]}.")


def _paragraph(session: CliContext, text: str, start: str = "") -> None:
    from textwrap import wrap

    for line in wrap(text, _WIDTH, initial_indent=start, subsequent_indent=" " * len(start)):
        session.out.line(line)
