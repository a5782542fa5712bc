"""Health, the doctor and alerts over HTTP; the dashboard and the rules; OpenTelemetry."""

from __future__ import annotations

import http.client
import json
import re
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

import holdfast
from holdfast.backends.runtime.metric_families import FAMILIES
from holdfast.engine.context import EngineContext
from holdfast.errors import ConfigError
from holdfast.interfaces.metrics.grafana import build_dashboard
from holdfast.interfaces.metrics.prometheus import RULES_FILE
from holdfast.maintenance.monitoring import usage_metrics
from holdfast.metrics import MetricsEndpoint, export_to_opentelemetry
from tests.interfaces.cli import kit
from tests.interfaces.http.kit import ServedStore
from tests.interfaces.metrics.kit import parse, value

USED = re.compile(r"holdfast_([a-z_]+?)(?:_bucket|_sum|_count)?(?=[{\[\s)]|$)")


def test_health_needs_no_token_and_ready_depends_on_the_store(tmp_path: Path) -> None:
    store = holdfast.open(tmp_path / "agents.db")
    with ServedStore(store) as served:
        for path in ("/health/live", "/health/ready"):
            answer = served.request("GET", path, token=None)
            assert (answer.status, answer.json) == (200, {"status": "ok"})
            assert answer.headers["cache-control"] == "no-store"
        assert served.request("GET", "/health/live", token=None, headers={"Host": "evil.example"}).status == 421
    store.close()
    with ServedStore(store) as served:
        assert served.request("GET", "/health/live", token=None).status == 200
        answer = served.request("GET", "/health/ready", token=None)
        assert (answer.status, answer.json) == (503, {"status": "unavailable"})


def test_the_doctor_and_the_alerts_are_the_owners(writable: ServedStore) -> None:
    found = writable.get("/doctor").json
    assert found["ok"]
    assert {"store-opens", "clock"} <= {each["code"] for each in found["items"]}
    assert {each["state"] for each in writable.get("/alerts").json["items"]} == {"ok"}
    silence = {"duration": "1h"}
    assert writable.change("PUT", "/alerts/drill/silence", silence).json["silenced_until"] is not None
    assert writable.change("PUT", "/alerts/nonsense/silence", silence).status == 400
    token = writable.store.access.issue_token("user:alice", until="1h")
    for path in ("/doctor", "/alerts"):
        assert writable.get(path, token=token.secret).status == 403
        assert writable.get(path).status == 200
    assert writable.change("PUT", "/alerts/drill/silence", silence, token=token.secret).status == 403


def test_a_program_serves_its_own_metrics() -> None:
    with holdfast.open("memory://") as store, MetricsEndpoint(store) as endpoint:
        store.thread("t").put({"n": 1})
        with urllib.request.urlopen(f"http://127.0.0.1:{endpoint.port}/metrics") as response:
            values = parse(response.read().decode())
        assert value(values, "operation_seconds_count", operation="thread.put") == 1
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(f"http://127.0.0.1:{endpoint.port}/")
        for name, status in (
            ("evil.example", 421),
            ("localhost", 200),
            (f"127.0.0.1.evil.example:{endpoint.port}", 421),
        ):
            connection = http.client.HTTPConnection("127.0.0.1", endpoint.port)
            connection.request("GET", "/metrics", headers={"Host": name})
            assert connection.getresponse().status == status
            connection.close()
        with pytest.raises(ConfigError, match="cannot be used"):
            MetricsEndpoint(store, port=endpoint.port)


def test_the_dashboard_and_the_rules_name_metrics_that_exist() -> None:
    dashboard = build_dashboard()
    queries = [each["expr"] for panel in dashboard["panels"] for each in panel.get("targets", ())]
    rules = yaml.safe_load(RULES_FILE.read_text())["groups"][0]["rules"]
    queries += [each["expr"] for each in rules]
    assert len(queries) > 30
    for query in queries:
        used = USED.findall(query)
        assert used, query
        assert set(used) <= FAMILIES.keys(), query
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])
    assert all(panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24 for panel in dashboard["panels"])
    assert len({rule["alert"] for rule in rules}) == len(rules)


def test_tokens_of_the_last_day_are_metrics(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "holdfast.toml").write_text("[prices]\nkelp = { input = 2, output = 10 }\n")
    now = [time.time_ns()]
    monkeypatch.setattr(EngineContext, "clock", property(lambda _: lambda: now[0]))

    def said(model: str, tokens: int) -> dict[str, Any]:
        usage = {"input_tokens": tokens, "output_tokens": 10, "input_token_details": {"cache_read": 4}}
        return {"role": "assistant", "content": "Yes.", "model": model, "usage": usage}

    with holdfast.open(tmp_path / "agents.db") as store, ServedStore(store) as served:
        assert not store.maintenance.metrics().has("usage_day_tokens"), "nobody used a model"
        store.thread("long-ago").put({"messages": [said("kelp-1", 5_000)]})
        now[0] += 25 * 3600 * 10**9
        store.thread("chat").append("messages", said('"odd"\n' + "x" * 90, 2000))
        for number in range(1, 25):
            store.thread(f"chat-{number % 2}").append("messages", said(f"kelp-{number}", 1000))
        found = store.maintenance.metrics()
        assert found.value("usage_day_tokens", kind="input") == 26_000
        assert found.value("usage_day_tokens", kind="output", model="kelp-1") == 10
        assert found.value("usage_day_tokens", kind="cached") == 100
        assert found.value("usage_day_cost") == pytest.approx(24 * (1000 * 2 + 10 * 10) / 1e6)
        assert found.value("usage_day_complete") == 1
        models = {each.labels[0] for each in found.samples if each.family == "usage_day_tokens"}
        assert len(models) == 21
        assert max(map(len, models)) == 80
        lines = parse(served.request("GET", "/metrics").text)
        assert value(lines, "usage_day_tokens", model="others", kind="input") == 5_000
        token = store.access.issue_token("user:eve")
        assert served.request("GET", "/metrics", token=token.secret).status == 403
        monkeypatch.setattr(usage_metrics, "_SCANNED", 3)
        assert store.maintenance.metrics().value("usage_day_complete") == 1, "it is read every five minutes"
        now[0] += 301 * 10**9
        assert store.maintenance.metrics().value("usage_day_complete") == 0


def test_the_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    url = f"sqlite:///{tmp_path}/agents.db"
    with holdfast.open(url) as store:
        store.thread("t").put({"text": "x" * 5000})
        store.alerts.evaluate(storage_budget=10, pending=0)
    assert value(parse(kit.run("metrics", store=url).out), "alert_state", rule="storage-budget") == 2
    assert json.loads(kit.run("metrics", "dashboard", store=url).out) == build_dashboard()
    assert kit.run("metrics", "rules", store=url).out.strip() == RULES_FILE.read_text().strip()
    listed = kit.run("alerts", store=url)
    assert listed.code == 6
    assert "over its budget" in listed.out
    assert kit.run("alerts", "silence", "storage-budget", "1h", store=url).code == 0
    assert "no destination for alerts" in kit.run("alerts", "test", store=url).err
    (tmp_path / "holdfast.toml").write_text('[alerts]\ncommands = [["cat"], ["false"]]\n')
    tested = kit.run("alerts", "test", store=url)
    assert tested.code == 6
    assert tested.out.splitlines() == ["cat: sent", "false: the command ended with status 1 (at false)"]
    (tmp_path / "holdfast.toml").write_text('[alerts]\ncommands = ["rm -rf"]\n')
    assert kit.run("alerts", "test", store=url).code != 0


def test_without_opentelemetry_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.metrics", None)
    with holdfast.open("memory://") as store, pytest.raises(ConfigError) as caught:
        export_to_opentelemetry(store)
    assert ".[otel]" in caught.value.hint


def test_opentelemetry_gets_operations_by_the_stable_name() -> None:
    pytest.importorskip("opentelemetry.sdk.metrics", reason="needs opentelemetry-sdk")
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader

    reader = InMemoryMetricReader()
    provider = MeterProvider([reader])
    with holdfast.open("memory://") as store:
        end = export_to_opentelemetry(store, provider)
        store.thread("secret-name").put({"n": 1})
        with pytest.raises(holdfast.errors.NotFoundError):
            store.thread("nobody").get()
        found = _points(reader)
        durations = {point.attributes["db.operation.name"]: point for point in found["db.client.operation.duration"]}
        assert durations["thread.put"].count == 1
        assert dict(durations["thread.get"].attributes)["error.type"] == "not-found"
        assert dict(durations["thread.put"].attributes)["db.system.name"] == "memory"
        assert found["holdfast.cache.misses"][0].value >= 0
        assert found["holdfast.backend"]
        assert all(name.startswith(("holdfast.", "db.client.")) for name in found)
        assert "secret-name" not in str(found)
        end()
        before = durations["thread.put"].count
        store.thread("t").put({"n": 2})
        assert _points(reader)["db.client.operation.duration"][0].count == before
    provider.shutdown()


def _points(reader: Any) -> dict[str, list[Any]]:
    data = reader.get_metrics_data()
    return {
        metric.name: list(metric.data.data_points)
        for resource in data.resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
    }
