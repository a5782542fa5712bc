"""`holdfast usage`: the tokens that models took, and what they cost."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from holdfast.interfaces.cli.base import CliContext, command
from holdfast.interfaces.cli.completion_types import THREAD
from holdfast.interfaces.cli.formatting import plural, safe

if TYPE_CHECKING:
    from holdfast.history.usage import UsageKey

_KEYS = click.Choice(["day", "thread", "user", "agent", "model", "checkpoint"])


@command("usage")
@click.argument("pattern", default="", type=THREAD)
@click.option("--by", type=_KEYS, default="day", help="What to sum by.")
@click.option("--where", metavar="QUERY", default="", help="Only checkpoints that match, such as 'meta.user=alice'.")
@click.option("--since", metavar="TIME", help="Only checkpoints from then on: 7d, monday, 2026-11-01.")
@click.option("--until", metavar="TIME", help="Only checkpoints before then.")
@click.option("--all", "everything", is_flag=True, help="Read everything, not only 10,000 checkpoints.")
def usage(
    session: CliContext, pattern: str, by: UsageKey, where: str, since: str | None, until: str | None, everything: bool
) -> None:
    """Sum the tokens that models took, as the messages in threads say, and what they cost.

    PATTERN is a thread, or a pattern in which * stands for any text. Days are those of UTC. What a million tokens of a
    model cost stands in holdfast.toml:

    \b
    [prices]
    "gpt-5" = { input = 1.25, cached = 0.125, output = 10 }

    holdfast usage
    holdfast usage 'support-*' --by user --since 7d
    holdfast usage chat --by checkpoint
    """
    from msgspec.structs import replace

    from holdfast.engine.types import SCAN_LIMIT
    from holdfast.history.usage import query_of

    limit = None if everything else SCAN_LIMIT
    with session.progress("Reading") as progress:
        found = session.open().usage(
            by=by,
            where=query_of(where, pattern),
            since=since,
            until=until,
            scan_limit=limit,
            progress=None if session.paging else progress,
        )
    if session.json:
        session.emit(found)
    else:
        rows = [*found.sums, *([replace(found.total, key="total")] if len(found.sums) > 1 else [])]
        texts: dict[str, Any] = {by: lambda each: safe(each.key) or "none"}
        if found.total.cost:
            texts["cost"] = lambda each: f"{each.cost:,.2f}" if each.cost >= 1 else f"{each.cost:.6f}"
        hidden = ["key", *([] if found.total.cost else ["cost"])]
        session.list(rows, none="No message says how many tokens it took.", first=[by], hidden=hidden, **texts)
    if found.unpriced and found.total.cost:
        names = ", ".join(each or "messages that name no model" for each in found.unpriced)
        session.warn(f"no price for {names}: see [prices] in holdfast.toml")
    if found.stopped:
        session.warn(f"stopped after {plural(found.examined, 'checkpoint')}; for all of them: holdfast usage --all")
    if found.unreadable:
        session.warn(f"{plural(found.unreadable, 'checkpoint')} could not be read; see holdfast verify")
