"""`holdfast completion`: scripts with which a shell completes commands, threads, branches and checkpoints."""

from __future__ import annotations

import os

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
    """For bash, which cuts words at characters that names have: `chat:1`, `t1@{2h}`. So the line itself is read."""

    source_template = _BASH

    @staticmethod
    def _check_version() -> None:
        """Any bash does: nothing here needs more than 4.4, which is looked for where `compopt` is used."""

    def get_completion_args(self) -> tuple[list[str], str]:
        words = split_arg_string(os.environ["HOLDFAST_LINE"])
        incomplete = "" if os.environ["HOLDFAST_LINE"][-1:].isspace() else words.pop()
        self._incomplete = incomplete
        return words[1:], incomplete

    def format_completion(self, item: CompletionItem) -> str:
        value = str(item.value)
        if item.type == "plain":
            # bash puts the completion in place of what follows the last of those characters.
            breaks = set(os.environ.get("HOLDFAST_BREAKS", "")) - set("\"'")
            kept = max((place + 1 for place, sign in enumerate(self._incomplete) if sign in breaks), default=0)
            value = _quoted(value[kept:])
        return f"{item.type},{value}"


def complete(root: click.Command, instruction: str) -> int:
    """Answer a shell that asks for completions."""
    add_completion_class(Bash)
    session = CliContext()
    try:
        return shell_complete(root, {"obj": session}, "holdfast", COMPLETE, instruction)
    finally:
        session.close()


def _quoted(text: str) -> str:
    """Text as a word of a shell: with backslashes where it needs them, so that what was typed stays."""
    return "".join(f"\\{sign}" if sign in " \t\"'\\$`&|;<>()*?[]{}!#~" else sign for sign in text)


@command("completion")
@click.argument("shell", type=click.Choice(SHELLS))
@click.pass_context
def completion(context: click.Context, session: CliContext, shell: str) -> None:
    """Print a script that completes commands in a shell.

    \b
    bash:  holdfast completion bash >> ~/.bashrc
    zsh:   holdfast completion zsh >> ~/.zshrc
    fish:  holdfast completion fish > ~/.config/fish/completions/holdfast.fish
    """
    classes: dict[str, type[ShellComplete]] = {"bash": Bash, "zsh": ZshComplete, "fish": FishComplete}
    script = classes[shell](context.find_root().command, {}, "holdfast", COMPLETE).source()
    if session.json:
        session.emit({"shell": shell, "script": script})
        return
    session.out.line(script)
