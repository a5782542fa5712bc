"""What every command has: the session, the shared options, and the decorators that make a function a command."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, TypeVar

import click

from holdfast.errors import InvalidError
from holdfast.interfaces.cli.exit_codes import ERROR
from holdfast.interfaces.cli.formatting import safe
from holdfast.interfaces.cli.output import Output, on_terminal, wants_color

if TYPE_CHECKING:
    from holdfast.interfaces.cli.progress import ProgressBar
    from holdfast.store.store import Store

F = TypeVar("F", bound=Callable[..., Any])

COLORS = ("auto", "always", "never")
COMPLETE = "_HOLDFAST_COMPLETE"
"""The variable with which a shell asks for completions."""


class CliContext:
    """One run of the command line: its settings, its store, where its output goes.

    The shared options are attributes: `store_name`, `tenant`, `json`, `pager`, `color`, `quiet`, `verbose`.
    """

    def __init__(self) -> None:
        self.store_name: str | None = None
        self.tenant = ""
        self.json = False
        self.pager = True
        self.color = "auto"
        self.quiet = False
        self.verbose = False
        self._stack = ExitStack()
        self._output: Output | None = None
        self._store: Store | None = None

    # The store ------------------------------------------------------------------------------------------------

    def open(self, *, write: bool = False, create: bool = False) -> Store:
        """The store that the options name, for reading, or for writing. Made only with `create`. Closed at the end."""
        if self._store is None:
            from holdfast.interfaces.cli.store_option import open_store

            made = open_store(self.store_name, tenant=self.tenant, write=write or create, create=create)
            self._store = self._stack.enter_context(made)
        return self._store

    def open_other(self, url: str, *, write: bool = False, create: bool = False) -> Store:
        """Another store, of the same tenant. Closed at the end."""
        from holdfast.interfaces.cli.store_option import open_store

        return self._stack.enter_context(open_store(url, tenant=self.tenant, write=write or create, create=create))

    # What is said ---------------------------------------------------------------------------------------------

    @property
    def out(self) -> Output:
        """Stdout, for people: `line`, `style`, `table`. Call `out.page()` first where much may come."""
        if self._output is None:
            self._output = Output(self.color, self.pager and not self.json)
        return self._output

    @property
    def paging(self) -> bool:
        """Whether people look at the output in a pager."""
        return self._output is not None and self._output.paging

    def emit(self, record: object) -> None:
        """Write a record as a line of JSON. For `--json`, where stdout has nothing else."""
        from holdfast.interfaces.cli.json_output import encode

        self.out.line(encode(record))

    def emit_all(self, records: Iterable[object]) -> None:
        """Write records, one to a line, each as soon as it is there."""
        for record in records:
            self.emit(record)

    def note(self, text: str) -> None:
        """Tell people something on stderr, unless they want quiet. Programs have it in what they read."""
        if not self.quiet and not self.json:
            sys.stderr.write(f"{safe(text, lines=True)}\n")

    def tell(self, text: str, record: object) -> None:
        """Say what was done: to people with `note`, to programs as a record."""
        if self.json:
            self.emit(record)
        else:
            self.note(text)

    def warn(self, text: str) -> None:
        """Tell on stderr of something that is not as it should be; also if they want quiet."""
        if self.json:
            from holdfast.interfaces.cli.json_output import encode

            sys.stderr.write(f"{encode({'warning': text})}\n")
            return
        mark = "\x1b[1;33mwarning:\x1b[0m" if wants_color(self.color, sys.stderr) else "warning:"
        sys.stderr.write(f"{mark} {safe(text, lines=True)}\n")

    def progress(self, title: str) -> ProgressBar:
        """A callback `(done, total, what)` that draws a bar on stderr: `with session.progress("Verifying") as tell:`"""
        from holdfast.interfaces.cli.progress import ProgressBar

        return ProgressBar(title, shown=not self.quiet)

    def confirm(self, question: str, *, yes: bool) -> None:
        """Ask before something is destroyed. Returns if the answer is yes; ends the command if it is not.

        Without a terminal nobody can answer: then `--yes` must have been given.
        """
        if yes:
            return
        if not (on_terminal(sys.stdin) and on_terminal(sys.stderr)):
            raise InvalidError(
                "this destroys something, and there is no terminal to ask on",
                hint="Give --yes to do it, or --dry-run to see what it would do",
            )
        if self._output is not None:
            self._output.flush()
        from holdfast.interfaces.cli.prompt import agreed

        if not agreed(safe(question, lines=True)):
            self.note("Nothing was changed.")
            raise click.exceptions.Exit(ERROR)

    def close(self) -> None:
        """End the output, and close what was opened."""
        try:
            if self._output is not None:
                self._output.close()
        finally:
            self._stack.close()


# Options that every command takes, before its name and after it ---------------------------------------------------


def _keep(name: str) -> Callable[[click.Context, click.Parameter, Any], Any]:
    def callback(context: click.Context, parameter: click.Parameter, value: Any) -> Any:  # noqa: ARG001
        if value is not None:
            setattr(context.ensure_object(CliContext), name, value)
        return value

    return callback


def _shared(*declarations: str, keep: str, **settings: Any) -> click.Option:
    return click.Option(
        list(declarations), default=None, expose_value=False, callback=_keep(keep), is_eager=True, **settings
    )


def shared_options() -> list[click.Option]:
    """The options that every command takes."""
    return [
        _shared("--store", keep="store_name", metavar="URL", help="The store: a URL, a path, or stores.NAME."),
        _shared("--tenant", keep="tenant", metavar="NAME", help="Whose threads to work with."),
        _shared("--json", keep="json", is_flag=True, flag_value=True, help="Write JSON, one object to a line."),
        _shared("--no-pager", keep="pager", is_flag=True, flag_value=False, help="Do not page the output."),
        _shared("--color", keep="color", type=click.Choice(COLORS), help="Whether to use colours."),
        _shared("-q", "--quiet", keep="quiet", is_flag=True, flag_value=True, help="Say only what was asked for."),
        _shared("-v", "--verbose", keep="verbose", is_flag=True, flag_value=True, help="Say more; show tracebacks."),
    ]


def _show_help(context: click.Context, parameter: click.Parameter, value: bool) -> None:  # noqa: ARG001
    if value and not context.resilient_parsing:
        click.echo(context.get_help(), color=context.color)
        context.exit()


def _help_option() -> click.Option:
    """`--help`. Click's own looks for a translation of its help, in files, each time that any command runs."""
    return click.Option(
        ["-h", "--help", "_help"],
        is_flag=True,
        is_eager=True,
        expose_value=False,
        callback=_show_help,
        help="Show this message and exit.",
    )


SHARED_NAMES = frozenset({"store", "tenant", "json", "no_pager", "color", "quiet", "verbose"})


class CliCommand(click.Command):
    """A command that takes the shared options too, and shows them apart."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.params += shared_options()
        self._help = _help_option()

    def get_help_option(self, ctx: click.Context) -> click.Option:  # noqa: ARG002
        return self._help

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        format_options(self, ctx, formatter)


def format_options(command: click.Command, context: click.Context, formatter: click.HelpFormatter) -> None:
    """Write a command's own options, and then those that all have."""
    own: list[tuple[str, str]] = []
    shared: list[tuple[str, str]] = []
    for parameter in command.get_params(context):
        record = parameter.get_help_record(context)
        if record is not None and isinstance(parameter, click.Option):
            is_shared = parameter.name in SHARED_NAMES and not parameter.expose_value
            (shared if is_shared or "--help" in parameter.opts else own).append(record)
    if own:
        with formatter.section("Options"):
            formatter.write_dl(own)
    if shared:
        with formatter.section("Options of every command"):
            formatter.write_dl(shared)


class CliGroup(click.Group):
    """A command with commands of its own, such as `jobs list`."""

    command_class = CliCommand

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.params += shared_options()
        self._help = _help_option()

    def get_help_option(self, ctx: click.Context) -> click.Option:  # noqa: ARG002
        return self._help

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        format_options(self, ctx, formatter)
        self.format_commands(ctx, formatter)


def command(name: str, cls: type[CliCommand] = CliCommand, **settings: Any) -> Callable[[F], CliCommand]:
    """Make a function a command. Its first argument is the `CliContext`; its docstring is the help."""

    def decorate(function: F) -> CliCommand:
        return click.command(name, cls=cls, **settings)(click.pass_obj(function))

    return decorate


def group(name: str, cls: type[CliGroup] = CliGroup, **settings: Any) -> Callable[[F], CliGroup]:
    """Make a function a group of commands. Add them with `@the_group.add` or `the_group.add_command(command)`."""

    def decorate(function: F) -> CliGroup:
        return click.group(name, cls=cls, **settings)(click.pass_obj(function))

    return decorate


# Options that several commands take -------------------------------------------------------------------------------


def yes_option(function: F) -> F:
    """`--yes`: go on without asking. For what destroys something; see `Session.confirm`."""
    return click.option("-y", "--yes", is_flag=True, help="Do it without asking.")(function)


def dry_run_option(function: F) -> F:
    """`--dry-run`: say what would be done, and do nothing."""
    return click.option("--dry-run", is_flag=True, help="Say what would be done, and do nothing.")(function)


def all_channels_option(function: F) -> F:
    """`--all-channels`: show the frameworks' own channels too, which people are spared otherwise."""
    return click.option("--all-channels", is_flag=True, help="Show internal channels of frameworks too.")(function)


def pairs(given: tuple[str, ...], option: str) -> dict[str, Any]:
    """Settings such as `topic=tides`; a value is JSON, or else text."""
    import json

    found: dict[str, Any] = {}
    for each in given:
        key, equals, value = each.partition("=")
        if not equals or not key:
            raise click.UsageError(f"{option} takes KEY=VALUE, not {each!r}")
        try:
            found[key] = json.loads(value)
        except ValueError:
            found[key] = value
    return found
