"""The dashboard for Grafana: rows of panels over the metrics of the exporter."""

from __future__ import annotations

from typing import Any, NamedTuple

_WIDTH, _HEIGHT = 24, 8
_STORES = '{store=~"$store"}'
_SIZE = f"max by (store) (holdfast_storage_bytes{_STORES})"
_GROUPS, _COMMITS = "commit_group_batches_sum", "commit_group_batches_count"


class _Panel(NamedTuple):
    title: str
    unit: str
    queries: tuple[tuple[str, str], ...]
    """Each with its legend."""
    kind: str = "timeseries"
    width: int = 8


def _rate(name: str, by: str, labels: str = "") -> str:
    selector = f'{{store=~"$store"{"," + labels if labels else ""}}}'
    return f"sum by ({by}) (rate(holdfast_{name}{selector}[$__rate_interval]))"


def _quantile(quantile: float, name: str, by: str) -> str:
    return f"histogram_quantile({quantile}, {_rate(f'{name}_bucket', f'{by}, le')})"


_ROWS: tuple[tuple[str, tuple[_Panel, ...]], ...] = (
    (
        "Now",
        (
            _Panel("Answers", "short", ((f"min by (store) (holdfast_up{_STORES})", "{{store}}"),), "stat", 4),
            _Panel("Storage", "bytes", ((_SIZE, "{{store}}"),), "stat", 5),
            _Panel(
                "Since the last backup",
                "s",
                ((f"time() - max by (store) (holdfast_backup_last_timestamp_seconds{_STORES})", "{{store}}"),),
                "stat",
                5,
            ),
            _Panel("Drill", "short", ((f"min by (store) (holdfast_drill_ok{_STORES})", "{{store}}"),), "stat", 5),
            _Panel(
                "Alerts firing",
                "short",
                ((f"count(holdfast_alert_state{_STORES} == 2) or vector(0)", "firing"),),
                "stat",
                5,
            ),
        ),
    ),
    (
        "Operations",
        (
            _Panel("Operations a second", "ops", ((_rate("operation_seconds_count", "operation"), "{{operation}}"),)),
            _Panel("Duration, 99 %", "s", ((_quantile(0.99, "operation_seconds", "operation"), "{{operation}}"),)),
            _Panel(
                "Errors a second",
                "ops",
                ((_rate("operation_seconds_count", "operation, error", 'error!=""'), "{{operation}} {{error}}"),),
            ),
        ),
    ),
    (
        "Tokens",
        (
            _Panel(
                "Tokens in 24 hours",
                "short",
                ((f"sum by (model, kind) (holdfast_usage_day_tokens{_STORES})", "{{model}} {{kind}}"),),
                width=12,
            ),
            _Panel(
                "Cost in 24 hours",
                "short",
                ((f"sum by (model) (holdfast_usage_day_cost{_STORES})", "{{model}}"),),
                width=12,
            ),
        ),
    ),
    (
        "Storage",
        (
            _Panel("Reads and writes, 99 %", "s", ((_quantile(0.99, "backend_seconds", "request"), "{{request}}"),)),
            _Panel("Bytes a second", "Bps", ((_rate("backend_bytes_sum", "request"), "{{request}}"),)),
            _Panel(
                "Batches in a commit",
                "short",
                (
                    (
                        f"{_rate(_GROUPS, 'store')} / {_rate(_COMMITS, 'store')}",
                        "{{store}}",
                    ),
                ),
            ),
            _Panel(
                "Cache hits",
                "percentunit",
                (
                    (
                        f"{_rate('cache_hits_total', 'store')} / ({_rate('cache_hits_total', 'store')}"
                        f" + {_rate('cache_misses_total', 'store')})",
                        "{{store}}",
                    ),
                ),
            ),
            _Panel("Size", "bytes", ((_SIZE, "{{store}}"),)),
            _Panel(
                "Replication lag",
                "s",
                ((f"max by (store) (holdfast_replication_lag_seconds{_STORES})", "{{store}}"),),
            ),
        ),
    ),
    (
        "Agents and hooks",
        (
            _Panel("Saves of agents", "ops", ((_rate("agent_saves_total", "outcome"), "{{outcome}}"),)),
            _Panel("Transitions", "ops", ((_rate("transitions_total", "outcome"), "{{outcome}}"),)),
            _Panel("Time in hooks", "s", ((_rate("hook_seconds_total", "hook"), "{{hook}}"),)),
            _Panel(
                "Restores and recoveries",
                "ops",
                (
                    (_rate("restores_total", "kind, outcome", 'outcome!="attempted"'), "restore {{kind}} {{outcome}}"),
                    (_rate("recoveries_total", "kind, outcome", 'outcome!="attempted"'), "{{kind}} {{outcome}}"),
                ),
            ),
            _Panel("Validation failures", "ops", ((_rate("validation_failures_total", "kind"), "{{kind}}"),)),
            _Panel("Runs", "ops", ((_rate("runs_total", "graph, event"), "{{graph}} {{event}}"),)),
            _Panel("Jobs", "ops", ((_rate("job_runs_total", "type, outcome"), "{{type}} {{outcome}}"),)),
        ),
    ),
)


def build_dashboard() -> dict[str, Any]:
    """Return the dashboard. On import, Grafana asks for the Prometheus to use."""
    panels: list[dict[str, Any]] = []
    y = 0
    for title, row in _ROWS:
        panels.append(_placed({"type": "row", "title": title, "collapsed": False, "panels": []}, panels, 0, y, 24, 1))
        x, y = 0, y + 1
        for panel in row:
            if x + panel.width > _WIDTH:
                x, y = 0, y + _HEIGHT
            panels.append(_placed(_panel(panel), panels, x, y, panel.width, _HEIGHT))
            x += panel.width
        y += _HEIGHT
    return {
        "title": "Holdfast",
        "uid": "holdfast",
        "tags": ["holdfast"],
        "schemaVersion": 39,
        "version": 1,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-6h", "to": "now"},
        "__inputs": [
            {"name": "DS_PROMETHEUS", "label": "Prometheus", "type": "datasource", "pluginId": "prometheus"},
        ],
        "templating": {
            "list": [
                {
                    "name": "store",
                    "label": "Store",
                    "type": "query",
                    "datasource": _SOURCE,
                    "query": "label_values(holdfast_up, store)",
                    "includeAll": True,
                    "multi": True,
                    "refresh": 2,
                    "current": {"text": "All", "value": "$__all"},
                }
            ]
        },
        "panels": panels,
    }


_SOURCE = {"type": "prometheus", "uid": "${DS_PROMETHEUS}"}


def _placed(panel: dict[str, Any], others: list[Any], x: int, y: int, width: int, height: int) -> dict[str, Any]:
    return {"id": len(others) + 1, **panel, "gridPos": {"x": x, "y": y, "w": width, "h": height}}


def _panel(panel: _Panel) -> dict[str, Any]:
    return {
        "type": panel.kind,
        "title": panel.title,
        "datasource": _SOURCE,
        "fieldConfig": {"defaults": {"unit": panel.unit}, "overrides": []},
        "targets": [
            {"refId": chr(ord("A") + number), "datasource": _SOURCE, "expr": query, "legendFormat": legend}
            for number, (query, legend) in enumerate(panel.queries)
        ],
    }
