"""`holdfast erase`: erasing the data of one person."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import holdfast
from tests.interfaces.cli.kit import Result, run


def test_one_person_is_exported_and_erased(tmp_path: Path) -> None:
    url, file, exported = f"sqlite:///{tmp_path}/a.db", tmp_path / "certificate.json", tmp_path / "u-1.json"

    def hf(*arguments: str) -> Result:
        return run(*arguments, store=url)

    with holdfast.open(url) as store:
        store.thread("chat").put({"text": "planted"}, metadata={"subject": "u-1"})
        store.thread("notes").put({"text": "planted"})
        store.thread("group").put({"text": ["ours"]})
        store.thread("group").put({"text": ["ours", "planted"]}, metadata={"subject": "u-1"})
    assert hf("erase", "set-subject", "u-1", "notes").code == 0
    assert hf("erase", "set-subject", "--mixed", "group", "--json").records == [{"name": "group", "mixed": True}]
    assert "notes" in hf("erase", "--subject", "u-1", "--dry-run").out
    assert hf("export", str(exported), "--subject", "u-1").code == 0
    assert stat.S_IMODE(exported.stat().st_mode) == 0o600, "it is not encrypted"
    documents = [json.loads(line) for line in exported.read_text().splitlines()]
    assert [each["state"] for each in documents if "state" in each] == [{"text": "planted"}] * 2
    assert [each["written"] for each in documents if "written" in each] == [{"text": ["planted"]}]
    assert hf("export", str(exported), "chat", "--subject", "u-1").code == 2
    hf("hold", "notes", "--reason", "case 7")
    held = hf("erase", "--subject", "u-1", "--dry-run")
    assert "thread notes (held)" in held.out
    assert held.code == 6
    assert "case 7" in hf("erase", "--subject", "u-1", "--yes").err
    hf("hold", "notes", "--release")
    assert hf("erase").code == 2
    done = hf("erase", "--subject", "u-1", "--yes", "--out", str(file))
    assert "2 threads, 1 threads rewritten" in done.err
    certificate = json.loads(file.read_text())
    assert hf("erase", "list", "--json").records == [certificate]
    assert certificate["id"] in hf("erase", "list").out
    assert json.loads(hf("erase", "show", certificate["id"][:8]).out) == certificate
    assert hf("erase", "show", "none").code == 3
    key = hf("erase", "key").out.strip()
    # Checking needs no store.
    assert "as it was signed" in run("erase", "verify", str(file), "--public-key", key, "--subject", "u-1").err
    assert "compare it" in run("erase", "verify", str(file)).err
    assert run("erase", "verify", str(file), "--subject", "u-2").code == 5
    assert run("erase", "verify", str(file), "--public-key", "00" * 32).code == 5
    file.write_text(file.read_text().replace('"threads": 2', '"threads": 3'))
    altered = run("erase", "verify", str(file)).err
    assert "altered" in altered
    assert "repair" not in altered, "nothing is wrong with the store"
    assert run("erase", "verify", str(tmp_path / "none")).code != 0
    with holdfast.open(url) as store:
        assert store.thread("group").get().state == {"text": ["ours"]}
