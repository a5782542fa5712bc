"""The base of commands: the context of a run, shared options, and the decorators that make a function a command."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from inspect import cleandoc
from itertools import chain
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.core import ParameterSource

from holdfast.errors import HoldfastError, InvalidError, NotFoundError
from holdfast.interfaces.cli.exit_codes import ERROR
from holdfast.interfaces.cli.formatting import safe
from holdfast.interfaces.cli.output import Output, ProgressBar, on_terminal, wants_color

if TYPE_CHECKING:
    from pathlib import Path

    from holdfast.store.identity_view import IdentityView
    from holdfast.store.store import Store

F = TypeVar("F", bound=Callable[..., Any])

COLORS = ("auto", "always", "never")
COMPLETE = "_HOLDFAST_COMPLETE"
"""The environment variable by which a shell asks for completions."""


_PLACES = ("scope", "place")
"""Columns that have the text of a scope or of a thread's place."""


class CliContext:
    """One run of the command line: its shared options, its store and its output."""

    def __init__(self) -> None:
        self.store_name: str | None = None
        self.tenant = ""
        self.token = ""
        self.json = False
        self.pager = True
        self.color = "auto"
        self.quiet = False
        self.verbose = False
        self.identity: str | None = None
        """Who acts, with `--as`; the store's owner if it is None."""
        self.dry_run = False
        self.yes = False
        self._stack = ExitStack()
        self._output: Output | None = None
        self._store: Store | None = None

    def open(self, *, write: bool = False, create: bool = False) -> Store:
        """Open the store, read-only unless `write`. Only `create` creates it. It is closed at the end."""
        if self._store is None:
            self._store = self.open_other(self.store_name, write=write, create=create)
        return self._store

    def open_as(self, *, write: bool = False, create: bool = False) -> Store | IdentityView:
        """Open the store as its owner, or with `--as` as an identity, whose reads are recorded: that needs write
        access."""
        store = self.open(write=write or self.identity is not None, create=create)
        return store if self.identity is None else store.as_identity(self.identity)

    def open_to_record(self) -> Store:
        """Open the store to read it and to record that; read-only, if this user may not write it."""
        try:
            return self.open(write=True)
        except NotFoundError:
            raise
        except HoldfastError:
            return self.open()

    def open_other(self, location: str | None, *, write: bool = False, create: bool = False) -> Store:
        """Open another store, for the same tenant. It is closed at the end."""
        from holdfast.store.opener import open_existing

        read_only = not (write or create)
        return self._stack.enter_context(
            open_existing(location, tenant=self.tenant, read_only=read_only, create=create, token=self.token)
        )

    @property
    def out(self) -> Output:
        """The output as text: `line`, `style`, `table`. Call `out.page()` first if it may be long."""
        if self._output is None:
            self._output = Output(self.color, self.pager and not self.json)
        return self._output

    @property
    def paging(self) -> bool:
        """Whether the output goes to a pager."""
        return self._output is not None and self._output.paging

    # Results: as text, or with `--json` as JSON ---------------------------------------------------------------

    def emit(self, record: object, more: Mapping[str, Any] | None = None) -> None:
        """Write a record as a line of JSON, with `more` beside its fields."""
        from holdfast._views import encode, plain

        self.out.line(encode(record if more is None else {**plain(record), **more}))

    def list(
        self,
        records: Iterable[Any],
        *,
        none: str = "",
        first: Sequence[str] = (),
        exact: bool = False,
        hidden: Sequence[str] = (),
        of: Mapping[str, Any] | None = None,
        **texts: Callable[[Any], str],
    ) -> None:
        """Write records: as a table of the fields that they declare, or as JSON, each as soon as it is read.

        `texts` say what the command adds: the text of a field, or a further column. `first` names the columns
        that lead, and `hidden` fields that say nothing here; `of` has what all records belong to, for JSON. Times are
        `exact` in lists of events. `none` is the note if there are none.
        """
        if self.json:
            for record in records:
                self.emit(record, of)
            return
        from holdfast._views import columns_of
        from holdfast.engine.model.scopes import readable_place
        from holdfast.interfaces.cli.formatting import clock, when

        found = iter(records)
        self.out.page()
        if (record := next(found, None)) is None:
            if none:
                self.note(none)
            return
        columns = columns_of(record, clock if exact else when, texts, first=first, hidden=hidden)
        places = [column.name in _PLACES for column in columns]
        rows = (
            [
                readable_place(text) if is_place else text
                for text, is_place in zip((column.text(each) for column in columns), places, strict=True)
            ]
            for each in chain((record,), found)
        )
        right = [column.label.upper() for column in columns if column.is_number]
        self.out.long_table([column.label.upper() for column in columns], rows, right=right)

    def describe(self, record: Any, title: str, *, hidden: Sequence[str] = (), **texts: str) -> Iterator[str]:
        """Yield the fields of a record as lines, those that are not empty. `texts` is what the command says of a field,
        or adds to them."""
        from holdfast._views import pairs_of
        from holdfast.interfaces.cli.formatting import ago, local

        rows = pairs_of(record, lambda time: f"{local(time)} ({ago(time)})", texts, hidden)
        widest = max(len(label) for label, _ in rows)
        yield self.out.style(safe(title), "yellow")
        for label, text in rows:
            yield f"{f'{label[0].upper()}{label[1:]}:':<{widest + 1}} {safe(text)}"

    def note(self, text: str) -> None:
        """Write a note to stderr, unless `--quiet` or `--json` is given."""
        if not self.quiet and not self.json:
            sys.stderr.write(f"{safe(text, lines=True)}\n")

    def tell(self, text: str, record: object, more: Mapping[str, Any] | None = None) -> None:
        """Report a change: as a note, or as a record."""
        if self.json:
            self.emit(record, more)
        else:
            self.note(text)

    def report(
        self, text: str | Iterable[str], record: object, more: Mapping[str, Any] | None = None, *, page: bool = True
    ) -> None:
        """Write the result of a command: as a text, as lines, which are ready to be shown, or as a record.

        Lines go through a pager, unless they are written while the command works.
        """
        if self.json:
            self.emit(record, more)
        elif isinstance(text, str):
            self.out.line(safe(text))
        else:
            if page:
                self.out.page()
            for line in text:
                self.out.line(line)

    def warn(self, text: str) -> None:
        """Write a warning to stderr, also with `--quiet`."""
        if self.json:
            from holdfast._views import encode

            sys.stderr.write(f"{encode({'warning': text})}\n")
            return
        mark = "\x1b[1;33mwarning:\x1b[0m" if wants_color(self.color, sys.stderr) else "warning:"
        sys.stderr.write(f"{mark} {safe(text, lines=True)}\n")

    def progress(self, title: str) -> ProgressBar:
        """A callback `(done, total, what)` that draws a bar on stderr, used in a `with` block."""
        return ProgressBar(title, hidden=self.quiet or self.json)

    def confirm(self, question: str, *, yes: bool | None = None) -> None:
        """Ask before something is destroyed, unless `--yes` is given. Ends the command unless the answer is yes.

        Without a terminal, `--yes` is required.
        """
        if self.yes if yes is None else yes:
            return
        if not (on_terminal(sys.stdin) and on_terminal(sys.stderr)):
            raise InvalidError(
                "this needs a confirmation, and there is no terminal to ask for it",
                hint="Give --yes to do it, or --dry-run to see the effect",
            )
        if self._output is not None:
            self._output.flush()
        if not click.confirm(safe(question, lines=True), err=True):
            self.note("Nothing was changed.")
            raise click.exceptions.Exit(ERROR)

    def exit_if(self, condition: object, code: int) -> None:
        """End the command with an exit code, if something is so."""
        if condition:
            raise click.exceptions.Exit(code)

    def close(self) -> None:
        """End the output, and close the stores."""
        try:
            if self._output is not None:
                self._output.close()
        finally:
            self._stack.close()


# Shared options, before the name of a command and after it --------------------------------------------------------


def _set_option(name: str) -> Callable[[click.Context, click.Parameter, Any], Any]:
    def callback(context: click.Context, parameter: click.Parameter, value: Any) -> Any:  # noqa: ARG001
        if value is not None:
            setattr(context.ensure_object(CliContext), name, value)
        return value

    return callback


def _shared(*declarations: str, field: str, **settings: Any) -> click.Option:
    return click.Option(
        list(declarations), default=None, expose_value=False, callback=_set_option(field), is_eager=True, **settings
    )


def shared_options() -> list[click.Option]:
    """The options that every command takes."""
    return [
        _shared("--store", field="store_name", metavar="URL", help="The store: a URL, a path, or stores.NAME."),
        _shared("--tenant", field="tenant", metavar="NAME", help="The tenant."),
        _shared("--token", field="token", metavar="TOKEN", help="The token for a served store; or $HOLDFAST_TOKEN."),
        _shared("--json", field="json", is_flag=True, flag_value=True, help="Write JSON, one object to a line."),
        _shared("--no-pager", field="pager", is_flag=True, flag_value=False, help="Do not page the output."),
        _shared("--color", field="color", type=click.Choice(COLORS), help="Use colours."),
        _shared("-q", "--quiet", field="quiet", is_flag=True, flag_value=True, help="Write only results."),
        _shared("-v", "--verbose", field="verbose", is_flag=True, flag_value=True, help="Write more; show tracebacks."),
    ]


def _show_help(context: click.Context, parameter: click.Parameter, value: bool) -> None:  # noqa: ARG001
    if value and not context.resilient_parsing:
        click.echo(context.get_help(), color=context.color)
        context.exit()


def _help_option() -> click.Option:
    """Return `--help`. Click's own searches for translations in files, whenever a command runs."""
    return click.Option(
        ["-h", "--help", "_help"],
        is_flag=True,
        is_eager=True,
        expose_value=False,
        callback=_show_help,
        help="Show this message and exit.",
    )


SHARED_NAMES = frozenset({"store", "tenant", "token", "json", "no_pager", "color", "quiet", "verbose"})


class CliCommand(click.Command):
    """A command with the shared options."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.params += shared_options()
        self._help = _help_option()

    def get_help_option(self, ctx: click.Context) -> click.Option:  # noqa: ARG002
        return self._help

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        format_options(self, ctx, formatter)

    def invoke(self, ctx: click.Context) -> Any:
        _use_revision(ctx)
        try:
            return super().invoke(ctx)
        except NotFoundError as error:
            if "Did you mean" not in error.hint:
                for parameter in self.params:
                    suggest = getattr(parameter.type, "similar_names", None)
                    if suggest is not None and (names := suggest(ctx, parameter, f"{error.what} {error.where}")):
                        error.hint = f"Did you mean {' or '.join(names)}? {error.hint}".strip()
                        break
            raise


def format_options(command: click.Command, context: click.Context, formatter: click.HelpFormatter) -> None:
    """Write the options of a command, and then the shared ones."""
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

    def add(self, *commands: click.Command) -> None:
        """Add commands, in the order of the help."""
        for each in commands:
            self.add_command(each)

    def get_help_option(self, ctx: click.Context) -> click.Option:  # noqa: ARG002
        return self._help

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        format_options(self, ctx, formatter)
        self.format_commands(ctx, formatter)


def _help_of(function: Callable[..., Any]) -> str:
    """Return the docstring of a command. Paragraphs that start with `holdfast` are examples: their lines stay."""
    return re.sub(r"\n\n(?=holdfast )", "\n\n\b\n", cleandoc(function.__doc__ or ""))


def command(
    name: str, /, *, cls: type[CliCommand] = CliCommand, **types: click.ParamType[Any]
) -> Callable[[Callable[..., Any]], CliCommand]:
    """Make a function a command. Its first argument is the `CliContext`; its docstring is the help.

    Each further parameter that is no `click.option` is an argument: of its type in `types`, or text; optional if it may
    be None, and any number of them if it is a tuple. `click.argument` is for those that differ.
    """

    def decorate(function: Callable[..., Any]) -> CliCommand:
        made: list[click.Parameter] = vars(function).setdefault("__click_params__", [])
        known = {each.name for each in made}
        order = function.__code__.co_varnames[1 : function.__code__.co_argcount]
        for parameter in order:
            if parameter not in known:
                written = str(function.__annotations__[parameter])
                several, required = written.startswith("tuple["), not written.endswith(("| None", ", ...]"))
                kind = types.get(parameter)
                made.append(click.Argument([parameter], type=kind, required=required, nargs=-1 if several else 1))
        made[:0] = [
            _revision_option(each) for each in made if isinstance(each, click.Argument) and each.name == "revision"
        ]
        # Click takes the last one first.
        made.sort(key=lambda each: -order.index(str(each.name)) if isinstance(each, click.Argument) else 1)
        return click.command(name, cls=cls, help=_help_of(function))(click.pass_obj(function))

    return decorate


_AT = "holdfast.at"
"""Where the context of click keeps the revision of `--at`."""


def _revision_option(argument: click.Argument) -> click.Option:
    """Return `--at`, which gives a revision in the place of the argument: so the Python API calls it."""

    def keep(context: click.Context, parameter: click.Parameter, value: str | None) -> None:  # noqa: ARG001
        if value is not None:
            context.meta[_AT] = value

    text = "The REVISION, as an option."
    return click.Option(["--at"], type=argument.type, metavar="REVISION", expose_value=False, callback=keep, help=text)


def _use_revision(context: click.Context) -> None:
    """Take the revision of `--at` for the argument, which must not be given, too."""
    at = context.meta.pop(_AT, None)
    if at is None:
        return
    if context.get_parameter_source("revision") is ParameterSource.COMMANDLINE:
        raise click.UsageError("give the revision as an argument or with --at, not both", context)
    context.params["revision"] = at


def group(name: str, cls: type[CliGroup] = CliGroup, *, default: str = "", **settings: Any) -> Callable[[F], CliGroup]:
    """Make a function a group of commands, which `add` adds. Without a command, the `default` one runs."""

    def decorate(function: F) -> CliGroup:
        if not default:
            return click.group(name, cls=cls, help=_help_of(function), **settings)(click.pass_obj(function))

        def run() -> None:
            context = click.get_current_context()
            if context.invoked_subcommand is None:
                context.invoke(made.commands[default])

        made = click.group(name, cls=cls, invoke_without_command=True, help=_help_of(function), **settings)(run)
        return made

    return decorate


# Options of several commands --------------------------------------------------------------------------------------


def context_option(field: str, *declarations: str, **settings: Any) -> Callable[[F], F]:
    """Return an option that is read from the context, as `session.yes` is."""
    return click.option(*declarations, expose_value=False, callback=_set_option(field), **settings)


yes_option = context_option("yes", "-y", "--yes", is_flag=True, help="Do not ask for confirmation.")
"""`--yes`: do not ask for confirmation."""

dry_run_option = context_option(
    "dry_run", "--dry-run", is_flag=True, help="Show what would be done, and change nothing."
)
"""`--dry-run`: show the effect, and change nothing."""


KINDS = click.Choice(("thread", "agent", "scope", "session", "access", "audit", "system", "all"))
"""The kinds of lines."""

STATUSES = click.Choice(("idle", "running", "waiting", "failed", "unfinished", "done"))
"""The statuses of threads."""


def kinds_option(text: str) -> Callable[[F], F]:
    """`--kind`: lines of these kinds; may be repeated."""
    return click.option("--kind", "kinds", type=KINDS, multiple=True, help=text)


def parse_kinds(kinds: tuple[str, ...]) -> Any:
    """Return the kinds as the API takes them; None for those of a command that has its own default."""
    return "all" if "all" in kinds else kinds or None


def all_channels_option(function: F) -> F:
    """`--all-channels`: show the internal channels of frameworks."""
    return click.option("--all-channels", is_flag=True, help="Show internal channels of frameworks too.")(function)


def migrate_option(function: F) -> F:
    """`--migrate`: compare states in one version of their schema."""
    return click.option(
        "--migrate", is_flag=True, help="Bring states to the newest version of the project's schemas first."
    )(function)


def limit_option(default: int | None = None) -> Callable[[F], F]:
    """`-n`: the largest number of records."""
    return click.option(
        *("-n", "--limit"),
        type=click.IntRange(1),
        default=default,
        show_default=default is not None,
        metavar="N",
        help="Show at most N.",
    )


def check_folder(file: str | Path) -> None:
    """Check that there is a directory for a file that is to be written."""
    from pathlib import Path  # not at the top: `--help` needs no files

    folder = Path(file).absolute().parent
    if not folder.is_dir():
        raise NotFoundError("there is no such directory", where=str(folder))


def pairs(texts: tuple[str, ...], option: str) -> dict[str, Any]:
    """Parse texts such as `topic=tides`; a value is JSON, or else text."""
    import json

    values: dict[str, Any] = {}
    for each in texts:
        key, equals, value = each.partition("=")
        if not equals or not key:
            raise click.UsageError(f"{option} takes KEY=VALUE, not {each!r}")
        try:
            values[key] = json.loads(value)
        except ValueError:
            values[key] = value
    return values
