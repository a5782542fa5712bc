"""The command line `holdfast`.

How a command plugs in. A command is a function in a file of this package::

    from holdfast.interfaces.cli.base import CliContext, command
    from holdfast.interfaces.cli.completion_types import REVISION, THREAD

    @command("blame")
    @click.argument("thread", type=THREAD)
    @click.argument("revision", type=REVISION, default="HEAD")
    @click.option("--path", help="…")
    def blame(session: CliContext, thread: str, revision: str, path: str | None) -> None:
        \"\"\"Say which step wrote each part of a state.\"\"\"
        store = session.open()                       # for reading; write=True to write; create=True to make it
        if session.json:
            session.emit_all(…)                      # dicts, dataclasses, named tuples: one line of JSON each
            return
        session.out.page()                           # where much may come
        session.out.line(session.out.style(safe(text), "yellow"))  # text from a store goes through text.safe

and it has a line in `COMMANDS` and a case in `_load`, below: a command's file is imported only when it runs, so that
`--help` stays quick. Heavy imports stand inside the functions that need them. Errors of `holdfast.errors` are raised
and not printed; `main` tells them and picks the exit code (`failures.py`). `session.progress("Verifying")` is a
callback for long work, `session.confirm(question, yes=yes)` asks before something is destroyed (`yes_option` and
`dry_run_option` are in `frame.py`), `session.note` speaks to people on stderr, and
`raise click.exceptions.Exit(failures.FINDINGS)` ends with an exit code. `text.py` has sizes, times and plurals,
`Output.table` makes tables. Tests of commands use the fixtures of `tests/interfaces/cli/conftest.py`.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Sequence

import click

from holdfast import __version__
from holdfast.errors import HoldfastError
from holdfast.interfaces.cli import exit_codes
from holdfast.interfaces.cli.base import COMPLETE, CliContext, CliGroup
from holdfast.interfaces.cli.formatting import safe
from holdfast.interfaces.cli.output import wants_color

COMMANDS = {
    "Look": {
        "threads": "List the threads.",
        "log": "Show the history of a thread.",
        "show": "Show a checkpoint and its state.",
        "diff": "Show what differs between two states.",
        "blame": "Show which step wrote each part of a state.",
        "grep": "Find threads and checkpoints by what is in them.",
        "stats": "Show the store in figures.",
    },
    "Change": {
        "branch": "List, create, rename or delete branches.",
        "switch": "Make a branch the one that goes on.",
        "merge": "Bring another branch's changes in.",
        "fork": "Start a branch at a checkpoint, with an edited state if need be.",
        "restore": "Go back to an older state, in a new checkpoint.",
        "tag": "List, add or remove tags, each of one checkpoint.",
        "label": "List, add or remove labels, which many checkpoints can have.",
    },
    "Agents": {
        "agent": "List and look at agents, and resolve what a crash left half-done.",
    },
    "State": {
        "state": "Look at and change the state of scopes.",
        "session": "Start, list, end or resume sessions.",
        "grant": "Give, list or take away rights, groups and roles.",
        "audit": "Show what was done and tried, and check the record.",
    },
    "Keep": {
        "prune": "Remove old checkpoints by a policy.",
        "pin": "Keep a checkpoint from being pruned.",
        "hold": "Keep a whole thread from being pruned or deleted.",
        "verify": "Check that everything is as it was written.",
        "heads": "Export where the threads end, to detect a cut-off end later.",
        "repair": "Mend what is damaged, from a copy or by salvage.",
        "delete": "Delete threads.",
        "jobs": "List, run or pause scheduled work.",
    },
    "Move": {
        "copy": "Copy threads to another store.",
        "export": "Write threads to a file.",
        "import": "Read threads from a file.",
        "snapshot": "Freeze agents into files, and thaw them elsewhere.",
    },
    "Help": {
        "doctor": "Check the installation and the store.",
        "explain": "Say what an error's code means.",
        "completion": "Print a script that completes commands in a shell.",
        "version": "Print the version.",
        "help": "Show the help of a command.",
    },
}
"""The commands by what they are for, each with its line in the help."""


def _load(name: str) -> click.Command | None:
    """A command from its file."""
    match name:
        case "threads":
            from holdfast.interfaces.cli.threads import threads

            return threads
        case "log":
            from holdfast.interfaces.cli.log import log

            return log
        case "show":
            from holdfast.interfaces.cli.show import show

            return show
        case "grep":
            from holdfast.interfaces.cli.grep import grep

            return grep
        case "diff":
            from holdfast.interfaces.cli.diff import diff

            return diff
        case "blame":
            from holdfast.interfaces.cli.blame import blame

            return blame
        case "stats":
            from holdfast.interfaces.cli.stats import stats

            return stats
        case "completion":
            from holdfast.interfaces.cli.completion import completion

            return completion
        case "jobs":
            from holdfast.interfaces.cli.jobs import jobs

            return jobs
        case "doctor":
            from holdfast.interfaces.cli.doctor import doctor

            return doctor
        case "explain":
            from holdfast.interfaces.cli.explain import explain

            return explain
        case "branch" | "switch" | "fork" | "restore":
            from holdfast.interfaces.cli import branches

            found: click.Command = getattr(branches, name)
            return found
        case "merge":
            from holdfast.interfaces.cli.merge import merge

            return merge
        case "tag" | "label":
            from holdfast.interfaces.cli import tags

            return tags.tag if name == "tag" else tags.label
        case "copy" | "export" | "import" | "delete":
            from holdfast.interfaces.cli import copy_export

            moving: click.Command = getattr(copy_export, "import_" if name == "import" else name)
            return moving
        case "verify" | "heads" | "repair":
            from holdfast.interfaces.cli import verify

            return {"verify": verify.verify, "heads": verify.heads, "repair": verify.repair}[name]
        case "prune":
            from holdfast.interfaces.cli.prune import prune

            return prune
        case "pin" | "hold":
            from holdfast.interfaces.cli import holds

            return holds.pin if name == "pin" else holds.hold
        case "agent":
            from holdfast.interfaces.cli.agent import agent

            return agent
        case "state":
            from holdfast.interfaces.cli.state import state

            return state
        case "session":
            from holdfast.interfaces.cli.session import session

            return session
        case "grant":
            from holdfast.interfaces.cli.grant import grant

            return grant
        case "audit":
            from holdfast.interfaces.cli.audit import audit

            return audit
        case "snapshot":
            from holdfast.interfaces.cli.snapshot import snapshot

            return snapshot
        case "version" | "help":
            from holdfast.interfaces.cli import meta

            return meta.version if name == "version" else meta.help_
    return None


class MainGroup(CliGroup):
    """The commands, each loaded when it is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        return [name for names in COMMANDS.values() for name in names]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        return _load(cmd_name)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if not name.startswith("-") and self.get_command(ctx, name) is None:
            from difflib import get_close_matches

            near = get_close_matches(name, self.list_commands(ctx), 1)
            also = f" Did you mean {near[0]}?" if near else ""
            raise click.UsageError(f"there is no command {name!r}.{also}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        widest = max(len(name) for names in COMMANDS.values() for name in names)
        for title, names in COMMANDS.items():
            with formatter.section(title):
                formatter.write_dl([(name.ljust(widest), line) for name, line in names.items()])


def _version(context: click.Context, parameter: click.Parameter, value: bool) -> None:  # noqa: ARG001
    if value and not context.resilient_parsing:
        click.echo(f"holdfast {__version__}")
        context.exit()


@click.group(
    "holdfast",
    cls=MainGroup,
    context_settings={"max_content_width": 100},
    epilog="The store is the one that --store names, or $HOLDFAST_STORE, or the default of holdfast.toml.",
)
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_version,
    help="Print the version, and exit.",
)
@click.pass_context
def cli(context: click.Context) -> None:
    """See and mend the history of agents' state."""
    context.ensure_object(CliContext)


_GARBAGE = 100_000
"""After how many new objects Python looks for garbage. Loading a command makes many, and none of them is any."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command, and return its exit code. What goes wrong is told on stderr."""
    if arguments is not None:
        return _main(list(arguments))
    gc.set_threshold(_GARBAGE)
    try:
        return _main(sys.argv[1:])
    finally:
        gc.freeze()  # the program ends: there is no use in looking through all its objects for garbage once more


def _main(given: list[str]) -> int:
    if COMPLETE in os.environ:
        from holdfast.interfaces.cli.completion import complete

        return complete(cli, os.environ[COMPLETE])
    session = CliContext()
    try:
        return _run(given, session)
    except BrokenPipeError:
        exit_codes.give_up_output()
        return exit_codes.BROKEN_PIPE
    except KeyboardInterrupt:
        sys.stderr.write("\n")
        return exit_codes.INTERRUPTED


def _run(given: list[str], session: CliContext) -> int:
    # Looked for here, since what is wrong may be what stands before them.
    as_json = "--json" in given
    paging = False
    try:
        try:
            with cli.make_context("holdfast", given, obj=session) as context:
                cli.invoke(context)
                return exit_codes.OK
        finally:
            paging = session.paging
            session.close()
            sys.stdout.flush()
    except BrokenPipeError:
        if not paging:
            raise
        return exit_codes.OK  # they quit the pager
    except click.exceptions.Exit as ended:
        return ended.exit_code
    except click.exceptions.Abort:
        raise KeyboardInterrupt from None
    except click.ClickException as error:
        return exit_codes.report_usage(error, as_json=as_json, color=_color(session))
    except HoldfastError as error:
        _trace(session)
        return exit_codes.report(error, as_json=as_json or session.json, color=_color(session))
    except Exception as error:  # noqa: BLE001 - the last one there is: told, and not swallowed
        _trace(session)
        return exit_codes.report_unforeseen(error, as_json=as_json or session.json, color=_color(session))


def _color(session: CliContext) -> bool:
    return wants_color(session.color, sys.stderr)


def _trace(session: CliContext) -> None:
    if session.verbose:
        import traceback

        sys.stderr.write(safe(traceback.format_exc(), lines=True))
