"""Operations of the API that show what happened, and why."""

from __future__ import annotations

from holdfast.interfaces.http import models
from holdfast.interfaces.http.routes import Limit, RouteTable
from holdfast.interfaces.http.service import Call
from holdfast.store import CausalNode, Page, TimelineEvent

TIMELINE = RouteTable()


@TIMELINE.get("/timeline")
def query_timeline(
    call: Call,
    *,
    query: str = "",
    thread: str | None = None,
    scope: str | None = None,
    errors: bool = False,
    since: str | None = None,
    until: str | None = None,
    oldest_first: bool = False,
    limit: Limit = 100,
    cursor: str | None = None,
) -> Page[TimelineEvent]:
    """List what happened, the newest first."""
    return call.store.timeline.query(
        query,
        thread=thread,
        scope=scope,
        errors=errors,
        since=since,
        until=until,
        oldest_first=oldest_first,
        limit=limit,
        cursor=cursor,
    )


@TIMELINE.get("/timeline/{id}/causes")
def get_causes(call: Call, id: str) -> list[models.CausalNodeModel]:
    """Find what led to an event, by the id of the step that recorded it."""
    return _nodes(call.store.timeline.causes(id))


@TIMELINE.get("/timeline/{id}/effects")
def get_effects(call: Call, id: str) -> list[models.CausalNodeModel]:
    """Find what an event led to, by the id of the step that recorded it."""
    return _nodes(call.store.timeline.effects(id))


def _nodes(tree: CausalNode) -> list[models.CausalNodeModel]:
    """Return a tree as a list, each node before those that it leads to."""
    return [
        models.CausalNodeModel(depth=depth, id=node.id, events=list(node.events), more=node.more)
        for depth, node in tree.walk()
    ]
