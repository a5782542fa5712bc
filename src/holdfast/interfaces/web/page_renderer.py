"""Renders pages: the templates, and how values, times and texts are shown in them. Everything is escaped."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import cache
from importlib import resources
from typing import Any, NamedTuple
from urllib.parse import quote, urlencode

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from holdfast._views import Column, columns_of, pairs_of, seconds, size
from holdfast.interfaces.cli.formatting import clock, plural
from holdfast.interfaces.http.models import MessageModel, ToolCallModel
from holdfast.interfaces.http.values import long_text, preview_of
from holdfast.interfaces.web.markdown_text import rich_text
from holdfast.interfaces.web.places import correlation_address, place_address
from holdfast.interfaces.web.subgraphs import crumbs_of, thread_title

_SPANS = ((365 * 86400, "y"), (30 * 86400, "mo"), (7 * 86400, "w"), (86400, "d"), (3600, "h"), (60, "min"), (1, "s"))
_LONGEST = 4000
_DAY, _YEAR = 86400.0, 365 * 86400.0
_MEDIA = {".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".svg": "image/svg+xml"}


class StaticFile(NamedTuple):
    """A file that pages load."""

    content: bytes
    media: str


@cache
def static_files() -> Mapping[str, StaticFile]:
    """Return the files that pages load, by name. There are no others, whatever is asked for."""
    found = {}
    for each in resources.files("holdfast.interfaces.web").joinpath("static").iterdir():
        ending = each.name[each.name.rfind(".") :]
        if ending in _MEDIA:
            found[each.name] = StaticFile(each.read_bytes(), _MEDIA[ending])
    return found


@cache
def static_version() -> str:
    """Return a digest of the files: it is part of their addresses, so that browsers keep them until they change."""
    contents = [file.content for _, file in sorted(static_files().items())]
    return hashlib.sha256(b"\0".join(contents)).hexdigest()[:12]


@cache
def environment() -> Environment:
    """Return the templates."""
    made = Environment(
        loader=PackageLoader("holdfast.interfaces.web", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {
        "ago": time_with_clock,
        "since": time_tag,
        "clock": clock,
        "clock_time": clock_time,
        "size": size,
        "plural": plural,
        "segment": segment,
        "rich": rich_text,
        "thread_title": thread_title,
        "crumbs": crumbs_of,
        "place_address": place_address,
        "correlation_address": correlation_address,
        "number": lambda value: f"{value:,}",
        "milliseconds": seconds,
        "long_json": lambda value: long_text(dict(value), _LONGEST)[0],
        "preview": preview_of,
        "json_text": json_text,
        "python": python_text,
        "shell": shell_text,
    }
    made.globals |= {"static": _static_url, "query": query_text, "columns": _columns, "pairs_of": _pairs}
    made.globals["ui"] = made.get_template("parts/macros.html").module
    return made


def _static_url(name: str) -> str:
    return f"/static/{static_version()}/{name}"


def _columns(
    items: Sequence[Any], texts: Mapping[str, Any], first: Sequence[str], hidden: Sequence[str]
) -> list[Column]:
    """Return the columns of a table of records. `texts` are macros, of what a page says of a field or adds."""
    return columns_of(items[0], time_with_clock, texts, first=first, hidden=hidden)


def _pairs(record: Any, texts: Mapping[str, Any], hidden: Sequence[str]) -> list[tuple[str, Any]]:
    """Return the labels and texts of the fields of a record. `texts` are macros, as for a table."""
    said = {name: text(record).strip() for name, text in texts.items()}
    return pairs_of(record, lambda time: Markup("{} ({})").format(clock(time), time_tag(time)), said, hidden)


def segment(text: object) -> str:
    """Return text as one part of a path. Dots alone would be removed by browsers."""
    return quote(str(text), safe="")


def query_text(**params: object) -> str:
    """Return parameters as the query of an address; those that are None or empty are left out."""
    given = {name: str(value) for name, value in params.items() if value not in (None, "")}
    return f"?{urlencode(given)}" if given else ""


def short_span(seconds: float) -> str:
    """Return a time span in short: `2 min`."""
    for span, unit in _SPANS:
        if seconds >= span:
            return f"{int(seconds // span)} {unit}"
    return "0 s"


def json_text(value: Any) -> str:
    """Return JSON for people: text as it is, the rest on several lines."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, indent=2)


def time_tag(moment: datetime | None) -> Markup:
    """Return how long ago a time was."""
    if moment is None:
        return Markup("")
    seconds = (datetime.now(UTC) - moment).total_seconds()
    text = "now" if seconds < 1 else f"{short_span(seconds)} ago"
    iso = moment.astimezone(UTC).isoformat().replace("+00:00", "Z")
    return Markup('<time datetime="{0}" title="{0}">{1}</time>').format(iso, text)


def time_with_clock(moment: datetime | None) -> Markup:
    """Return how long ago a time was, with the time of the day beside it, or the day."""
    if moment is None:
        return Markup("")
    seconds, at = (datetime.now(UTC) - moment).total_seconds(), moment.astimezone(UTC)
    if seconds < _DAY:
        exact = clock_time(moment)
    else:
        day = f"{at.day} {at:%b}" if seconds < _YEAR else f"{at:%Y-%m-%d}"
        exact = Markup('<span class="clock">{}</span>').format(day)
    return time_tag(moment) + " " + exact


def clock_time(moment: datetime) -> Markup:
    """Return the time of the day, which a script turns into that of the reader's clock."""
    at = moment.astimezone(UTC)
    iso = at.isoformat().replace("+00:00", "Z")
    return Markup('<time class="clock" datetime="{0}" title="{0}" data-clock>{1:%H:%M} UTC</time>').format(iso, at)


def python_text(text: object) -> str:
    """Return text as a literal of Python."""
    return repr(str(text))


def shell_text(text: object) -> str:
    """Return text as a word of a shell."""
    plain = str(text)
    return plain if re.fullmatch(r"[A-Za-z0-9_./:@%+=-]+", plain) else "'" + plain.replace("'", "'\\''") + "'"


class CallLine(NamedTuple):
    """A call of a tool, with the message that has its result, if there is one."""

    call: ToolCallModel
    result: MessageModel | None


class MessageBlock(NamedTuple):
    """A message as it is shown: with its calls, and whether the step added it."""

    message: MessageModel
    calls: list[CallLine]
    new: bool


def message_blocks(messages: Sequence[MessageModel], new: set[str]) -> Iterator[MessageBlock]:
    """Yield messages, those of tools folded into the calls that they answer."""
    results = {each.tool_call_id: each for each in messages if each.tool_call_id}
    called = {call.id for each in messages for call in each.tool_calls if call.id in results}
    for message in messages:
        if message.tool_call_id in called:
            continue
        calls = [CallLine(call, results.get(call.id) if call.id else None) for call in message.tool_calls]
        paths = {message.path, *(line.result.path for line in calls if line.result is not None)}
        yield MessageBlock(message, calls, bool(paths & new))


def render(template: str, **values: Any) -> str:
    """Render a template."""
    return environment().get_template(template).render(**values)


def render_main(template: str, **values: Any) -> str:
    """Render what is in the frame of a page, to replace what is there."""
    found = environment().get_template(template)
    return "".join(found.blocks["main"](found.new_context(values)))
