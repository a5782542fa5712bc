"""`holdfast prune`: remove old checkpoints by a policy."""

from __future__ import annotations

import re
import sys
from datetime import UTC
from typing import TYPE_CHECKING, Any

import click

from holdfast._views import size
from holdfast.errors import InvalidError
from holdfast.interfaces.cli.base import CliContext, command, dry_run_option, kinds_option, parse_kinds, yes_option
from holdfast.interfaces.cli.completion_types import THREAD
from holdfast.interfaces.cli.exit_codes import CONFLICT, ERROR, INTEGRITY
from holdfast.interfaces.cli.formatting import plural, safe
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
        """Parse a size."""
        match = _SIZE.fullmatch(value.strip()) if isinstance(value, str) else None
        if match is None:
            self.fail(f"{value!r} is not a size: write 500MB, 1.5GB or 64KiB", param, ctx)
        return int(float(match[1]) * (1024 if match[3] else 1000) ** _POWERS[match[2].lower()])


_COUNT = click.IntRange(1)


@command("prune")
@click.argument("threads", nargs=-1, type=THREAD, metavar="[THREAD]...")
@click.option("--all", "everything", is_flag=True, help="All threads.")
@click.option("--prefix", metavar="TEXT", help="The threads whose names start with this.")
@click.option("--where", metavar="QUERY", help="The threads that match a query, such as 'steps>100 updated<30d'.")
@kinds_option("Prune lines of this kind in place of threads, all or those that are named; may be repeated.")
@click.option("--keep-last", type=_COUNT, metavar="N", help="Keep the last N checkpoints.")
@click.option("--keep-within", metavar="AGE", help="Keep those of this age or less: 30d, 12h, 1w.")
@click.option(
    "--keep-hourly", type=_COUNT, metavar="N", help="Keep the last checkpoint of each of the last N hours with any."
)
@click.option("--keep-daily", type=_COUNT, metavar="N", help="Keep the last of each of the last N days.")
@click.option("--keep-weekly", type=_COUNT, metavar="N", help="Keep the last of each of the last N weeks.")
@click.option("--keep-monthly", type=_COUNT, metavar="N", help="Keep the last of each of the last N months.")
@click.option("--keep-yearly", type=_COUNT, metavar="N", help="Keep the last of each of the last N years.")
@click.option("--keep-label", "keep_labels", multiple=True, metavar="PATTERN", help="Keep those with a matching label.")
@click.option("--keep-where", metavar="QUERY", help="Keep those that match a query.")
@click.option("--keep-recordings-within", metavar="AGE", help="Keep calls recorded for replay of this age or less.")
@click.option(
    "--keep-recordings-last", type=_COUNT, metavar="N", help="Keep those of the last N checkpoints that have any."
)
@click.option("--keep-latest", is_flag=True, help="Keep only the latest.")
@click.option("--drop-tagged", is_flag=True, help="Also drop those with a tag or a label, except by --keep-label.")
@click.option("--max-size", type=SizeType(), metavar="SIZE", help="Drop the oldest until all threads together fit.")
@click.option("--max-thread-size", type=SizeType(), metavar="SIZE", help="Drop the oldest until each thread fits.")
@click.option("--local", "local_days", is_flag=True, help="Days and hours in the local zone instead of UTC.")
@click.option("--orphans", is_flag=True, help="Also remove rows that belong to nothing.")
@click.option("--grace", metavar="AGE", default="1d", show_default=True, help="The least age of removed orphans.")
@dry_run_option
@yes_option
def prune(
    session: CliContext,
    threads: tuple[str, ...],
    everything: bool,
    prefix: str | None,
    where: str | None,
    kinds: tuple[str, ...],
    orphans: bool,
    grace: str,
    **rules: Any,
) -> None:
    """Remove old checkpoints of threads by a policy.

    A checkpoint is kept if any rule keeps it. The latest, the last one of each named branch, pinned checkpoints, and
    those with a tag or a label (unless --drop-tagged is given) are always kept. Held threads are skipped.

    holdfast prune chat-1 --keep-last 100
    holdfast prune --all --keep-within 30d --keep-daily 90 --dry-run
    holdfast prune --all --max-size 10GB --yes
    holdfast prune agent:researcher --kind scope --keep-last 100
    """
    policy = _policy(rules)
    if policy is None and not orphans:
        raise InvalidError(
            "no rule for what to keep was given", hint="Give --keep-last, --keep-within, --keep-daily, --max-size …"
        )
    if policy is not None and not (threads or everything or prefix is not None or where is not None):
        raise InvalidError("no thread is selected", hint="Name threads, or give --all, --prefix or --where")
    if policy is not None and everything and (threads or prefix is not None or where is not None):
        raise InvalidError("give --all or a selection of threads, not both")
    if not (session.dry_run or session.yes or (on_terminal(sys.stdin) and on_terminal(sys.stderr))):
        session.confirm("", yes=False)  # raises, before the long dry run
    store = session.open(write=not session.dry_run)
    selected: dict[str, Any] = {"threads": threads or None, "prefix": prefix or "", "where": where}
    selected["kinds"] = parse_kinds(kinds)
    details = session.verbose or len(threads) == 1

    def run(*, dry: bool, shown: bool) -> tuple[PruneReport | None, OrphanReport | None]:
        pruned = swept = None
        with session.progress("Planning" if dry else "Pruning") as progress:
            if policy is not None:
                each = (lambda thread: _show(session, thread, details=details, dry=dry)) if shown else _ignore
                pruned = store.maintenance.prune(policy=policy, **selected, dry_run=dry, progress=progress, each=each)
            if orphans:
                swept = store.maintenance.sweep_orphans(dry_run=dry, grace=grace, progress=progress)
        return pruned, swept

    planned = session.dry_run or not session.yes
    if planned:
        pruned, swept = run(dry=True, shown=session.dry_run or not session.json)
        if session.dry_run or not (_removes(pruned) or _removes(swept)):
            _finish(session, pruned, swept, shown=True)
            return
        _finish(session, pruned, swept, shown=not session.json, final=False)
        session.confirm("Continue?", yes=False)
    pruned, swept = run(dry=False, shown=session.json or not planned)
    _finish(session, pruned, swept, shown=True)


def _policy(rules: dict[str, Any]) -> Any:
    from holdfast.maintenance.retention import Retention

    fields = {
        **{name: value for name, value in rules.items() if name.startswith("keep_") and value},
        "keep_tagged": not rules["drop_tagged"],
        "max_bytes": rules["max_size"],
        "max_thread_bytes": rules["max_thread_size"],
    }
    if len(fields) == 3 and fields["max_bytes"] is None and fields["max_thread_bytes"] is None:
        return None
    # None is the local zone; its present offset would be wrong for half of the year.
    return Retention(**fields, zone=None if rules["local_days"] else UTC)


def _ignore(thread: ThreadPruneReport) -> None:
    """The plan was shown already."""


def _removes(report: PruneReport | OrphanReport | None) -> bool:
    return report is not None and bool(report.rows or report.bytes > 0 or getattr(report, "dropped", 0))


def _show(session: CliContext, thread: ThreadPruneReport, *, details: bool, dry: bool) -> None:
    """Write the effect on a thread."""
    if thread.problem and not session.json:
        session.warn(f"{thread.thread}: {thread.problem}")
        return
    if details and not session.json:
        session.list(thread.checkpoints, first=("kept",), kept=lambda each: "keep" if each.kept else "drop")
    verb = "would be removed" if dry else "removed"
    text = f"{thread.thread}: {plural(thread.dropped, 'checkpoint')} {verb}, {thread.kept:,} kept, "
    session.report(
        [safe(text + _freed(thread.bytes, dry=dry))] if thread.dropped or details else (), thread, page=False
    )


def _freed(count: int, *, dry: bool) -> str:
    """Say how many bytes are freed; a thread that keeps most of its checkpoints may grow a little."""
    if count < 0:
        return f"{size(-count)} {'would be added' if dry else 'added'}"
    return f"{size(count)} {'would be freed' if dry else 'freed'}"


def _finish(
    session: CliContext, pruned: PruneReport | None, swept: OrphanReport | None, *, shown: bool, final: bool = True
) -> None:
    """Write the totals; if it is `final`, exit with a code that tells of problems."""
    if shown:
        _write_totals(session, pruned, swept)
    if not final:
        return
    codes = {each.code for each in pruned.problems} if pruned is not None else set()
    if swept is not None and swept.problems:
        codes.add("corrupt")
    if codes:
        raise click.exceptions.Exit(INTEGRITY if "corrupt" in codes else ERROR if codes == {"denied"} else CONFLICT)


def _write_totals(session: CliContext, pruned: PruneReport | None, swept: OrphanReport | None) -> None:
    if session.json:
        total: dict[str, Any] = {}
        if pruned is not None:
            names = ("dry_run", "kept", "dropped", "rows", "bytes", "left", "over")
            total["pruned"] = {"threads": pruned.changed, **{name: getattr(pruned, name) for name in names}}
        if swept is not None:
            total["orphans"] = swept
        session.emit({"total": total})
        return
    out = session.out
    if pruned is not None:
        would = "would be " if pruned.dry_run else ""
        text = f"{plural(pruned.dropped, 'checkpoint')} of {plural(pruned.changed, 'thread')} {would}removed, "
        text += f"{pruned.kept:,} kept; {_freed(pruned.bytes, dry=bool(would))}."
        out.line(out.style(text, "bold"))
        if pruned.over:
            session.warn(f"the checkpoints that must be kept exceed the limit by {size(pruned.over)}")
    if swept is not None:
        for each in swept.found:
            later = "; may be in use, to be removed later" if each.waits else ""
            out.line(safe(f"{each.thread}: {plural(each.rows, 'row')}, {size(each.bytes)}, {each.what}{later}"))
        for name, problem in swept.problems.items():
            session.warn(f"{name}: {problem}")
        verb = "would be removed" if swept.dry_run else "removed"
        out.line(out.style(f"{plural(swept.rows, 'orphaned row')} {verb}, {size(swept.bytes)}.", "bold"))
