"""The command line `holdfast`.

A command is a function in a module of this package::

    @command("pin", thread=THREAD, revision=REVISION)  # the types of its arguments, which a shell completes
    def pin(session: CliContext, thread: str, revision: str | None) -> None:
        \"\"\"List pins, or add one.\"\"\"
        handle = session.open(write=revision is not None).thread(thread)  # read-only, unless write=True
        if revision is None:
            session.list(handle.pins())  # a table of the fields that the records declare, or JSON
            return
        id = handle.pin(revision)
        session.report(f"{id} is pinned.", {"thread": thread, "id": id})  # a text, or JSON

and has a line in `COMMANDS`. Its module is imported when it runs, and heavy imports are inside functions, so that
`--help` is fast. A result is a text, or ready lines, in which text from a store went through `safe`. Errors of
`holdfast.errors` are raised; `main` reports them and chooses the exit code. `session.progress(title)` reports progress,
`session.confirm(question)` asks before something is destroyed, `session.note` writes to stderr, and
`session.exit_if(found, exit_codes.FINDINGS)` ends with an exit code.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

import click

from holdfast import __version__
from holdfast._lazy import load
from holdfast.errors import HoldfastError
from holdfast.interfaces.cli import exit_codes
from holdfast.interfaces.cli.base import COMPLETE, CliContext, CliGroup
from holdfast.interfaces.cli.formatting import near, safe
from holdfast.interfaces.cli.output import wants_color

COMMANDS = {
    "Read": {
        "threads": ("threads", "List the threads, agents, scopes or sessions."),
        "log": ("log", "Show the history of a thread."),
        "show": ("show", "Show a checkpoint and its state."),
        "diff": ("diff", "Compare two states."),
        "blame": ("blame", "Show which checkpoint wrote each part of a state."),
        "grep": ("grep", "Search threads, agents, scopes and sessions."),
        "timeline": ("timeline", "Show what happened, and why."),
        "watch": ("timeline", "Show what happens, as it happens."),
        "usage": ("usage", "Sum the tokens that models took, and what they cost."),
        "status": ("threads", "Show the status of the store."),
    },
    "Write": {
        "answer": ("answers", "Answer a thread that waits."),
        "append": ("branches", "Append to a list in the state of a thread."),
        "branch": ("branches", "List, create, rename or delete branches."),
        "switch": ("branches", "Make a branch the current one."),
        "merge": ("merge", "Merge a branch."),
        "fork": ("branches", "Start a branch at a checkpoint, optionally with an edited state."),
        "restore": ("branches", "Save the state of an older checkpoint again."),
        "undo": ("branches", "Undo the last checkpoints of a thread."),
        "tag": ("refs", "List, add or remove tags, each on one checkpoint."),
        "label": ("refs", "List, add or remove labels, each on any number of checkpoints."),
        "run": ("run", "Run a script in Lua or JavaScript."),
    },
    "Agents": {
        "agent": ("agent", "List, show, export and repair agents."),
        "snapshot": ("snapshot", "Save agents to files, and restore them elsewhere."),
        "replay": ("replay", "Record runs of agents, and replay them without models and tools."),
    },
    "State": {
        "state": ("state", "Read and change the state of scopes."),
        "session": ("session", "Start, list, end or resume sessions."),
        "grant": ("grant", "Grant, list or revoke rights; manage groups and roles."),
        "audit": ("audit", "Show and verify the audit."),
        "hooks": ("hooks", "Show what hooks did."),
        "redaction": ("redaction", "Find credentials and personal data in a store."),
    },
    "Maintain": {
        "prune": ("prune", "Remove old checkpoints by a policy."),
        "pin": ("refs", "Protect a checkpoint from pruning."),
        "hold": ("refs", "Protect a thread from pruning and deletion."),
        "expire": ("refs", "Show or set when a thread expires."),
        "verify": ("verify", "Verify that everything is as it was written."),
        "heads": ("verify", "Export the heads of threads, to detect lost ends later."),
        "repair": ("verify", "Repair damage, from a copy or by salvage."),
        "delete": ("copy_export", "Delete threads, or what has not changed for long."),
        "erase": ("erase", "Erase everything of one person."),
        "quota": ("quota", "Show or set how much a tenant may store."),
        "encryption-keys": ("encryption_keys", "List, rotate and destroy the keys of an encrypted store."),
        "jobs": ("jobs", "List, run or pause scheduled jobs."),
        "runs": ("runs", "List, follow, cancel, retry or answer runs of graphs and workflows."),
        "work": ("runs", "Do runs: those that are submitted, and those that dead workers left."),
        "migrate": ("migrate", "Bring states to another version of their schema, and back."),
        "schema": ("schema", "Check, lock, show and document the schemas of a project."),
    },
    "Copy": {
        "copy": ("copy_export", "Copy threads to another store."),
        "export": ("copy_export", "Write threads to a file."),
        "import": ("copy_export", "Read threads from a file."),
        "estimate": ("copy_export", "Say what a database of LangGraph's would take here."),
        "backup": ("backup", "Make, verify, restore and prune backups."),
    },
    "Serve": {
        "ui": ("holdfast.interfaces.web.command", "Look at a store in the browser."),
        "serve": ("holdfast.interfaces.web.command", "Serve a store over HTTP."),
        "mcp": ("holdfast.interfaces.mcp.command", "Serve a store to assistants over the Model Context Protocol."),
        "token": ("token", "Issue, list or revoke tokens for a served store."),
        "metrics": ("metrics", "Print metrics, a dashboard or alert rules."),
        "alerts": ("alerts", "List, silence or test alerts."),
    },
    "Help": {
        "init": ("meta", "Create a store, and name it in holdfast.toml."),
        "doctor": ("doctor", "Check the installation and the store."),
        "explain": ("doctor", "Explain the code of an error or a finding."),
        "completion": ("meta", "Print a completion script for a shell."),
        "version": ("meta", "Print the version."),
        "help": ("meta", "Show the help of a command."),
    },
}
"""The commands by topic, each with its module, of this package or with its full name, and its line in the help."""

_FUNCTIONS = {"encryption-keys": "encryption_keys", "help": "help_", "import": "import_"}
"""Where a function does not have the name of its command."""


def _load(name: str) -> click.Command | None:
    """Import a command."""
    for commands in COMMANDS.values():
        if name in commands:
            module = commands[name][0]
            # Interfaces above this one have commands, too.
            path = module if "." in module else f"holdfast.interfaces.cli.{module}"
            command: click.Command = load(path, _FUNCTIONS.get(name, name))
            return command
    return None


class MainGroup(CliGroup):
    """The commands, each imported when it is used."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        return [name for names in COMMANDS.values() for name in names]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        return _load(cmd_name)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if not name.startswith("-") and self.get_command(ctx, name) is None:
            meant = _OTHER_WORDS.get(name) or near(name, self.list_commands(ctx), 1)
            also = f" Did you mean {meant[0]}?" if meant else ""
            raise click.UsageError(f"there is no command {name!r}.{also}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        widest = max(len(name) for names in COMMANDS.values() for name in names)
        for title, names in COMMANDS.items():
            with formatter.section(title):
                formatter.write_dl([(name.ljust(widest), line) for name, (_, line) in names.items()])


_OTHER_WORDS = {
    "get": ["show"],
    "cat": ["show"],
    "ls": ["threads"],
    "list": ["threads"],
    "history": ["log"],
    "search": ["grep"],
    "find": ["grep"],
    "rm": ["delete"],
    "checkout": ["switch"],
    "gc": ["prune"],
    "fsck": ["verify"],
}
"""The commands that people mean by words of other tools."""


def _version(context: click.Context, parameter: click.Parameter, value: bool) -> None:  # noqa: ARG001
    if value and not context.resilient_parsing:
        click.echo(f"holdfast {__version__}")
        context.exit()


@click.group(
    "holdfast",
    cls=MainGroup,
    context_settings={"max_content_width": 100},
    epilog="The store is that of --store, $HOLDFAST_STORE, or the default of holdfast.toml.",
)
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_version,
    help="Print the version and exit.",
)
@click.pass_context
def cli(context: click.Context) -> None:
    """Show, change and repair the history of agents' state."""
    context.ensure_object(CliContext)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command, by default that of the program, and return its exit code. Errors are reported on stderr."""
    if COMPLETE in os.environ:
        from holdfast.interfaces.cli.meta import complete

        return complete(cli, os.environ[COMPLETE])
    session = CliContext()
    try:
        return _run(list(sys.argv[1:] if arguments is None else arguments), session)
    except BrokenPipeError:
        exit_codes.discard_output()
        return exit_codes.BROKEN_PIPE
    except KeyboardInterrupt:
        sys.stderr.write("\n")
        return exit_codes.INTERRUPTED


def _run(arguments: list[str], session: CliContext) -> int:
    # Searched here, since the error may be in an option before it.
    as_json = "--json" in arguments
    paging = False
    try:
        try:
            with cli.make_context("holdfast", arguments, obj=session) as context:
                cli.invoke(context)
                return exit_codes.OK
        finally:
            paging = session.paging
            session.close()
            sys.stdout.flush()
    except BrokenPipeError:
        if not paging:
            raise
        return exit_codes.OK  # the user left the pager
    except click.exceptions.Exit as ended:
        return ended.exit_code
    except click.exceptions.Abort:
        raise KeyboardInterrupt from None
    except click.ClickException as error:
        return exit_codes.report_usage(error, as_json=as_json, color=_color(session))
    except HoldfastError as error:
        _trace(session)
        return exit_codes.report(error, as_json=as_json or session.json, color=_color(session))
    except Exception as error:  # noqa: BLE001 - reported, not swallowed
        _trace(session)
        return exit_codes.report_unexpected(error, as_json=as_json or session.json, color=_color(session))


def _color(session: CliContext) -> bool:
    return wants_color(session.color, sys.stderr)


def _trace(session: CliContext) -> None:
    if session.verbose:
        import traceback

        sys.stderr.write(safe(traceback.format_exc(), lines=True))
