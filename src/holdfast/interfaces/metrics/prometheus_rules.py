"""The alert rules for Prometheus."""

from __future__ import annotations

from pathlib import Path

RULES_FILE = Path(__file__).with_name("prometheus_rules.yml")
