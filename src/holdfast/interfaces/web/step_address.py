"""The address of a step that a reader asks for: by its number, by the time on the reader's clock, or by a revision."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta, timezone

from holdfast.errors import InvalidError
from holdfast.interfaces.http.service import Call
from holdfast.interfaces.web.page_renderer import query_text, segment

_CLOCK = re.compile(r"(?:(\d{4})-(\d\d)-(\d\d)[ T])?([01]?\d|2[0-3]):([0-5]\d)(?::([0-5]\d))?")
"""A time of the day, with its date or without."""

_FARTHEST = 14 * 60
"""How many minutes a clock is ahead of UTC, or behind, at most."""


def step_address(call: Call, name: str, params: Mapping[str, str]) -> str:
    """Return the address of the step that is asked for `to`, on a `branch`; times are those of a clock in a `zone`."""
    to, branch = params.get("to", "").strip() or "HEAD", params.get("branch", "")
    thread = call.store.thread(name)
    if to.isdecimal():
        to = f"{branch}#{to}" if branch else f"#{to}"
    elif (clock := _CLOCK.fullmatch(to)) is not None:
        end = branch or "HEAD"
        to = f"{end}@{{{_end_of(clock, thread.find(end).time, params.get('zone', ''))}}}"
    found = thread.find(to)
    return f"/threads/{segment(name)}/{segment(found.id)}{query_text(tab=params.get('tab', ''))}"


def _end_of(clock: re.Match[str], last: datetime, zone: str) -> str:
    """Return the end of a minute, or second, on a clock that is so many minutes ahead of UTC. Without a date, it is the
    last one that began before a thread's last step."""
    year, month, day, hour, minute, second = (int(each or 0) for each in clock.groups())
    ahead = int(zone) if re.fullmatch(r"-?\d{1,3}", zone) else 0
    there = timezone(timedelta(minutes=max(-_FARTHEST, min(_FARTHEST, ahead))))
    try:
        date = datetime(year, month, day, tzinfo=there) if year else last.astimezone(there)
    except ValueError:
        raise InvalidError("there is no such day", hint="Write a date as 2026-01-31") from None
    at = date.replace(hour=hour, minute=minute, second=second, microsecond=0)
    if not year and at > last:
        at -= timedelta(days=1)
    at += timedelta(seconds=1) if clock[6] else timedelta(minutes=1)
    return (at - timedelta(microseconds=1)).astimezone(UTC).isoformat()
