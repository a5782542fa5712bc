"""The timeline as an HTML document that needs nothing else: to send to somebody, or to keep with a report."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

from holdfast.codec import default_codec
from holdfast.engine.types import to_time
from holdfast.store.timeline.event import TimelineEvent

_STYLE = """
:root { color-scheme: light dark; --line: #8884; --dim: #888; --bad: #c33; }
body { font: 14px/1.5 system-ui, sans-serif; margin: 1.5rem; }
h1 { font-size: 1.3rem; } p { color: var(--dim); }
input { font: inherit; padding: .3rem .5rem; width: min(30rem, 100%); margin-bottom: 1rem; }
ol { list-style: none; padding: 0; margin: 0; border-left: 2px solid var(--line); }
li { padding: .25rem 0 .25rem 1rem; border-bottom: 1px solid var(--line); overflow-wrap: anywhere; }
li:target { background: #fe03; } li[hidden] { display: none; }
time, .place, .by { color: var(--dim); } time { font-variant-numeric: tabular-nums; margin-right: .6rem; }
.kind { display: inline-block; min-width: 5.5rem; font-weight: 600; }
.failed .outcome { color: var(--bad); font-weight: 600; } .effect { margin-left: 2rem; }
pre { white-space: pre-wrap; margin: .3rem 0; } summary { cursor: pointer; }
"""

# Nothing of a store is in the script: it only hides what does not contain the text.
_SCRIPT = """
const box = document.querySelector("input"), items = document.querySelectorAll("li");
box.addEventListener("input", () => {
  const text = box.value.toLowerCase();
  for (const item of items) item.hidden = !item.textContent.toLowerCase().includes(text);
});
"""

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'"


def to_html(events: Sequence[TimelineEvent], title: str) -> str:
    """Return events as a document, in their order. All text is escaped; nothing is fetched."""
    ids = {event.id for event in events}
    parts = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head><body>",
        f"<h1>{escape(title)}</h1>",
        f"<p>{len(events):,} events{_span(events)}. Times are UTC.</p>",
        '<input type="search" placeholder="Filter" aria-label="Filter the events">',
        "<ol>",
        *_items(events, ids),
        f"</ol><script>{_SCRIPT}</script></body></html>",
    ]
    return "\n".join(parts) + "\n"


def _span(events: Sequence[TimelineEvent]) -> str:
    if not events:
        return ""
    first, last = min(event.time for event in events), max(event.time for event in events)
    return f", from {first:%Y-%m-%d %H:%M:%S} to {last:%Y-%m-%d %H:%M:%S}"


def _items(events: Iterable[TimelineEvent], ids: set[str]) -> Iterable[str]:
    marked: set[str] = set()
    for event in events:
        name = "" if event.id in marked else f' id="{escape(event.id, quote=True)}"'
        marked.add(event.id)
        classes = " ".join([*(["failed"] if event.failed else []), *(["effect"] if event.cause in ids else [])])
        yield f'<li{name} class="{classes}">{_item(event, ids)}</li>'


def _item(event: TimelineEvent, ids: set[str]) -> str:
    place = " ".join(filter(None, (event.scope, event.key)))
    parts = [
        f'<time datetime="{event.time.isoformat()}">{event.time:%m-%d %H:%M:%S.%f}</time>',
        f'<span class="kind">{escape(event.kind)}</span> {escape(event.action)} ',
        f'<span class="place">{escape(place)}</span> ',
    ]
    if event.failed:
        parts.append(f'<span class="outcome">{escape(event.outcome)}</span> ')
    if event.duration:
        parts.append(f'<span class="by">{event.duration * 1000:.1f} ms</span> ')
    if event.actor:
        parts.append(f'<span class="by">by {escape(event.actor)}</span> ')
    if event.cause in ids:
        parts.append(f'<a href="#{escape(event.cause, quote=True)}">cause</a> ')
    parts.append(escape(event.summary))
    parts.append(f"<details><summary>details</summary><pre>{escape(_details(event))}</pre></details>")
    return "".join(parts)


def _details(event: TimelineEvent) -> str:
    names = ("id", "correlation", "cause", "trace_id", "span_id")
    found: dict[str, Any] = {name: value for name in names if (value := getattr(event, name))}
    found["nanoseconds"] = to_time(event.time)
    if event.detail:
        found["detail"] = default_codec.to_plain(dict(event.detail))
    return json.dumps(found, indent=1, ensure_ascii=False, default=str)
