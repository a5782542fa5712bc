"""`holdfast doctor`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import holdfast
from holdfast.backends.interface import Put, Row
from holdfast.backends.runtime.drivers import run
from holdfast.backends.tables import QUARANTINE
from tests.interfaces.cli import kit

Hf = Callable[..., kit.Result]


def test_all_in_order(hf: Hf) -> None:
    done = hf("doctor")
    assert done.code == 0
    assert any(line.startswith("ok ") and "store-opens" in line for line in done.lines)
    records = hf("doctor", "--json").records
    assert {each["level"] for each in records} <= {"ok", "note"}
    assert records[0].keys() == {"code", "level", "found", "remedy", "ok"}
    assert hf("doctor", "--quiet").out == ""


def test_findings_end_with_6_and_show_the_remedy(hf: Hf, url: str) -> None:
    with holdfast.open(url) as store:
        run(store._engine.context.backend.apply([Put(QUARANTINE, Row(("", "t", 0), ("steps", 1, "damaged"), b"x"))]))
    done = hf("doctor", "--quiet")
    assert done.code == 6
    assert len(done.lines) == 2
    assert "warning  quarantine" in done.lines[0]
    assert "→ `holdfast repair --from URL`" in done.lines[1]
    assert "1 checks failed" in hf("doctor").err


def test_no_store_ends_with_10_and_makes_none(tmp_path: Path) -> None:
    done = kit.run("doctor", store=f"sqlite:///{tmp_path}/none.db")
    assert done.code == 10
    assert "problem  store-there" in done.out
    assert not (tmp_path / "none.db").exists()
    assert kit.run("doctor").code == 10


def test_a_path_is_a_store_too(hf: Hf, tmp_path: Path) -> None:
    assert kit.run("doctor", store=str(tmp_path / "agents.db")).code in (0, 10)
    hf("threads")
    assert kit.run("doctor", store=str(tmp_path / "agents.db")).code == 0


def test_an_unreadable_store_is_a_finding(tmp_path: Path) -> None:
    (tmp_path / "x.db").write_bytes(b"nonsense" * 1000)
    done = kit.run("doctor", "--json", store=f"sqlite:///{tmp_path}/x.db")
    assert done.code == 6
    assert done.records[-1]["code"] == "store-opens"


def test_settings_that_are_misspelt(hf: Hf, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_URL", "hunter2")
    done = hf("doctor")
    assert done.code == 6
    assert "Did you mean HOLDFAST_STORE?" in done.out
    assert "hunter2" not in done.out + done.err
