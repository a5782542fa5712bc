"""`holdfast replay`: record, export, run and compare."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from holdfast._views import size
from holdfast.errors import ConfigError
from holdfast.interfaces.cli import exit_codes
from holdfast.interfaces.cli.base import CliContext, command, group, pairs
from holdfast.interfaces.cli.completion_types import THREAD
from holdfast.interfaces.cli.formatting import plural, safe

if TYPE_CHECKING:
    from holdfast.store.replay.report import ReplayReport


@group("replay")
def replay(session: CliContext) -> None:
    """Record runs of agents, and run them again without their models and tools.

    holdfast replay export chat tests/ --graph shop.graphs:refund
    holdfast replay record chat refund.replay
    holdfast replay run refund.replay --graph shop.graphs:refund
    """


@command("record", thread=THREAD, file=click.Path(dir_okay=False))
def record(session: CliContext, thread: str, file: str) -> None:
    """Write a recorded thread to a file, to be replayed anywhere, such as in a test.

    The file has what the thread said, in the clear.

    holdfast replay record chat tests/refund.replay
    """
    from holdfast import replay

    count = replay.record(session.open_to_record(), thread, file)
    session.tell(f"Recorded {safe(thread)}: {size(count)}", {"thread": thread, "file": file, "bytes": count})


@command("export", thread=THREAD, folder=click.Path(file_okay=False))
@click.option("--graph", metavar="MODULE:NAME", required=True, help="The graph to replay with.")
@click.option("--env", "env", multiple=True, metavar="NAME=VALUE", help="Set a variable for the code; may be repeated.")
@click.option("--timeout", type=float, default=600.0, show_default=True, help="Seconds that a replay may take.")
def export(session: CliContext, thread: str, folder: str, graph: str, env: tuple[str, ...], timeout: float) -> None:
    """Write a recorded thread, and the pytest that replays it, to a folder.

    Credentials and personal data are replaced in the recording. It is replayed once, and nothing is written if it
    differs. A test that is there already is kept.

    holdfast replay export chat tests/ --graph shop.graphs:refund
    """
    from holdfast import replay

    given = dict(map(_pair, env))
    written = replay.export(session.open_to_record(), thread, folder, graph, env=given, timeout=timeout)
    recording, test = map(str, written)
    session.tell(f"Wrote {safe(recording)} and {safe(test)}", {"thread": thread, "recording": recording, "test": test})


@command("run")
@click.argument("source", metavar="THREAD|FILE|AGENT", required=False)
@click.option("--graph", metavar="MODULE:NAME", help="The graph to replay with, or a function that makes it.")
@click.option("--agent", metavar="MODULE:CLASS", help="The class to replay an agent with, in place of a thread.")
@click.option("--since", metavar="REVISION", help="Replay from this checkpoint on.")
@click.option("--until", metavar="REVISION", help="Replay up to this checkpoint.")
@click.option(
    "--change", "changes", multiple=True, metavar="CALL=JSON", help="Replace the result of a call; may be repeated."
)
@click.option("--env", "env", multiple=True, metavar="NAME=VALUE", help="Set a variable for the code; may be repeated.")
@click.option("--open", "is_open", is_flag=True, help="Replay all threads and agents that are not finished.")
@click.option("--timeout", type=float, default=600.0, show_default=True, help="Seconds that a replay may take.")
def run(
    session: CliContext,
    source: str | None,
    graph: str | None,
    agent: str | None,
    since: str | None,
    until: str | None,
    changes: tuple[str, ...],
    env: tuple[str, ...],
    is_open: bool,
    timeout: float,
) -> None:
    """Replay a recorded thread, the file of one, or an agent, with the code of today.

    No model and no tool is called: what they returned is in the recording. The code runs in a process of its own,
    without network, credentials and access to the store. Ends with exit code 6 at the first divergence.

    holdfast replay run chat --graph shop.agent:graph
    holdfast replay run tests/refund.replay --graph shop.agent:graph
    holdfast replay run chat --graph shop.agent:graph --change '2:tools#0="no such order"'
    holdfast replay run clerk-1 --agent shop.clerk:Clerk
    holdfast replay run --open --graph shop.agent:graph --agent shop.clerk:Clerk
    """
    from holdfast import replay

    if is_open == (source is not None):
        raise click.UsageError("give a thread, a file or an agent, or --open")
    if (graph is None and agent is None) or (not is_open and graph is not None and agent is not None):
        raise click.UsageError("give --graph for a thread, or --agent for an agent")
    if (since or until or changes) and (is_open or agent is not None):
        raise click.UsageError("--since, --until and --change are for a thread")
    given = dict(map(_pair, env))
    found: Iterable[ReplayReport]
    if source is None:
        found = replay.run_open(session.open_to_record(), graph, agent=agent, env=given, timeout=timeout)
    elif agent is not None:
        found = [replay.run_agent(session.open_to_record(), source, agent, env=given, timeout=timeout)]
    else:
        assert graph is not None  # noqa: S101 - for the type checker
        edited = {name: _json(text) for name, text in map(_pair, changes)}
        options: dict[str, Any] = {"since": since, "until": until, "changes": edited, "env": given, "timeout": timeout}
        if Path(source).is_file():
            found = [replay.run(source, graph, **options)]
        else:
            found = [replay.run(session.open_to_record(), graph, thread=source, **options)]
    _report(session, list(found))


@command("hooks")
@click.argument("register", metavar="MODULE:NAME")
@click.option("--hook", help="Only calls of this hook.")
@click.option("--scope", help="Only calls for this scope.")
@click.option("--key", help="Only calls for this key.")
@click.option("--since", metavar="TIME", help="Only calls since then, such as 2h.")
@click.option("--reference", metavar="TEXT", help="Only this call, by the reference that `hooks history --json` shows.")
@click.option("--limit", type=int, default=1000, show_default=True, help="How many calls, the latest ones.")
@click.option("--value", metavar="JSON", help="Give the hooks this value in place of the recorded one.")
@click.option(
    "--set",
    "changes",
    multiple=True,
    metavar="NAME=JSON",
    help="Give the hooks another key, value, old, actor or metadata; may be repeated.",
)
@click.option("--env", "env", multiple=True, metavar="NAME=VALUE", help="Set a variable for the code; may be repeated.")
@click.option("--timeout", type=float, default=600.0, show_default=True, help="Seconds that it may take.")
def hooks(
    session: CliContext,
    register: str,
    value: str | None,
    changes: tuple[str, ...],
    env: tuple[str, ...],
    **selected: Any,
) -> None:
    """Replay recorded calls of hooks with those that a function registers, and compare how they end.

    They run on a fork of the state at that moment, in a process of its own, as with `replay run`. Ends with exit code 6
    if a call differs.

    holdfast replay hooks shop.hooks:register --since 1d
    """
    from holdfast import replay

    found = replay.run_hooks(
        session.open_to_record(),
        register,
        value=None if value is None else _json(value, "--value"),
        changes=pairs(changes, "--set"),
        env=dict(map(_pair, env)),
        **selected,
    )
    if session.json:
        session.list(found.calls)
    else:
        for each in found.differing:
            what = f"{each.outcome}, and was {each.recorded_outcome}" + (f"; it {each.effect}" if each.effect else "")
            session.out.line(safe(f"{each.hook} {each.scope} {each.key}: {what}\n{each.diff}".rstrip(), lines=True))
        session.out.line(found.summary)
    session.exit_if(found.differing, exit_codes.FINDINGS)


@command("compare")
@click.argument("a", metavar="FILE")
@click.argument("b", metavar="FILE")
def compare(session: CliContext, a: str, b: str) -> None:
    """Compare two recordings, and show where they differ first.

    holdfast replay compare before.replay after.replay
    """
    from holdfast import replay

    _report(session, [replay.compare(a, b)])


def _report(session: CliContext, found: list[ReplayReport]) -> None:
    for each in found:
        session.report(_lines(each), each.to_json())
    session.exit_if(not all(each.matches for each in found), exit_codes.FINDINGS)


def _lines(found: ReplayReport) -> Iterator[str]:
    first = found.divergence
    if found.matches:
        yield f"{safe(found.thread)}: as recorded ({plural(found.steps, 'step')}, {plural(found.calls, 'call')})"
    elif first is None:
        yield f"{safe(found.thread)}: cannot be replayed exactly: {safe(found.note)}"
    else:
        yield f"{safe(found.thread)}: diverges at {safe(str(first), lines=True)}"
        yield from (f"  also at {safe(effect)}" for effect in found.effects if effect != str(first))


def _pair(text: str) -> tuple[str, str]:
    name, sign, value = text.partition("=")
    if not sign or not name:
        raise click.UsageError(f"{text!r} is not of the form NAME=VALUE")
    return name, value


def _json(text: str, option: str = "--change") -> Any:
    import json

    try:
        return json.loads(text)
    except ValueError as error:
        raise ConfigError(f"the value of {option} is not JSON: {error}", where=text[:80]) from error


replay.add(record, export, run, hooks, compare)
