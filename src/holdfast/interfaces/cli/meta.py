"""The commands about the commands: `version` and `help`."""

from __future__ import annotations

import click

from holdfast import __version__
from holdfast.interfaces.cli.base import CliContext, command


@command("version")
def version(session: CliContext) -> None:
    """Print the version of holdfast, and of what it stands on."""
    import platform

    import apsw

    python, sqlite = platform.python_version(), apsw.sqlite_lib_version()
    if session.json:
        session.emit({"holdfast": __version__, "python": python, "sqlite": sqlite})
        return
    session.out.line(f"holdfast {__version__}")
    if session.verbose:
        session.out.line(f"Python {python}")
        session.out.line(f"SQLite {sqlite}")


@command("help")
@click.argument("command", required=False, nargs=-1)
@click.pass_context
def help_(context: click.Context, session: CliContext, command: tuple[str, ...]) -> None:
    """Show the help of a command, or of all: `holdfast help log`, `holdfast help jobs run`."""
    inner = context.find_root()
    for name in command:
        group = inner.command
        found = group.get_command(inner, name) if isinstance(group, click.Group) else None
        if found is None:
            raise click.UsageError(f"there is no command {' '.join(command)!r}.", context)
        inner = click.Context(found, parent=inner, info_name=name)
    if session.json:
        session.emit({"command": inner.command_path, "help": inner.get_help()})
        return
    session.out.page()
    session.out.line(inner.get_help())
