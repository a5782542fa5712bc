"""`holdfast init`, `version`, `help` and `completion`, and the completion of a command line in a shell."""

from __future__ import annotations

import json
import os
from pathlib import Path

import click
from click.shell_completion import (
    BashComplete,
    CompletionItem,
    FishComplete,
    ShellComplete,
    ZshComplete,
    add_completion_class,
    shell_complete,
    split_arg_string,
)

from holdfast import __version__
from holdfast.errors import InvalidError
from holdfast.interfaces.cli.base import COMPLETE, CliContext, command

SHELLS = ("bash", "zsh", "fish")

_BASH = """\
%(complete_func)s() {
    local IFS=$'\\n' response type value
    response=$(env HOLDFAST_LINE="${COMP_LINE:0:COMP_POINT}" HOLDFAST_BREAKS="$COMP_WORDBREAKS" \\
        %(complete_var)s=bash_complete %(prog_name)s 2>/dev/null)
    COMPREPLY=()
    for completion in $response; do
        type=${completion%%%%,*} value=${completion#*,}
        case $type in
            dir) compopt -o dirnames ;;
            file) compopt -o default ;;
            *) COMPREPLY+=("$value") ;;
        esac
    done
    return 0
}

complete -o nosort -F %(complete_func)s %(prog_name)s
"""


class Bash(BashComplete):
    """Completion in bash, which splits words at characters of names, `chat:1` and `t1@{2h}`: so the line is parsed."""

    source_template = _BASH

    @staticmethod
    def _check_version() -> None:
        """Accept any bash: `compopt` is only called where it is needed."""

    def get_completion_args(self) -> tuple[list[str], str]:
        words = split_arg_string(os.environ["HOLDFAST_LINE"])
        incomplete = "" if os.environ["HOLDFAST_LINE"][-1:].isspace() else words.pop()
        self._incomplete = incomplete
        return words[1:], incomplete

    def format_completion(self, item: CompletionItem) -> str:
        value = str(item.value)
        if item.type == "plain":
            # bash replaces only what follows the last of those characters.
            breaks = set(os.environ.get("HOLDFAST_BREAKS", "")) - set("\"'")
            start = max((index + 1 for index, sign in enumerate(self._incomplete) if sign in breaks), default=0)
            value = _quote(value[start:])
        return f"{item.type},{value}"


def complete(root: click.Command, instruction: str) -> int:
    """Complete a command line for a shell."""
    add_completion_class(Bash)
    session = CliContext()
    try:
        return shell_complete(root, {"obj": session}, "holdfast", COMPLETE, instruction)
    finally:
        session.close()


def _quote(text: str) -> str:
    """Quote a word for a shell with backslashes, which keep what was typed."""
    return "".join(f"\\{sign}" if sign in " \t\"'\\$`&|;<>()*?[]{}!#~" else sign for sign in text)


@command("completion", shell=click.Choice(SHELLS))
def completion(session: CliContext, shell: str) -> None:
    """Print a completion script for a shell.

    \b
    bash:  holdfast completion bash >> ~/.bashrc
    zsh:   holdfast completion zsh >> ~/.zshrc
    fish:  holdfast completion fish > ~/.config/fish/completions/holdfast.fish
    """
    classes: dict[str, type[ShellComplete]] = {"bash": Bash, "zsh": ZshComplete, "fish": FishComplete}
    script = classes[shell](click.get_current_context().find_root().command, {}, "holdfast", COMPLETE).source()
    session.report((script,), {"shell": shell, "script": script})


@command("init")
@click.argument("location", metavar="[STORE]", required=False)
def init(session: CliContext, location: str | None) -> None:
    """Create a store, by default agents.db, and name it in holdfast.toml.

    Commands and programs in this directory, and in those below, use it then, if no other one is named.

    holdfast init
    holdfast init 'postgresql://agents:${PASSWORD}@db/agents'
    """
    from holdfast.backends.config import FILE, to_url
    from holdfast.backends.urls import path_to_url, redacted_url, url_to_path

    file, url = Path(FILE), to_url(location or session.store_name or "agents.db")
    if file.exists():
        raise InvalidError(
            f"there is a {FILE} already", where=str(file.absolute()), hint="Edit it; see its [stores.default]"
        )
    path = url_to_path(url)
    if path is not None:
        url = path_to_url(path.absolute())  # programs may start in another directory
    if "${" not in url and redacted_url(url) != url:
        raise InvalidError(
            "the URL has a password, which would be readable in the file",
            where=redacted_url(url),
            hint="Set it as an environment variable, and write ${PASSWORD} in its place, in single quotes",
        )
    with file.open("x", encoding="utf-8") as written:
        written.write(f"[stores.default]\nurl = {json.dumps(url, ensure_ascii=False)}\n")
    try:
        session.open_other("stores.default", create=True)
    except BaseException:
        file.unlink()
        raise
    text = f"Created the store {redacted_url(url)}, and {FILE}, which names it. Try holdfast doctor, or holdfast ui."
    session.report(text, {"store": redacted_url(url), "file": str(file.absolute())})


@command("version")
def version(session: CliContext) -> None:
    """Print the version; with --verbose, also those of Python and SQLite."""
    import platform

    import apsw

    python, sqlite = platform.python_version(), apsw.sqlite_lib_version()
    lines = [f"holdfast {__version__}", *([f"Python {python}", f"SQLite {sqlite}"] if session.verbose else ())]
    session.report(lines, {"holdfast": __version__, "python": python, "sqlite": sqlite})


@command("help")
def help_(session: CliContext, command: tuple[str, ...]) -> None:
    """Show the help of a command: `holdfast help log`, `holdfast help jobs run`."""
    context = click.get_current_context()
    inner = context.find_root()
    for name in command:
        group = inner.command
        found = group.get_command(inner, name) if isinstance(group, click.Group) else None
        if found is None:
            raise click.UsageError(f"there is no command {' '.join(command)!r}.", context)
        inner = click.Context(found, parent=inner, info_name=name)
    session.report((inner.get_help(),), {"command": inner.command_path, "help": inner.get_help()})
