"""Writes `docs/cli.md`, the reference of the command line, from what `--help` says.

`python tools/cli_reference.py`; `tests/interfaces/cli/test_reference.py` fails while the page says something else.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click

from holdfast.interfaces.cli.exit_codes import EXIT_CODES
from holdfast.interfaces.cli.main import COMMANDS, cli

PAGE = Path(__file__).resolve().parent.parent / "docs" / "cli.md"

_INTRODUCTION = """\
# Commands

What `holdfast --help` and `holdfast COMMAND --help` say. [The command line](guides/cli.md) is a tour. This page is made
by `tools/cli_reference.py`.
"""


def reference() -> str:
    """The page."""
    return "\n".join([_INTRODUCTION, *_pages(), *_codes()])


def _pages() -> Iterator[str]:
    root = click.Context(cli, info_name="holdfast", terminal_width=100, max_content_width=100)
    yield from ("```text", root.get_help(), "```", "")
    for names in COMMANDS.values():
        for name in names:
            yield from _command(root, name, "##")


def _command(parent: click.Context, name: str, mark: str) -> Iterator[str]:
    group = parent.command
    found = group.get_command(parent, name) if isinstance(group, click.Group) else None
    if found is None:
        return
    context = click.Context(found, parent=parent, info_name=name, terminal_width=100, max_content_width=100)
    yield from (f"{mark} {context.command_path}", "", "```text", context.get_help(), "```", "")
    if isinstance(found, click.Group):
        for inner in found.list_commands(context):
            yield from _command(context, inner, f"{mark}#")


def _codes() -> Iterator[str]:
    yield from ("## Exit codes", "", "| code | meaning |", "|---|---|")
    yield from (f"| {code} | {meaning} |" for code, meaning in EXIT_CODES.items())
    yield ""


if __name__ == "__main__":
    PAGE.write_text(reference(), encoding="utf-8")
