"""`holdfast prune`: remove old checkpoints by a policy."""

from __future__ import annotations

import re
import sys
from datetime import UTC
from typing import TYPE_CHECKING, Any

import click

from holdfast.errors import InvalidError
from holdfast.interfaces.cli.base import CliContext, command, dry_run_option, yes_option
from holdfast.interfaces.cli.completion_types import THREAD
from holdfast.interfaces.cli.exit_codes import CONFLICT, ERROR, INTEGRITY
from holdfast.interfaces.cli.formatting import ago, plural, safe, size
from holdfast.interfaces.cli.output import on_terminal

if TYPE_CHECKING:
    from holdfast.maintenance.orphans import OrphanReport
    from holdfast.maintenance.pruner import PruneReport, ThreadPruneReport

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(i?)b?", re.IGNORECASE)
_POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}


class SizeType(click.ParamType[int]):
    """A number of bytes, as in `500MB`, `1.5GB`, `64KiB`."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """The number."""
        found = _SIZE.fullmatch(value.strip()) if isinstance(value, str) else None
        if found is None:
            self.fail(f"{value!r} is no size: write 500MB, 1.5GB or 64KiB", param, ctx)
        return int(float(found[1]) * (1024 if found[3] else 1000) ** _POWERS[found[2].lower()])


_COUNT = click.IntRange(1)


@command("prune")
@click.argument("threads", nargs=-1, type=THREAD, metavar="[THREAD]...")
@click.option("--all", "everything", is_flag=True, help="All threads.")
@click.option("--prefix", metavar="TEXT", help="The threads whose names start so.")
@click.option("--where", metavar="QUERY", help="The threads that a query finds, as in 'steps>100 updated<30d'.")
@click.option("--keep-last", type=_COUNT, metavar="N", help="Keep the last N checkpoints.")
@click.option("--keep-within", metavar="AGE", help="Keep those younger than that: 30d, 12h, 1w.")
@click.option(
    "--keep-hourly", type=_COUNT, metavar="N", help="Keep the last of each of the last N hours that have one."
)
@click.option("--keep-daily", type=_COUNT, metavar="N", help="The same with days.")
@click.option("--keep-weekly", type=_COUNT, metavar="N", help="The same with weeks, from Monday on.")
@click.option("--keep-monthly", type=_COUNT, metavar="N", help="The same with months.")
@click.option("--keep-yearly", type=_COUNT, metavar="N", help="The same with years.")
@click.option("--keep-label", "keep_labels", multiple=True, metavar="PATTERN", help="Keep those with such a label.")
@click.option("--keep-where", metavar="QUERY", help="Keep those that a query finds.")
@click.option("--keep-latest", is_flag=True, help="Keep the latest, and nothing else.")
@click.option("--drop-tagged", is_flag=True, help="Drop also what has a tag or a label; --keep-label keeps some.")
@click.option("--max-size", type=SizeType(), metavar="SIZE", help="Drop the oldest until all of it together fits.")
@click.option("--max-thread-size", type=SizeType(), metavar="SIZE", help="Drop the oldest until each thread fits.")
@click.option("--local", "local_days", is_flag=True, help="Days and hours by the clock of this machine, not by UTC.")
@click.option("--orphans", is_flag=True, help="Remove also rows that belong to nothing, as of a copy that died.")
@click.option("--grace", metavar="AGE", default="1d", show_default=True, help="How long orphans are left alone.")
@dry_run_option
@yes_option
def prune(
    session: CliContext,
    threads: tuple[str, ...],
    everything: bool,
    prefix: str | None,
    where: str | None,
    orphans: bool,
    grace: str,
    dry_run: bool,
    yes: bool,
    **rules: Any,
) -> None:
    """Remove old checkpoints of some threads, or of all, by a policy.

    A checkpoint stays if any rule keeps it, and reads as before. The latest, the last one of each named branch and what
    is pinned always stay; what has a tag or a label, unless --drop-tagged is given. Threads that are held are left
    alone.

    \b
    holdfast prune chat-1 --keep-last 100
    holdfast prune --all --keep-within 30d --keep-daily 90 --dry-run
    holdfast prune --all --max-size 10GB --yes
    """
    policy = _policy(rules)
    if policy is None and not orphans:
        raise InvalidError(
            "no rule says what is to stay", hint="Give --keep-last, --keep-within, --keep-daily, --max-size …"
        )
    if policy is not None and not (threads or everything or prefix is not None or where is not None):
        raise InvalidError("no thread is named", hint="Name threads, or give --all, --prefix or --where")
    if policy is not None and everything and (threads or prefix is not None or where is not None):
        raise InvalidError("--all stands for all threads, and others are named", hint="Leave out one of them")
    if not (dry_run or yes or (on_terminal(sys.stdin) and on_terminal(sys.stderr))):
        session.confirm("", yes=False)  # says that nobody can be asked
    store = session.open(write=not dry_run)
    selected: dict[str, Any] = {"threads": threads or None, "prefix": prefix or "", "where": where}
    details = session.verbose or len(threads) == 1

    def run(*, dry: bool, shown: bool) -> tuple[PruneReport | None, OrphanReport | None]:
        pruned = left = None
        with session.progress("Looking" if dry else "Pruning") as tell:
            if policy is not None:
                each = (lambda thread: _show(session, thread, details=details, dry=dry)) if shown else _unseen
                pruned = store.maintenance.prune(policy=policy, **selected, dry_run=dry, progress=tell, each=each)
            if orphans:
                left = store.maintenance.sweep_orphans(dry_run=dry, grace=grace, progress=tell)
        return pruned, left

    planned = dry_run or not yes
    if planned:
        pruned, left = run(dry=True, shown=dry_run or not session.json)
        if dry_run or not (_goes(pruned) or _goes(left)):
            _end(session, pruned, left, shown=True)
            return
        _end(session, pruned, left, shown=not session.json, final=False)
        session.confirm("Go on?", yes=False)
    pruned, left = run(dry=False, shown=session.json or not planned)
    _end(session, pruned, left, shown=True)


def _policy(rules: dict[str, Any]) -> Any:
    from holdfast.maintenance.retention import Retention

    given = {
        **{name: value for name, value in rules.items() if name.startswith("keep_") and value},
        "keep_tagged": not rules["drop_tagged"],
        "max_bytes": rules["max_size"],
        "max_thread_bytes": rules["max_thread_size"],
    }
    if len(given) == 3 and given["max_bytes"] is None and given["max_thread_bytes"] is None:
        return None
    # None, and not the zone of now: that would be an hour off for the other half of the year.
    return Retention(**given, zone=None if rules["local_days"] else UTC)


def _unseen(thread: ThreadPruneReport) -> None:
    """The plan said it all."""


def _goes(report: PruneReport | OrphanReport | None) -> bool:
    return report is not None and bool(report.rows or getattr(report, "dropped", 0))


def _show(session: CliContext, thread: ThreadPruneReport, *, details: bool, dry: bool) -> None:
    """Write what becomes of a thread."""
    if session.json:
        session.emit(thread)
        return
    out = session.out
    if thread.problem:
        session.warn(f"{thread.thread}: {thread.problem}")
        return
    if details:
        rows = [
            ("keep" if each.kept else "drop", each.id, ago(each.time), ", ".join(each.reasons))
            for each in thread.checkpoints
        ]
        if rows:
            out.table(("", "CHECKPOINT", "SAVED", "WHY"), rows, styles={"CHECKPOINT": "yellow"})
    if thread.dropped or details:
        goes = "would go" if dry else "removed"
        text = f"{thread.thread}: {plural(thread.dropped, 'checkpoint')} {goes}, {thread.kept:,} kept, "
        out.line(safe(text + f"{_signed(thread.bytes)} {'would return' if dry else 'returned'}"))


def _signed(count: int) -> str:
    return size(count) if count >= 0 else f"-{size(-count)}"


def _end(
    session: CliContext, pruned: PruneReport | None, left: OrphanReport | None, *, shown: bool, final: bool = True
) -> None:
    """Write what it comes to; at the end, with the exit code that fits."""
    if shown:
        _sum_up(session, pruned, left)
    if not final:
        return
    codes = {each.code for each in pruned.problems} if pruned is not None else set()
    if left is not None and left.problems:
        codes.add("corrupt")
    if codes:
        raise click.exceptions.Exit(INTEGRITY if "corrupt" in codes else ERROR if codes == {"denied"} else CONFLICT)


def _sum_up(session: CliContext, pruned: PruneReport | None, left: OrphanReport | None) -> None:
    if session.json:
        total: dict[str, Any] = {}
        if pruned is not None:
            names = ("dry_run", "kept", "dropped", "rows", "bytes", "left", "over")
            total["pruned"] = {"threads": len(pruned.threads), **{name: getattr(pruned, name) for name in names}}
        if left is not None:
            total["orphans"] = left
        session.emit({"total": total})
        return
    out = session.out
    if pruned is not None:
        goes, returns = ("would go", "would return") if pruned.dry_run else ("removed", "returned")
        text = f"{plural(pruned.dropped, 'checkpoint')} of {plural(len(pruned.threads), 'thread')} {goes}, "
        text += f"{pruned.kept:,} kept; {_signed(pruned.bytes)} {returns}."
        out.line(out.style(text, "bold"))
        if pruned.over:
            session.warn(f"what must stay is {size(pruned.over)} larger than it may be")
    if left is not None:
        for each in left.found:
            later = "; may be in use, goes later" if each.waits else ""
            out.line(safe(f"{each.thread}: {plural(each.rows, 'row')}, {size(each.bytes)}, {each.what}{later}"))
        for name, problem in left.problems.items():
            session.warn(f"{name}: {problem}")
        goes = "would go" if left.dry_run else "removed"
        out.line(out.style(f"{plural(left.rows, 'row')} of orphans {goes}, {size(left.bytes)}.", "bold"))
