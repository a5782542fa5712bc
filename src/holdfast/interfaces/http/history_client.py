"""The part of the client for the timeline, calls of hooks, and recorded runs.

Made by `tools/http_client.py` from the table of routes: do not edit it.
"""

from __future__ import annotations

from typing import Any, Literal

from holdfast.interfaces.http import admin_models, inputs, models
from holdfast.interfaces.http.transport import HttpTransport


class HistoryClient(HttpTransport):
    """Operations on the timeline, on calls of hooks, and on recorded runs."""

    def query_timeline(
        self,
        *,
        limit: int = 100,
        cursor: str | None = None,
        query: str = "",
        thread: str | None = None,
        scope: str | None = None,
        errors: bool = False,
        since: str | None = None,
        until: str | None = None,
        oldest_first: bool = False,
    ) -> models.PageModel[admin_models.TimelineEventModel]:
        """List what happened, the newest first."""
        params = inputs.TimelineParams(
            limit=limit,
            cursor=cursor,
            query=query,
            thread=thread,
            scope=scope,
            errors=errors,
            since=since,
            until=until,
            oldest_first=oldest_first,
        )
        found: models.PageModel[admin_models.TimelineEventModel] = self.send(
            "GET", "/timeline", params, None, models.PageModel[admin_models.TimelineEventModel]
        )
        return found

    def get_causes(self, id: str) -> admin_models.CausalTreeModel:
        """Find what led to an event."""
        params = inputs.EventParams(id=id)
        found: admin_models.CausalTreeModel = self.send(
            "GET", "/timeline/{id}/causes", params, None, admin_models.CausalTreeModel
        )
        return found

    def get_effects(self, id: str) -> admin_models.CausalTreeModel:
        """Find what an event led to."""
        params = inputs.EventParams(id=id)
        found: admin_models.CausalTreeModel = self.send(
            "GET", "/timeline/{id}/effects", params, None, admin_models.CausalTreeModel
        )
        return found

    def list_hook_executions(
        self,
        *,
        limit: int = 100,
        cursor: str | None = None,
        hook: str | None = None,
        scope: str | None = None,
        key: str | None = None,
        point: str | None = None,
        failed: bool = False,
        slower_than: str | None = None,
        since: str | None = None,
    ) -> models.PageModel[admin_models.HookExecutionModel]:
        """List executions of hooks, the latest first."""
        params = inputs.HookParams(
            limit=limit,
            cursor=cursor,
            hook=hook,
            scope=scope,
            key=key,
            point=point,
            failed=failed,
            slower_than=slower_than,
            since=since,
        )
        found: models.PageModel[admin_models.HookExecutionModel] = self.send(
            "GET", "/hooks/executions", params, None, models.PageModel[admin_models.HookExecutionModel]
        )
        return found

    def get_hook_execution(self, reference: str) -> admin_models.HookExecutionModel:
        """Describe an execution of a hook."""
        params = inputs.HookExecutionParams(reference=reference)
        found: admin_models.HookExecutionModel = self.send(
            "GET", "/hooks/executions/{reference}", params, None, admin_models.HookExecutionModel
        )
        return found

    def get_hook_statistics(
        self, *, hook: str | None = None, scope: str | None = None, since: str | None = None
    ) -> admin_models.HookStatisticsListModel:
        """Sum up the recorded executions of each hook: how many, how many failed, how long they took."""
        params = inputs.HookStatisticsParams(hook=hook, scope=scope, since=since)
        found: admin_models.HookStatisticsListModel = self.send(
            "GET", "/hooks/statistics", params, None, admin_models.HookStatisticsListModel
        )
        return found

    def replay_hook(
        self,
        reference: str,
        *,
        value: Any = None,
        changes: dict[str, Any] | None = None,
        if_match: str = "",
        key: str = "",
    ) -> admin_models.ReplayedCallModel:
        """Replay a recorded call with the hooks that the server was started with, on a fork of the state."""
        params = inputs.HookExecutionParams(reference=reference)
        found: admin_models.ReplayedCallModel = self.send(
            "POST",
            "/hooks/executions/{reference}/replays",
            params,
            inputs.HookReplayRequest(value=value, changes=changes or {}),
            admin_models.ReplayedCallModel,
            if_match=if_match,
            key=key,
        )
        return found

    def list_undelivered_calls(
        self,
        *,
        limit: int = 100,
        cursor: str | None = None,
        hook: str | None = None,
        state: Literal["pending", "failed"] | None = None,
    ) -> models.PageModel[admin_models.UndeliveredCallModel]:
        """List the calls of durable hooks that were not delivered: those that were given up, then those to be made."""
        params = inputs.UndeliveredParams(limit=limit, cursor=cursor, hook=hook, state=state)
        found: models.PageModel[admin_models.UndeliveredCallModel] = self.send(
            "GET", "/hooks/undelivered", params, None, models.PageModel[admin_models.UndeliveredCallModel]
        )
        return found

    def retry_call(self, reference: str, *, if_match: str = "", key: str = "") -> models.DoneModel:
        """Have a call made soon that was given up, or that waits. A process that has the hook makes it."""
        params = inputs.HookExecutionParams(reference=reference)
        found: models.DoneModel = self.send(
            "POST", "/hooks/undelivered/{reference}/retries", params, None, models.DoneModel, if_match=if_match, key=key
        )
        return found

    def retry_failed_calls(self, *, hook: str | None = None, if_match: str = "", key: str = "") -> models.CountModel:
        """Have all calls made soon that were given up, or those of a hook. Processes that have the hooks make them."""
        params = inputs.RetryParams(hook=hook)
        found: models.CountModel = self.send(
            "POST", "/hooks/undelivered/retries", params, None, models.CountModel, if_match=if_match, key=key
        )
        return found

    def discard_call(self, reference: str, *, if_match: str = "", key: str = "") -> models.DoneModel:
        """Remove a call that is not to be made."""
        params = inputs.HookExecutionParams(reference=reference)
        found: models.DoneModel = self.send(
            "DELETE", "/hooks/undelivered/{reference}", params, None, models.DoneModel, if_match=if_match, key=key
        )
        return found

    def get_recording(
        self, thread: str, *, at: str | None = None, limit: int = 50, cursor: str | None = None
    ) -> models.PageModel[admin_models.RecordedStepModel]:
        """List recorded calls of models and tools in the steps that lead to a checkpoint, the latest first."""
        params = inputs.RecordingParams(thread=thread, at=at, limit=limit, cursor=cursor)
        found: models.PageModel[admin_models.RecordedStepModel] = self.send(
            "GET", "/threads/{thread}/recording", params, None, models.PageModel[admin_models.RecordedStepModel]
        )
        return found

    def replay_thread(
        self,
        thread: str,
        *,
        since: str | None = None,
        until: str | None = None,
        changes: dict[str, Any] | None = None,
        if_match: str = "",
        key: str = "",
    ) -> admin_models.ReplayReportModel:
        """Replay a recorded thread with the graph that the server was started with, and compare."""
        params = inputs.ThreadParams(thread=thread)
        found: admin_models.ReplayReportModel = self.send(
            "POST",
            "/threads/{thread}/replays",
            params,
            inputs.ReplayRequest(since=since, until=until, changes=changes or {}),
            admin_models.ReplayReportModel,
            if_match=if_match,
            key=key,
        )
        return found
