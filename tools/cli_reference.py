"""Writes the reference of the command line from what `--help` says: `docs/cli.md`, and a page for each command.

`python tools/cli_reference.py`; `tests/interfaces/cli/test_reference.py` fails while the pages say something else.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click

from holdfast.interfaces.cli.exit_codes import EXIT_CODES
from holdfast.interfaces.cli.main import COMMANDS, cli

DOCS = Path(__file__).resolve().parent.parent / "docs"
FOLDER = DOCS / "commands"

_INTRODUCTION = """\
# Commands

What `holdfast --help` and `holdfast COMMAND --help` say; [the command line](guides/cli.md) is a tour. These pages are
made by `tools/cli_reference.py`.
"""


def pages() -> dict[Path, str]:
    """The pages, by the files that they are in."""
    root = click.Context(cli, info_name="holdfast", terminal_width=100, max_content_width=100)
    found = {DOCS / "cli.md": "\n".join([_INTRODUCTION, *_index(root), *_codes()])}
    for name in _names():
        found[FOLDER / f"{name}.md"] = "\n".join(_command(root, name, "#"))
    return found


def _names() -> Iterator[str]:
    for names in COMMANDS.values():
        yield from names


def _index(root: click.Context) -> Iterator[str]:
    yield from ("```text", root.get_help().partition("\n\nRead:")[0], "```", "")
    for title, names in COMMANDS.items():
        yield from (f"## {title}", "", "| command | |", "|---|---|")
        yield from (f"| [`{name}`](commands/{name}.md) | {line} |" for name, (_, line) in names.items())
        yield ""


def _command(parent: click.Context, name: str, mark: str) -> Iterator[str]:
    group = parent.command
    found = group.get_command(parent, name) if isinstance(group, click.Group) else None
    if found is None:
        return
    context = click.Context(found, parent=parent, info_name=name, terminal_width=100, max_content_width=100)
    yield from (f"{mark} {context.command_path}", "", "```text", context.get_help(), "```", "")
    if isinstance(found, click.Group):
        for inner in found.list_commands(context):
            yield from _command(context, inner, "##")


def _codes() -> Iterator[str]:
    yield from ("## Exit codes", "", "| code | meaning |", "|---|---|")
    yield from (f"| {code} | {meaning} |" for code, meaning in EXIT_CODES.items())
    yield ""


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    written = pages()
    for old in set(FOLDER.glob("*.md")) - written.keys():
        old.unlink()
    for path, text in written.items():
        path.write_text(text, encoding="utf-8")
