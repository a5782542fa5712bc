"""`holdfast timeline` and `watch`: what happened in a store, and why; and what happens now."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from time import sleep
from typing import TYPE_CHECKING, Any

import click

from holdfast.engine.model.scopes import readable_place
from holdfast.interfaces.cli.base import CliContext, check_folder, command, limit_option
from holdfast.interfaces.cli.completion_types import SCOPE, THREAD
from holdfast.interfaces.cli.exit_codes import NOT_FOUND
from holdfast.interfaces.cli.formatting import clock, plural, safe
from holdfast.interfaces.cli.grep import GrepCommand
from holdfast.interfaces.cli.scope_args import SPAN, TIME

if TYPE_CHECKING:
    from holdfast.interfaces.cli.output import Output
    from holdfast.store.store import Store
    from holdfast.store.timeline.api import Timeline
    from holdfast.store.timeline.causality import CausalNode
    from holdfast.store.timeline.event import TimelineEvent

_PAGE = 500

_AGAIN = timedelta(seconds=10)
"""How long before the last event `watch` looks again."""


@command("timeline", cls=GrepCommand)
@click.option("--thread", type=THREAD, metavar="THREAD", help="Only about this thread.")
@click.option("--scope", type=SCOPE, metavar="SCOPE", help="Only in this scope, and in those inside.")
@click.option("--errors", is_flag=True, help="Only what failed or was refused.")
@click.option("--since", metavar="WHEN", help="Only since a time: 2h, yesterday, 2026-11-01.")
@click.option("--until", metavar="WHEN", help="Only until a time.")
@click.option("--oldest-first", is_flag=True, help="Begin with the oldest.")
@click.option("--after", metavar="CURSOR", help="Continue where an earlier listing ended, by its cursor.")
@click.option("--causes", metavar="ID", help="Show what led to the event with this id.")
@click.option("--effects", metavar="ID", help="Show what the event with this id led to.")
@click.option("--of", "value", metavar="PATH", help="With --thread or --scope: show what led to this value.")
@click.option("--html", metavar="FILE", type=click.Path(dir_okay=False), help="Write an HTML document.")
@click.option("--otlp", metavar="FILE", type=click.Path(dir_okay=False), help="Write spans of OpenTelemetry, as JSON.")
@click.option("--as", "identity", type=SCOPE, metavar="WHO", help="Show what this identity may read.")
@limit_option(100)
def timeline(
    session: CliContext,
    query: tuple[str, ...],
    limit: int,
    after: str | None,
    causes: str | None,
    effects: str | None,
    value: str | None,
    html: str | None,
    otlp: str | None,
    identity: str | None,
    **filters: Any,
) -> None:
    """Show what happened, the newest first: checkpoints, changes, hooks, transitions, transfers, sessions, the audit.

    \b
    refund "exact phrase" pref*            text in a checkpoint or in details
    a OR b, -a, (a b)                      either; not; both
    kind:hook action:set outcome:error     what it was
    thread: scope: agent: key: hook:       what it was about
    actor: correlation: cause: id: trace:  who did it, and why
    time>2h before:monday duration>100     when, and for how many milliseconds

    With --json every event has its details. The exit code is 3 if nothing matches.

    holdfast timeline 'kind:hook outcome:error' --since 1d
    holdfast timeline --thread chat-1 --of plan.goal
    holdfast timeline correlation:req-1 --html request.html
    """
    if sum(each is not None for each in (causes, effects, value)) > 1:
        raise click.UsageError("give one of --causes, --effects and --of")
    store = session.open() if identity is None else session.open_to_record()
    source: Timeline = store.timeline if identity is None else store.as_identity(identity).timeline
    if causes is not None or value is not None:
        _show_tree(session, _find_causes(source, causes, value, filters["thread"], filters["scope"]))
        return
    if effects is not None:
        _show_tree(session, source.effects(effects))
        return
    text = " ".join(query)
    events = _Events(source, text, limit, after, filters)
    if html is not None or otlp is not None:
        _write(session, events, html, otlp, text)
    else:
        session.list(events, none="Nothing of that kind happened.", exact=True)
    if events.next is not None:
        session.note(f"There are more: --after {events.next}")
    if option := _option_of(store, text):
        session.note(f"{text} was searched as text. All that is about it: holdfast timeline {option}")
    session.exit_if(not events.count, NOT_FOUND)


def _option_of(store: Store, text: str) -> str:
    """Return the option for the events of a thread, an agent or a scope, if a text is the name of one."""
    if not text or any(each in text for each in ' ()*"'):
        return ""
    if any(each.name == text for each in store.threads(prefix=text, limit=1)):
        return f"--thread {shlex.quote(text)}"
    if any(each.id == text for each in store.agents.list(prefix=text, limit=1)):
        return f"--scope {shlex.quote(f'agent:{text}')}"
    found = (each.scope for each in store.scopes(limit=_PAGE))
    scope = next((each for each in found if text == str(each) or text in [part.name for part in each.parts]), None)
    return f"--scope {shlex.quote(str(scope))}" if scope else ""


class _Events:
    """The events of a query, page by page. All of them are searched."""

    def __init__(self, source: Timeline, query: str, limit: int, after: str | None, filters: dict[str, Any]) -> None:
        self._source = source
        self._query = query
        self._limit = limit
        self._filters = filters
        self.count = 0
        self.next = after
        """The cursor of those that follow."""

    def __iter__(self) -> Iterator[TimelineEvent]:
        while self.count < self._limit:
            size = min(self._limit - self.count, _PAGE)
            page = self._source.query(self._query, limit=size, cursor=self.next, scan_limit=None, **self._filters)
            for event in page:
                self.count += 1
                yield event
            self.next = page.next
            if self.next is None:
                return


def _write(session: CliContext, events: _Events, html: str | None, otlp: str | None, query: str) -> None:
    """Write files."""
    from holdfast._views import encode
    from holdfast.store.timeline.api import TimelinePage

    page = TimelinePage(events)
    files = {html: page.to_html(f"Timeline {query}".strip()), otlp: encode(page.to_otlp()) + "\n"}
    for name, content in files.items():
        if name is None:
            continue
        check_folder(name)
        Path(name).write_text(content, encoding="utf-8")
        session.tell(f"Wrote {plural(len(page), 'event')} to {name}.", {"file": name, "events": len(page)})


def _find_causes(
    source: Timeline, id: str | None, value: str | None, thread: str | None, scope: str | None
) -> CausalNode:
    if id is not None:
        return source.causes(id)
    if (thread is None) is (scope is None):
        raise click.UsageError("--of names a value of a thread or of a scope: give --thread or --scope")
    return source.causes(thread=thread, path=value) if thread is not None else source.causes(scope=scope, key=value)


def _show_tree(session: CliContext, tree: CausalNode) -> None:
    """Show a tree: an event to a line, indented below what it belongs to."""
    for depth, node in tree.walk():
        record = {"depth": depth, "id": node.id, "events": node.events, "more": node.more}
        session.report(_node_lines(session.out, depth, node), record)


def _node_lines(out: Output, depth: int, node: CausalNode) -> Iterator[str]:
    if not node.events:
        yield f"{'  ' * depth}{out.style(safe(node.id), 'dim')} is not there any more"
    for event in node.events:
        kind = out.style(f"{event.kind} {safe(event.action)}", "yellow")
        place = " ".join(filter(None, (event.scope, event.key)))
        outcome = f" [{event.outcome}]" if event.failed else ""
        yield f"{'  ' * depth}{clock(event.time)} {kind} {safe(f'{place}{outcome} {event.summary}'.rstrip())}"
    if node.more:
        yield f"{'  ' * (depth + 1)}…"


@command("watch", cls=GrepCommand)
@click.option("--thread", type=THREAD, metavar="THREAD", help="Only about this thread.")
@click.option("--scope", type=SCOPE, metavar="SCOPE", help="Only in this scope, and in those inside.")
@click.option("--errors", is_flag=True, help="Only what failed or was refused.")
@click.option("--since", metavar="WHEN", type=TIME, help="Begin with what happened since then: 2h, yesterday.")
@click.option("--interval", default="1s", show_default=True, metavar="SPAN", type=SPAN, help="How often to look.")
@limit_option()
def watch(
    session: CliContext,
    query: tuple[str, ...],
    since: datetime | None,
    interval: timedelta,
    limit: int | None,
    **filters: Any,
) -> None:
    """Show what happens in the store as it happens, until Ctrl-C: what `holdfast timeline` lists, by any process.

    QUERY is one of the timeline. `holdfast state watch` shows the values of a scope, each change once.

    holdfast watch
    holdfast watch --thread chat-1
    holdfast watch kind:hook --errors --json
    """
    store, text = session.open(), " ".join(query)
    begin = since or datetime.now(UTC)
    seen: dict[tuple[str, int, str], datetime] = {}
    store.timeline.query(text, limit=1, since=begin, **filters)  # an error in the query is said before the wait
    session.note("Watching. Ctrl-C ends.")
    while True:
        for event in _Events(
            store.timeline, text, sys.maxsize, None, {**filters, "since": begin, "oldest_first": True}
        ):
            if (name := (event.id, event.number, event.kind)) in seen:
                continue
            seen[name] = event.time
            session.report((_event_line(session.out, event),), event, page=False)
            session.out.flush()
            if len(seen) == limit:
                return
        if limit is None and seen:
            # What another process saved earlier may be seen later, so a little of what was seen is read again.
            begin = max(begin, max(seen.values()) - _AGAIN)
            seen = {name: time for name, time in seen.items() if time >= begin}
        sleep(interval.total_seconds())


def _event_line(out: Output, event: TimelineEvent) -> str:
    kind = out.style(f"{event.kind} {safe(event.action)}", "yellow")
    place = readable_place(event.scope)
    what = safe(" ".join(filter(None, (place, event.key, f"[{event.outcome}]" if event.failed else "", event.summary))))
    return f"{clock(event.time)}  {kind}  {what}{f', by {safe(event.actor)}' if event.actor else ''}"
