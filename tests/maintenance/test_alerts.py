"""Alerts: their states, what is sent, to a real receiver, and that they survive failures and restarts."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.backends.runtime.metrics import Sample
from holdfast.encryption import Encryption, LocalKeys
from holdfast.errors import ConfigError, InvalidError
from holdfast.jobs import JobRunner
from holdfast.maintenance.monitoring.alerts import StoredAlert, WebhookSink, advance, make_sink
from holdfast.maintenance.monitoring.rules import RULES, AlertSettings, Situation
from holdfast.maintenance.monitoring.snapshot import MetricsSnapshot


class Receiver(ThreadingHTTPServer):
    """Receives notifications, and answers with a status that a test sets."""

    def __init__(self) -> None:
        self.got: list[dict[str, Any]] = []
        self.status = 200
        super().__init__(("127.0.0.1", 0), _Handler)
        threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/hook?secret=s3cret"

    def events(self) -> list[tuple[str, str]]:
        return [(each["rule"], each["event"]) for each in self.got]


class _Handler(BaseHTTPRequestHandler):
    server: Receiver

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        assert self.headers["Idempotency-Key"] == body["id"]
        if self.server.status == 200:
            self.server.got.append(body)
        self.send_response(self.server.status)
        if self.server.status == 302:
            self.send_header("Location", "/elsewhere")
        self.end_headers()

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    server = Receiver()
    yield server
    server.shutdown()
    server.server_close()


def states(store: holdfast.Store) -> dict[str, str]:
    return {each.rule: each.state for each in store.alerts.list() if each.state != "ok"}


def test_an_alert_waits_fires_and_is_resolved() -> None:
    alert = StoredAlert()
    seen = []
    for now, wrong in [(100, "full"), (130, "full"), (160, "full"), (300, "full"), (400, ""), (500, ""), (600, "x")]:
        advance(alert, wrong, now, 60)
        seen.append((alert.state, alert.since))
    assert seen == [
        ("pending", 100),
        ("pending", 100),
        ("firing", 160),
        ("firing", 160),
        ("resolved", 400),
        ("resolved", 400),
        ("pending", 600),
    ]
    advance(alert, "", 601, 60)
    assert alert.state == "ok"


def test_states_are_sent_once_retried_until_they_arrive_and_survive_a_restart(
    tmp_path: Path, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "holdfast.toml").write_text('[alerts]\nwebhooks = ["${HOOK}"]\n')
    monkeypatch.setenv("HOOK", receiver.url)
    settings = {"storage_budget": 1000, "pending": 0}
    with holdfast.open(tmp_path / "agents.db") as store:
        store.thread("chat").put({"text": "x" * 5000})
        store.jobs.add("alerts", "alerts", schedule="every 1m", settings=settings)
        receiver.status = 503
        run = store.jobs.run("alerts")
        assert "storage-budget" in run.summary
        assert "1 to be sent again" in run.summary
    assert receiver.got == []
    receiver.status = 200
    with holdfast.open(tmp_path / "agents.db") as store:  # another process, later
        assert states(store) == {"storage-budget": "firing"}
        assert store.maintenance.metrics().value("alert_state", rule="storage-budget") == 2
        assert store.alerts.evaluate(**settings).sent == 0  # it is not time yet
        clock = store._handle.engine.context.clock
        _set_clock(store, lambda: clock() + 60 * 10**9)
        assert store.alerts.evaluate(**settings).sent == 1
        assert store.alerts.evaluate(**settings).sent == 0
        assert store.alerts.evaluate(storage_budget=10**12, pending=0).sent == 1
        assert states(store) == {"storage-budget": "resolved"}
    assert receiver.events() == [("storage-budget", "firing"), ("storage-budget", "resolved")]
    assert "over its budget of 1,000" in receiver.got[0]["message"]


def _set_clock(store: holdfast.Store, clock: Any) -> None:
    from msgspec.structs import force_setattr

    force_setattr(store._handle.engine.context, "clock", clock)


def test_failures_that_another_process_reported_fire_and_pass(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "agents.db") as app, holdfast.open(tmp_path / "agents.db") as runner:
        app.thread("chat").put({"n": 1})
        runner.alerts.evaluate(pending=0)
        with pytest.raises(holdfast.errors.NotFoundError):
            app.thread("chat").restore("nothing")
        assert app.maintenance.metrics().value("restores_total", kind="thread", outcome="failed") == 1
        app.alerts.report()
        # The row of a process with another name: both stores are in this one.
        _rename_reports(app)
        runner.alerts.evaluate(pending=0)
        assert states(runner) == {"recovery-failing": "firing"}
        runner.alerts.evaluate(pending=0)
        assert states(runner) == {"recovery-failing": "firing"}, "it stays for a while"
        clock = runner._handle.engine.context.clock
        _set_clock(runner, lambda: clock() + 3600 * 10**9)
        runner.alerts.evaluate(pending=0)
        assert states(runner) == {"recovery-failing": "resolved"}
        _rename_reports(runner, "what a newer release writes")
        runner.alerts.evaluate(pending=0)


def _rename_reports(store: holdfast.Store, content: str = "") -> None:
    from holdfast.backends import run
    from holdfast.backends.interface import Delete, Put, Scan
    from holdfast.backends.tables import REFS
    from holdfast.maintenance.monitoring.alerts import REPORT

    backend = store._handle.engine.context.backend

    async def rename() -> None:
        (rows,) = await backend.read([Scan(REFS, ("", "", "setting"))])
        for row in rows:
            if str(row.key[3]).startswith(REPORT):
                key = (*row.key[:3], f"{REPORT}elsewhere 1", "")
                columns = (content or row.columns[0], row.columns[1])
                await backend.apply([Delete(REFS, row.key), Put(REFS, row._replace(key=key, columns=columns))])

    run(rename())


def test_a_silenced_rule_is_evaluated_and_sent_later() -> None:
    got: list[Any] = []
    with holdfast.open("memory://") as store:
        store.thread("chat").put({"text": "x" * 5000})
        store.alerts.send_to(got.append)
        silenced = store.alerts.silence("storage-budget", "1h")
        assert silenced.silenced_until is not None
        store.alerts.evaluate(storage_budget=10, pending=0)
        assert states(store) == {"storage-budget": "firing"}
        assert got == []
        store.alerts.silence("storage-budget", 0)
        for _ in range(2):
            store.alerts.evaluate(storage_budget=10, pending=0)
        assert [each["event"] for each in got] == ["firing"], "it is told when the silence is over"
        store.alerts.evaluate(pending=0)
        assert [each["event"] for each in got] == ["firing", "resolved"]
        with pytest.raises(InvalidError, match="no rule 'nonsense'"):
            store.alerts.silence("nonsense", "1h")


def test_a_command_gets_the_notification_on_its_input(tmp_path: Path) -> None:
    program = "import json, sys; json.dump(json.load(sys.stdin), open(sys.argv[1], 'w'))"
    with holdfast.open("memory://") as store:
        store.alerts.send_to([sys.executable, "-c", program, str(tmp_path / "got.json")])
        store.alerts.send_to([sys.executable, "-c", "raise SystemExit(3)"])
        results = store.alerts.test()
    assert [bool(error) for _, error in results] == [False, True]
    assert "status 3" in results[1][1]
    got = json.loads((tmp_path / "got.json").read_text())
    assert (got["event"], got["rule"]) == ("test", "test")


def test_a_webhook_is_not_redirected_and_its_secret_is_in_no_message(receiver: Receiver) -> None:
    with holdfast.open("memory://") as store:
        store.alerts.send_to(receiver.url)
        receiver.status = 302
        ((name, error),) = store.alerts.test()
        assert "302" in error
        assert receiver.got == []
        receiver.shutdown()
        receiver.server_close()
        ((_, unreachable),) = store.alerts.test()
        assert "cannot be reached" in unreachable
    assert "s3cret" not in name + error + unreachable + WebhookSink(receiver.url).id


@pytest.mark.parametrize("target", ["ftp://example.org/x", "not a url", "file:///etc/passwd", [], [""]])
def test_what_is_no_sink_is_refused(target: Any) -> None:
    with pytest.raises(ConfigError):
        make_sink(target)


def test_settings_are_checked_and_a_job_cannot_name_a_sink() -> None:
    with holdfast.open("memory://") as store:
        for wrong in ({"storage_budget": "1 GB"}, {"lag": "soon"}, {"commands": [["rm"]]}, {"webhooks": ["http://x"]}):
            with pytest.raises(InvalidError):
                store.jobs.add("alerts", "alerts", settings=wrong)
        with pytest.raises(InvalidError, match="no destination"):
            store.alerts.test()


def test_the_runner_of_jobs_evaluates_what_is_due() -> None:
    got: list[Any] = []
    with holdfast.open("memory://") as store:
        store.thread("chat").put({"text": "x" * 5000})
        store.alerts.send_to(got.append)
        store.jobs.add("watch", "alerts", schedule="every 1m", settings={"storage_budget": 10, "pending": 0})
        clock = store._handle.engine.context.clock
        _set_clock(store, lambda: clock() + 120 * 10**9)
        JobRunner(store).run_due()
    assert [(each["rule"], each["event"]) for each in got] == [("storage-budget", "firing")]


def test_old_backups_and_drills_fire(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "agents.db") as store:
        store.thread("chat").put({"n": 1})
        assert not store.maintenance.metrics().has("backup_age_seconds")
        backups = store.backups(tmp_path / "backups")
        backups.create()
        assert backups.drill().ok
        found = store.maintenance.metrics()
        assert 0 <= found.value("backup_age_seconds") < 600
        assert found.value("drill_ok") == 1
        store.alerts.evaluate(pending=0)
        assert states(store) == {}
        clock = store._handle.engine.context.clock
        _set_clock(store, lambda: clock() + 3 * 86400 * 10**9)
        store.alerts.evaluate(pending=0)
        assert states(store) == {"backup-age": "firing"}
        _set_clock(store, lambda: clock() + 40 * 86400 * 10**9)
        store.alerts.evaluate(pending=0)
        assert states(store) == {"backup-age": "firing", "drill": "firing"}


def test_states_are_kept_in_an_encrypted_store_too(tmp_path: Path) -> None:
    encryption = Encryption(LocalKeys(b"m" * 32))
    with holdfast.open(tmp_path / "agents.db", encryption=encryption) as store:
        store.thread("chat").put({"text": "x" * 5000})
        store.alerts.evaluate(storage_budget=10, pending=0)
        store.alerts.report()
        store.alerts.evaluate(storage_budget=10, pending=0)
        assert store.maintenance.metrics().value("alert_state", rule="storage-budget") == 2
        assert states(store) == {"storage-budget": "firing"}


@pytest.mark.parametrize(
    ("sample", "rule"),
    [
        (Sample("replication_lag_seconds", (), 301), "replication-lag"),
        (Sample("replication_degraded", (), 1), "replication-lag"),
        (Sample("breaker_open", ("agents",), 1), "breaker-open"),
        (Sample("hook_off", ("whole", "before"), 1), "breaker-open"),
        (Sample("drill_ok", ("r",), 0), "drill"),
        (Sample("job_failures", ("nightly", "prune"), 2), "job-failing"),
        (Sample("up", (), 0), "store-down"),
        (Sample("replication_lag_seconds", (), 299), ""),
        (Sample("backup_age_seconds", (), 3600.0), ""),
    ],
)
def test_what_each_rule_looks_at(sample: Sample, rule: str) -> None:
    up = () if sample.family == "up" else (Sample("up", (), 1),)
    situation = Situation(MetricsSnapshot("memory://", "", (*up, sample)), AlertSettings.of({}), {})
    assert [each.name for each in RULES if each.check(situation)] == ([rule] if rule else [])
