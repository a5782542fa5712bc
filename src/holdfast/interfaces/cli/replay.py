"""`holdfast replay`: record, run and compare."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from holdfast.errors import ConfigError
from holdfast.interfaces.cli import exit_codes
from holdfast.interfaces.cli.base import CliContext, command, group
from holdfast.interfaces.cli.completion_types import THREAD
from holdfast.interfaces.cli.formatting import plural, safe, size

if TYPE_CHECKING:
    from holdfast.replay import ReplayReport


@group("replay")
def replay(session: CliContext) -> None:
    """Record runs of agents, and run them again without their models and tools.

    \b
    holdfast replay record chat tests/refund.replay
    holdfast replay run tests/refund.replay --graph shop.graphs:refund
    """


@command("record")
@click.argument("thread", type=THREAD)
@click.argument("file", type=click.Path(dir_okay=False))
def record(session: CliContext, thread: str, file: str) -> None:
    """Write a recorded thread to a file, to be replayed anywhere, such as in a test.

    The file has what the thread said, in the clear.

    \b
    holdfast replay record chat tests/refund.replay
    """
    from holdfast import replay

    count = replay.record(session.open_to_record(), thread, file)
    session.tell(f"Recorded {safe(thread)}: {size(count)}", {"thread": thread, "file": file, "bytes": count})


@command("run")
@click.argument("source", metavar="THREAD|FILE", required=False)
@click.option(
    "--graph", required=True, metavar="MODULE:NAME", help="The graph to replay with, or a function that makes it."
)
@click.option("--since", metavar="REVISION", help="Replay from this checkpoint on.")
@click.option("--until", metavar="REVISION", help="Replay up to this checkpoint.")
@click.option(
    "--change", "changes", multiple=True, metavar="CALL=JSON", help="Replace the result of a call; may be repeated."
)
@click.option("--env", "env", multiple=True, metavar="NAME=VALUE", help="Set a variable for the code; may be repeated.")
@click.option("--open", "is_open", is_flag=True, help="Replay all threads that are not finished.")
@click.option("--timeout", type=float, default=600.0, show_default=True, help="Seconds that a replay may take.")
def run(
    session: CliContext,
    source: str | None,
    graph: str,
    since: str | None,
    until: str | None,
    changes: tuple[str, ...],
    env: tuple[str, ...],
    is_open: bool,
    timeout: float,
) -> None:
    """Replay a recorded thread, or the file of one, with the code of today.

    No model and no tool is called: what they returned is in the recording. The code runs in a process of its own,
    without network, credentials and access to the store. Ends with exit code 6 at the first divergence.

    \b
    holdfast replay run chat --graph shop.agent:graph
    holdfast replay run tests/refund.replay --graph shop.agent:graph
    holdfast replay run chat --graph shop.agent:graph --change '2:tools#0="no such order"'
    holdfast replay run --open --graph shop.agent:graph
    """
    from holdfast import replay

    if is_open == (source is not None):
        raise click.UsageError("give a thread or a file, or --open")
    given = dict(map(_pair, env))
    if is_open:
        found = list(replay.run_open(session.open_to_record(), graph, env=given, timeout=timeout))
    else:
        assert source is not None  # noqa: S101 - for the type checker
        edited = {name: _json(text) for name, text in map(_pair, changes)}
        options: dict[str, Any] = {"since": since, "until": until, "changes": edited, "env": given, "timeout": timeout}
        if Path(source).is_file():
            found = [replay.run(source, graph, **options)]
        else:
            found = [replay.run(session.open_to_record(), graph, thread=source, **options)]
    _report(session, found)


@command("compare")
@click.argument("a", metavar="FILE")
@click.argument("b", metavar="FILE")
def compare(session: CliContext, a: str, b: str) -> None:
    """Compare two recordings, and show where they differ first.

    \b
    holdfast replay compare before.replay after.replay
    """
    from holdfast import replay

    _report(session, [replay.compare(a, b)])


def _report(session: CliContext, found: list[ReplayReport]) -> None:
    if session.json:
        session.emit_all(each.to_json() for each in found)
    for each in found if not session.json else ():
        first = each.divergence
        done = f"{plural(each.steps, 'step')}, {plural(each.calls, 'call')}"
        if each.matches:
            session.out.line(f"{safe(each.thread)}: as recorded ({done})")
        elif first is None:
            session.out.line(f"{safe(each.thread)}: cannot be replayed exactly: {safe(each.note)}")
        else:
            session.out.line(f"{safe(each.thread)}: diverges at {safe(str(first), lines=True)}")
    if not all(each.matches for each in found):
        raise click.exceptions.Exit(exit_codes.FINDINGS)


def _pair(text: str) -> tuple[str, str]:
    name, sign, value = text.partition("=")
    if not sign or not name:
        raise click.UsageError(f"{text!r} is not of the form NAME=VALUE")
    return name, value


def _json(text: str) -> Any:
    import json

    try:
        return json.loads(text)
    except ValueError as error:
        raise ConfigError(f"the value of --change is no JSON: {error}", where=text[:80]) from error


for _each in (record, run, compare):
    replay.add_command(_each)
