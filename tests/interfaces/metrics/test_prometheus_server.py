"""A real Prometheus scrapes a served store, and promtool checks the text, the rules and the queries.

`apt-get install prometheus` (Debian, Ubuntu) provides both; `HOLDFAST_PROMETHEUS` names the directory of other ones.
"""

from __future__ import annotations

import atexit
import json
import os
import shutil
import socket
import subprocess
import tempfile
import time
import urllib.parse
import urllib.request
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from holdfast.interfaces.metrics.grafana import build_dashboard
from holdfast.interfaces.metrics.prometheus import RULES_FILE
from tests.interfaces.http.kit import ServedStore

pytestmark = pytest.mark.nightly

INSTALL = "apt-get install prometheus (Debian, Ubuntu), or HOLDFAST_PROMETHEUS=directory"
_SECONDS = 60.0


def program(name: str) -> str:
    """Return a program of Prometheus: one of this machine or, in CI, of Debian's package, which is not installed but
    unpacked. Where there is none, a run of CI fails, and another one says what is skipped."""
    directory = os.environ.get("HOLDFAST_PROMETHEUS")
    found = shutil.which(name, path=directory) if directory else shutil.which(name)
    if found is None and os.environ.get("CI"):
        found = shutil.which(name, path=str(_unpack()))
    if found is None:
        if os.environ.get("CI"):
            pytest.fail(f"{name} is missing: {INSTALL}")
        pytest.skip(f"{name} is missing: {INSTALL}")
    return found


@cache
def _unpack() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="holdfast-prometheus-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    if shutil.which("apt-get") and shutil.which("dpkg-deb"):
        subprocess.run(["apt-get", "download", "prometheus"], cwd=folder, check=False, capture_output=True, timeout=600)
        for package in folder.glob("*.deb"):
            subprocess.run(["dpkg-deb", "-x", str(package), str(folder)], check=False, timeout=_SECONDS)
    return folder / "usr" / "bin"


def check(*arguments: str, text: str = "") -> None:
    done = subprocess.run(
        [program("promtool"), *arguments], input=text, capture_output=True, text=True, timeout=_SECONDS, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_promtool_accepts_the_text_and_the_rules(served: ServedStore) -> None:
    check("check", "metrics", text=served.request("GET", "/metrics").text)
    check("check", "rules", str(RULES_FILE))


def test_prometheus_scrapes_a_served_store_and_runs_every_query(served: ServedStore, tmp_path: Path) -> None:
    (tmp_path / "token").write_text(served.token)
    rules = tmp_path / "holdfast.rules.yml"
    shutil.copyfile(RULES_FILE, rules)
    (tmp_path / "prometheus.yml").write_text(
        json.dumps(  # JSON is YAML
            {
                "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
                "rule_files": [str(rules)],
                "scrape_configs": [
                    {
                        "job_name": "holdfast",
                        "authorization": {"credentials_file": str(tmp_path / "token")},
                        "static_configs": [{"targets": [served.host]}],
                    }
                ],
            }
        )
    )
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    server = subprocess.Popen(
        [
            program("prometheus"),
            f"--config.file={tmp_path}/prometheus.yml",
            f"--storage.tsdb.path={tmp_path}/data",
            f"--web.listen-address=127.0.0.1:{port}",
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        target = _until(port, "targets", lambda data: data["activeTargets"] and data["activeTargets"][0])
        assert target["health"] == "up", target
        up = _until(port, "query?query=holdfast_up", lambda data: data["result"])
        assert up[0]["value"][1] == "1"
        loaded = _ask(port, "rules")["groups"][0]["rules"]
        assert len(loaded) > 10
        for panel in build_dashboard()["panels"]:
            for each in panel.get("targets", ()):
                query = each["expr"].replace("$store", ".*").replace("$__rate_interval", "1m")
                _ask(port, f"query?query={urllib.parse.quote(query)}")
        evaluated = _until(
            port, "rules", lambda data: all(each["health"] == "ok" for each in data["groups"][0]["rules"]) and data
        )
        firing = [each["name"] for each in evaluated["groups"][0]["rules"] if each["state"] == "firing"]
        assert firing == []
    finally:
        server.terminate()
        server.wait(_SECONDS)


def _ask(port: int, path: str) -> Any:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/api/v1/{path}", timeout=_SECONDS) as response:
        answer = json.load(response)
    assert answer["status"] == "success", answer
    return answer["data"]


def _until(port: int, path: str, found: Any) -> Any:
    """Ask until there is an answer with something in it; a target is to have been scraped."""
    end = time.monotonic() + _SECONDS
    while True:
        try:
            result = found(_ask(port, path))
        except OSError:  # it has not started yet
            result = None
        if result and not (isinstance(result, dict) and result.get("health") == "unknown"):
            return result
        assert time.monotonic() < end, path
        time.sleep(0.1)
