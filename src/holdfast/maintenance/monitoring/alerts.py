"""Alerts: what the rules found, kept in the store, and sent to sinks.

An alert is *pending* while something is wrong for less than the time that its rule waits, then *firing*, and *resolved*
when it is over. All of it is in one row of the store, with the notifications that are yet to be sent: so alerts survive
a restart, whichever process evaluates them, and each change is sent to each sink once, or again until the sink has it.
Notifications have an id, by which a receiver knows one that it gets twice after a crash.
"""

from __future__ import annotations

import hashlib
import json
import os
import socket
import subprocess
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import partial
from http.client import HTTPException
from typing import Any, Literal, Protocol, TypeAlias
from urllib.parse import urlsplit

import msgspec
from msgspec.structs import replace

from holdfast._fields import Hidden
from holdfast._structs import decode_json
from holdfast.backends.interface import BlockingCall, Delete, Expect, Get, Put, Row, Scan
from holdfast.backends.runtime.metrics import Sample
from holdfast.backends.tables import REFS
from holdfast.engine.optimistic import Attempts
from holdfast.engine.types import to_datetime
from holdfast.errors import ConfigError, CorruptError, InvalidError, TransientError
from holdfast.maintenance.backup_status import SETTING
from holdfast.maintenance.monitoring.rules import RULES, AlertRule, AlertSettings, Situation
from holdfast.maintenance.monitoring.snapshot import ALERTS, ReadJobs, read_metrics
from holdfast.security.handle import StoreHandle

AlertState: TypeAlias = Literal["ok", "pending", "firing", "resolved"]

REPORT = "metrics of "
"""The start of the names of rows with the counters of processes."""

_MAX_UNSENT = 100
"""How many notifications wait at most; the oldest are dropped."""
_GIVE_UP = 20
"""After how many attempts a notification is dropped."""
_FIRST_RETRY, _LAST_RETRY = 30.0, 3600.0
_REPORT_AGE = 86400.0
"""After how many seconds the counters of a process that does not report any more are removed."""
_NS = 10**9


class StoredAlert(msgspec.Struct, omit_defaults=True):
    """An alert as it is stored. Times are in seconds since 1970."""

    state: AlertState = "ok"
    since: float = 0.0
    """When it got to this state."""
    message: str = ""
    silenced: float = 0.0
    """Until when it is not sent."""
    told: bool = False
    """Whether it was sent that it is firing, and not yet that it is over."""


class Unsent(msgspec.Struct, omit_defaults=True):
    """A notification that a sink has not got yet."""

    sink: str
    notification: Notification
    attempts: int = 0
    next: float = 0.0
    """When it is tried again."""


class _Growth(msgspec.Struct):
    """The counters of a rule by process, and by how much they grew, and when last."""

    totals: dict[str, float] = {}
    grown: float = 0.0
    at: float = 0.0


class AlertDocument(msgspec.Struct, omit_defaults=True):
    """All that is stored of alerts."""

    alerts: dict[str, StoredAlert] = {}
    growth: dict[str, _Growth] = {}
    unsent: list[Unsent] = []
    evaluated: float = 0.0
    version: int = 0


class Alert(msgspec.Struct, frozen=True):
    """An alert: a rule, its state and since when, and what is wrong."""

    rule: str
    state: AlertState
    severity: Hidden[str]
    about: Hidden[str]
    message: str
    since: datetime | None
    silenced_until: datetime | None


class Evaluation(msgspec.Struct, frozen=True):
    """The result of an evaluation: the alerts, how many notifications were sent, and how many are left to send."""

    alerts: tuple[Alert, ...]
    sent: int
    unsent: int


class AlertTable:
    """The alerts of a tenant, in the store."""

    def __init__(self, handle: StoreHandle) -> None:
        self._handle = handle
        self._context = handle.engine.context
        self._key = (handle.tenant, "", SETTING, ALERTS, "")

    async def read(self) -> tuple[AlertDocument, Row | None]:
        """Return what is stored, and its row."""
        (rows,) = await self._context.backend.read([Get(REFS, [self._key])])
        if not rows:
            return AlertDocument(), None
        return decode_document(str(rows[0].columns[0])), rows[0]

    async def change(self, how: Callable[[AlertDocument], None]) -> AlertDocument:
        """Change what is stored, again if another process changes it meanwhile."""
        attempts = Attempts("changing the alerts", "", self._context.metrics)
        while True:
            await attempts.begin()
            document, row = await self.read()
            how(document)
            document.version += 1
            text = msgspec.json.encode(document).decode()
            columns = (text, document.version)
            condition = Expect(REFS, self._key, None if row is None else row.columns)
            if await self._context.backend.apply([condition, Put(REFS, Row(self._key, columns))]) is None:
                return document

    async def all(self) -> list[Alert]:
        """Return the alerts of all rules."""
        document, _ = await self.read()
        return [_public(rule, document.alerts.get(rule.name, StoredAlert())) for rule in RULES]

    async def silence(self, rule: str, until: float) -> Alert:
        """Send nothing about a rule until a time; 0 ends that."""
        found = find_rule(rule)

        def change(document: AlertDocument) -> None:
            document.alerts.setdefault(rule, StoredAlert()).silenced = until

        document = await self.change(change)
        return _public(found, document.alerts[rule])

    # The counters of processes ----------------------------------------------------------------------------------

    async def report(self) -> None:
        """Store the counters of this process that rules look at, for whichever process evaluates them."""
        samples = tuple(self._context.metrics.read())
        report = _Report(
            {rule.name: rule.total(samples) for rule in RULES if rule.counters},
            sorted({each.labels[0] for each in samples if each.family == "breaker_open" and each.value}),
            sorted({each.labels[0] for each in samples if each.family == "hook_off" and each.value}),
        )
        key = (self._handle.tenant, "", SETTING, f"{REPORT}{process_name()}", "")
        columns = (msgspec.json.encode(report).decode(), self._context.clock())
        await self._context.backend.apply([Put(REFS, Row(key, columns))])

    async def _reports(self) -> dict[str, _Report]:
        """Return the counters of other processes. Those that stopped reporting are removed after a day."""
        start = (self._handle.tenant, "", SETTING)
        (rows,) = await self._context.backend.read([Scan(REFS, start)])
        found: dict[str, _Report] = {}
        old = []
        for row in rows:
            name = str(row.key[3])
            if name.startswith(REPORT) and name != REPORT + process_name():
                if self._context.clock() - int(row.columns[1]) > _REPORT_AGE * _NS:
                    old.append(Delete(REFS, row.key))
                    continue
                try:
                    found[name] = decode_json(str(row.columns[0]), _Report)
                except msgspec.MsgspecError:  # of a newer release
                    continue
        if old:
            await self._context.backend.apply(old)
        return found

    # Evaluating and sending -------------------------------------------------------------------------------------

    async def evaluate(self, settings: AlertSettings, read_jobs: ReadJobs) -> Evaluation:
        """Apply the rules to the metrics of the store, store what they find, and send what changed."""
        metrics, reports = await read_metrics(self._handle, read_jobs), await self._reports()
        others = [Sample("breaker_open", (each,), 1) for report in reports.values() for each in report.breakers]
        others += [Sample("hook_off", (each, ""), 1) for report in reports.values() for each in report.hooks]
        metrics = replace(metrics, samples=(*metrics.samples, *others))
        now = self._context.clock() / _NS
        sinks = self._sinks()

        def change(document: AlertDocument) -> None:
            grown = {
                rule.name: _grow(document, rule, metrics.samples, reports, now, settings.window)
                for rule in RULES
                if rule.counters
            }
            situation = Situation(metrics, settings, grown)
            for rule in RULES:
                alert = document.alerts.setdefault(rule.name, StoredAlert())
                advance(alert, rule.check(situation), now, 0 if rule.immediate else settings.pending)
                if event := _event(alert, now):
                    _enqueue(document, sinks, _notification(metrics.store, metrics.tenant, rule, alert, event))
            document.evaluated = now

        document = await self.change(change)
        sent = await self._send(document, sinks, now)
        left = len((await self.read())[0].unsent) if sent or document.unsent else 0
        alerts = tuple(_public(rule, document.alerts[rule.name]) for rule in RULES)
        return Evaluation(alerts, sent, left)

    async def test(self) -> list[tuple[str, str]]:
        """Send a test to all sinks. Returns each with its error; empty if it has got it."""
        sinks = list(self._sinks().values())
        if not sinks:
            raise InvalidError(
                "no destination for alerts is configured",
                hint='Write [alerts] webhooks = ["https://…"] into holdfast.toml, or call store.alerts.send_to',
            )
        now = self._context.clock() / _NS
        rule = AlertRule("test", "This is a test.", "warning", lambda _: "")
        alert = StoredAlert("firing", now, "this is a test: nothing is wrong")
        store = self._context.backend.url
        found = []
        for sink in sinks:
            error = await _try(sink, _notification(store, self._handle.tenant, rule, alert, "test"))
            found.append((sink.name, error))
        return found

    def _sinks(self) -> dict[str, Sink]:
        return {sink.id: sink for sink in [*self._handle.engine.alert_sinks, *configured_sinks()]}

    async def _send(self, document: AlertDocument, sinks: Mapping[str, Sink], now: float) -> int:
        """Send what is due. The outcome is stored after each: a crash in between sends one of them again."""
        sent = 0
        for unsent in [each for each in document.unsent if each.next <= now]:
            sink = sinks.get(unsent.sink)
            # Another process may have this sink. It is given up as any other that cannot be reached.
            error = "it is not known here" if sink is None else await _try(sink, unsent.notification)
            sent += not error
            await self.change(partial(_settle, sent=unsent, failed=bool(error), now=now))
        return sent


class _Report(msgspec.Struct):
    """The counters of a process, by rule, and its open breakers and hooks that are off."""

    totals: dict[str, float]
    breakers: list[str] = []
    hooks: list[str] = []


def advance(alert: StoredAlert, wrong: str, now: float, wait: float) -> None:
    """Move an alert to its next state, by what is wrong, if anything is."""
    before = alert.state
    if wrong:
        alert.message = wrong
        if alert.state in ("ok", "resolved"):
            alert.state, alert.since = "pending", now
        if alert.state == "pending" and now - alert.since >= wait:
            alert.state = "firing"
    elif alert.state == "pending":
        alert.state = "ok"
    elif alert.state == "firing":
        alert.state = "resolved"
    if alert.state != before:
        alert.since = now


def _event(alert: StoredAlert, now: float) -> str:
    """Return what to send of an alert: that it is firing, or over. Nothing twice, and nothing while it is silenced:
    that follows later, if it still holds."""
    if now < alert.silenced:
        return ""
    if alert.state == "firing" and not alert.told:
        alert.told = True
        return "firing"
    if alert.state in ("ok", "resolved") and alert.told:
        alert.told = False
        return "resolved"
    return ""


def _grow(
    document: AlertDocument,
    rule: AlertRule,
    samples: tuple[Any, ...],
    reports: Mapping[str, _Report],
    now: float,
    window: float,
) -> float:
    """Compare the counters of a rule with those of the last evaluation. Returns by how much they grew lately."""
    totals = {REPORT + process_name(): rule.total(samples)}
    totals |= {name: report.totals.get(rule.name, 0.0) for name, report in reports.items()}
    growth = document.growth.setdefault(rule.name, _Growth())
    # A counter that is smaller than it was belongs to a new process of the same name.
    grown = sum(
        total - before if total >= (before := growth.totals.get(name, 0.0)) else total for name, total in totals.items()
    )
    if now - growth.at > window:
        growth.grown = 0.0
    if grown:
        growth.grown, growth.at = growth.grown + grown, now
    growth.totals = totals
    return growth.grown


def _enqueue(document: AlertDocument, sinks: Mapping[str, Sink], notification: Notification) -> None:
    document.unsent += [Unsent(sink, notification) for sink in sinks]
    del document.unsent[:-_MAX_UNSENT]


def _settle(document: AlertDocument, sent: Unsent, failed: bool, now: float) -> None:
    """Remove a notification that was sent; one that was not is tried again later, for a limited number of times."""
    for each in [each for each in document.unsent if _same(each, sent)]:
        if failed and each.attempts + 1 < _GIVE_UP:
            each.attempts += 1
            each.next = now + min(_FIRST_RETRY * 2 ** (each.attempts - 1), _LAST_RETRY)
        else:
            document.unsent.remove(each)


def _same(one: Unsent, other: Unsent) -> bool:
    return (one.sink, one.notification["id"]) == (other.sink, other.notification["id"])


async def _try(sink: Sink, notification: Notification) -> str:
    try:
        await BlockingCall(lambda: sink.send(notification))
    except TransientError as error:
        return str(error)
    return ""


def _notification(store: str, tenant: str, rule: AlertRule, alert: StoredAlert, event: str) -> Notification:
    return {
        "id": f"{rule.name}-{event}-{int(alert.since * 1000)}",
        "event": event,
        "rule": rule.name,
        "severity": rule.severity,
        "about": rule.about,
        "message": alert.message,
        "since": to_datetime(int(alert.since * _NS)).isoformat(),
        "store": store,
        "tenant": tenant,
    }


def _public(rule: AlertRule, alert: StoredAlert) -> Alert:
    since = to_datetime(int(alert.since * _NS)) if alert.since else None
    silenced = to_datetime(int(alert.silenced * _NS)) if alert.silenced else None
    return Alert(rule.name, alert.state, rule.severity, rule.about, alert.message, since, silenced)


def find_rule(name: str) -> AlertRule:
    """Return a rule by its name. `InvalidError` if there is none."""
    for rule in RULES:
        if rule.name == name:
            return rule
    names = ", ".join(rule.name for rule in RULES)
    raise InvalidError(f"there is no rule {str(name)[:80]!r}", hint=f"There are {names}")


def decode_document(text: str) -> AlertDocument:
    """Decode what is stored of alerts."""
    try:
        return decode_json(text, AlertDocument)
    except msgspec.MsgspecError as error:
        raise CorruptError(f"the alerts cannot be decoded: {error}") from error


def process_name() -> str:
    """Return the name of this process."""
    return f"{socket.gethostname()} {os.getpid()}"


_SECONDS = 10.0
"""How long a notification may take."""

Notification: TypeAlias = dict[str, Any]


class Sink(Protocol):
    """Takes notifications."""

    @property
    def name(self) -> str:
        """Its name in messages; without secrets."""

    @property
    def id(self) -> str:
        """Its id in the store; without secrets."""

    def send(self, notification: Notification) -> None:
        """Send a notification. Raises `TransientError` if that fails."""


class NoRedirects(urllib.request.HTTPRedirectHandler):
    """Follows no redirection: it is a failure."""

    def redirect_request(self, *args: Any) -> None:  # noqa: ARG002 - the signature of the library
        return None


class WebhookSink:
    """Posts notifications as JSON to a URL. Answers other than 2xx are failures, and redirections are not followed."""

    def __init__(self, url: str, opener: urllib.request.OpenerDirector | None = None) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError("a webhook must be a URL of http or https", hint="Such as https://example.org/alerts")
        self._url = url
        self.name: str = f"{parts.scheme}://{parts.hostname}"  # the rest of it is often a secret
        self.id: str = f"webhook {parts.hostname} {hashlib.sha256(url.encode()).hexdigest()[:12]}"
        self._opener = urllib.request.build_opener(NoRedirects) if opener is None else opener

    def send(self, notification: Notification) -> None:
        """Post a notification."""
        self.post(json.dumps(notification, sort_keys=True).encode(), str(notification["id"]))

    def post(self, body: bytes, key: str) -> None:
        """Post a body in JSON, with a key by which the receiver knows a repetition. Raises `TransientError`."""
        headers = {"Content-Type": "application/json", "User-Agent": "holdfast", "Idempotency-Key": key}
        request = urllib.request.Request(self._url, body, headers, method="POST")  # noqa: S310 - checked above
        try:
            with self._opener.open(request, timeout=_SECONDS) as response:
                response.read(1)
        except urllib.error.HTTPError as error:
            error.close()
            raise TransientError(f"the webhook answered {error.code}", where=self.name) from None
        except (OSError, HTTPException) as error:
            reason = getattr(error, "reason", error)
            raise TransientError(
                f"the webhook cannot be reached: {type(reason).__name__}", where=self.name, hint="It is tried again"
            ) from None


class CommandSink:
    """Runs a command, without a shell, with a notification as JSON on its input."""

    def __init__(self, command: Sequence[str]) -> None:
        if isinstance(command, str) or not command or not all(type(each) is str and bool(each) for each in command):
            raise ConfigError("a command must be a list of strings: the program and its arguments")
        self._command = list(command)
        self.name: str = self._command[0]
        self.id: str = f"command {hashlib.sha256(json.dumps(self._command).encode()).hexdigest()[:12]}"

    def send(self, notification: Notification) -> None:
        """Run the command."""
        body = json.dumps(notification, sort_keys=True).encode()
        try:
            done = subprocess.run(  # noqa: S603 - the operator's own command
                self._command,
                input=body,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                timeout=_SECONDS,
                check=False,
            )
        except (OSError, subprocess.SubprocessError) as error:
            raise TransientError(f"the command failed: {type(error).__name__}", where=self.name) from None
        if done.returncode:
            raise TransientError(f"the command ended with status {done.returncode}", where=self.name)


class FunctionSink:
    """Calls a function of the program."""

    id: str
    name: str

    def __init__(self, function: Callable[[Notification], object]) -> None:
        self._function = function
        self.name = self.id = f"function {getattr(function, '__qualname__', type(function).__name__)}"

    def send(self, notification: Notification) -> None:
        """Call the function."""
        try:
            self._function(notification)
        except Exception as error:
            raise TransientError(f"the function failed: {type(error).__name__}", where=self.name) from error


SinkTarget: TypeAlias = "str | Sequence[str] | Callable[[Notification], object]"


def make_sink(target: SinkTarget) -> Sink:
    """Return a sink: a URL for a webhook, a list of texts for a command, or a function."""
    if callable(target):
        return FunctionSink(target)
    return WebhookSink(target) if isinstance(target, str) else CommandSink(target)


def configured_sinks() -> list[Sink]:
    """Return the sinks of the settings file: `webhooks` and `commands` of its table `alerts`."""
    from holdfast.backends.config import alert_settings

    webhooks, commands = alert_settings()
    return [*map(WebhookSink, webhooks), *map(CommandSink, commands)]
