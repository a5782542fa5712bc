"""Operations of the API that show what happened, and why."""

from __future__ import annotations

from holdfast.interfaces.cli.json_output import plain
from holdfast.interfaces.http import admin_models, inputs, models
from holdfast.interfaces.http.routes import RouteTable
from holdfast.interfaces.http.service import Call
from holdfast.interfaces.http.thread_reads import fields_of
from holdfast.store import CausalNode, TimelineEvent

TIMELINE = RouteTable()


@TIMELINE.get("/timeline")
def query_timeline(call: Call, params: inputs.TimelineParams) -> models.PageModel[admin_models.TimelineEventModel]:
    """List what happened, the newest first."""
    page = call.store.timeline.query(
        params.query,
        thread=params.thread,
        scope=params.scope,
        errors=params.errors,
        since=params.since,
        until=params.until,
        oldest_first=params.oldest_first,
        limit=params.limit,
        cursor=params.cursor,
    )
    return models.PageModel(items=[to_event(each) for each in page], next=page.next)


@TIMELINE.get("/timeline/{id}/causes")
def get_causes(call: Call, params: inputs.EventParams) -> admin_models.CausalTreeModel:
    """Find what led to an event."""
    return _to_tree(call.store.timeline.causes(params.id))


@TIMELINE.get("/timeline/{id}/effects")
def get_effects(call: Call, params: inputs.EventParams) -> admin_models.CausalTreeModel:
    """Find what an event led to."""
    return _to_tree(call.store.timeline.effects(params.id))


def to_event(event: TimelineEvent) -> admin_models.TimelineEventModel:
    """Return an event as a response."""
    kind = admin_models.TimelineEventModel
    return kind(**fields_of(kind, event, detail=plain(dict(event.detail))))


def _to_tree(tree: CausalNode) -> admin_models.CausalTreeModel:
    return admin_models.CausalTreeModel(
        items=[
            admin_models.CausalNodeModel(
                depth=depth, id=node.id, events=[to_event(each) for each in node.events], more=node.more
            )
            for depth, node in tree.walk()
        ]
    )
