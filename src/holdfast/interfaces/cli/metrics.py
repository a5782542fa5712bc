"""`holdfast metrics`: the metrics of a store, and what monitoring needs to use them."""

from __future__ import annotations

import json

from holdfast.interfaces.cli.base import CliContext, command, group


@group("metrics", default="show")
def metrics(session: CliContext) -> None:
    """Print the metrics of a store, a dashboard for Grafana, or alert rules for Prometheus.

    `holdfast serve` has the metrics at /metrics. A program has its own: holdfast.metrics.

    holdfast metrics show --store agents.db
    holdfast metrics dashboard > holdfast.json
    holdfast metrics rules > holdfast.rules.yml
    """


@command("show")
def show(session: CliContext) -> None:
    """Print what the store says about itself, as text for Prometheus.

    holdfast metrics show --store agents.db
    """
    from holdfast.backends.distribution import Distribution
    from holdfast.backends.runtime.metric_families import FAMILIES
    from holdfast.interfaces.metrics.prometheus import to_prometheus

    found = session.open().maintenance.metrics()
    if not session.json:
        session.out.line(to_prometheus(found).rstrip("\n"))
        return
    for each in found.samples:
        name, value = each.family, each.value
        by_name = dict(zip(FAMILIES[name].labels, each.labels, strict=True))
        if isinstance(value, Distribution):
            buckets = {str(bound): count for bound, count in value.buckets().items()}
            record = {"count": value.count, "total": value.total, "buckets": buckets}
            session.emit({"name": name, "labels": by_name, **record})
        else:
            session.emit({"name": name, "labels": by_name, "value": value})


@command("dashboard")
def dashboard(session: CliContext) -> None:
    """Print a dashboard for Grafana, to import there.

    holdfast metrics dashboard > holdfast.json
    """
    from holdfast.interfaces.metrics.grafana import build_dashboard

    dashboard = build_dashboard()
    session.report(json.dumps(dashboard, indent=2).splitlines(), {"definition": dashboard})


@command("rules")
def rules(session: CliContext) -> None:
    """Print alert rules for Prometheus, to list in its rule_files.

    holdfast metrics rules > holdfast.rules.yml
    """
    from holdfast.interfaces.metrics.prometheus import RULES_FILE

    text = RULES_FILE.read_text(encoding="utf-8")
    session.report(text.splitlines(), {"rules": text})


metrics.add(show, dashboard, rules)
