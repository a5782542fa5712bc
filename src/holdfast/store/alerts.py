"""Operations on alerts: `store.alerts`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from holdfast.backends.runtime.drivers import AsyncApi, SyncApi, declare, operation
from holdfast.maintenance.jobs.job import read_job_metrics
from holdfast.maintenance.monitoring.alerts import Alert, AlertTable, Evaluation, SinkTarget, make_sink
from holdfast.maintenance.monitoring.rules import AlertSettings
from holdfast.security.handle import StoreHandle, owner_handle
from holdfast.time_parser import Duration, parse_seconds


@declare(not_in_scripts="A job evaluates them, and sends.")
class AlertsOperations:
    """Operations on the alerts of a store. `Alerts` and `AsyncAlerts` have these as methods.

    A job of the type `alerts` evaluates the rules: `store.jobs.add("alerts", "alerts", schedule="every 1m")`.
    """

    def __init__(self, handle: StoreHandle) -> None:
        self._handle = owner_handle(handle)

    @operation
    async def list(self) -> Sequence[Alert]:
        """Return an alert for each rule, with its state: `ok`, `pending`, `firing` or `resolved`."""
        return await AlertTable(self._handle).all()

    @operation(changes=True, not_remote="A job evaluates them, and sends.")
    async def evaluate(self, /, **settings: Any) -> Evaluation:
        """Evaluate the rules now, with the settings of the job, and send what changed."""
        return await AlertTable(self._handle).evaluate(AlertSettings.of(settings), read_job_metrics)

    @operation(changes=True)
    async def silence(self, rule: str, duration: Duration) -> Alert:
        """Send nothing about a rule for a time: `silence("backup-age", "2h")`. With 0, send again."""
        seconds = parse_seconds(duration, "duration")
        until = self._handle.now() / 1e9 + seconds if seconds else 0.0
        return await AlertTable(self._handle).silence(rule, until)

    @operation(changes=True, not_remote="A job evaluates them, and sends.")
    async def test(self) -> Sequence[tuple[str, str]]:
        """Send a test to all sinks. Returns the name of each with its error, which is empty if it worked."""
        return await AlertTable(self._handle).test()

    @operation(changes=True, not_remote="A job evaluates them, and sends.")
    async def report(self) -> None:
        """Store the counters of this process, so that a runner of jobs in another process sees them.

        Rules about failures look at counters, and every process has its own. Call it from time to time in programs that
        do not run the job `alerts` themselves.
        """
        await AlertTable(self._handle).report()

    def send_to(self, target: SinkTarget) -> None:
        """Send alerts that this process evaluates to a webhook, a command or a function.

        A text is the URL of a webhook, which gets JSON. A list of texts is a command, which gets it as input. Those of
        the table `alerts` in `holdfast.toml` need no call. Sinks are not stored.
        """
        self._handle.engine.alert_sinks.append(make_sink(target))


class Alerts(SyncApi, AlertsOperations):
    """The alerts of a store."""


class AsyncAlerts(AsyncApi, AlertsOperations):
    """The alerts of an `AsyncStore`: operations are awaited."""
