"""`holdfast migrate`: planned, copied first, migrated, and taken back, from the command line."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

import holdfast
from holdfast import Store
from holdfast.errors import InvalidError
from tests.interfaces.cli import kit
from tests.migration.versions import ONE, TWO, first, second

numbers = count()


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    monkeypatch.chdir(tmp_path)
    name = f"cli_migrate_{next(numbers)}"
    (tmp_path / f"{name}.py").write_text("from tests.migration.versions import TWO\nschemas = TWO\n")
    (tmp_path / "holdfast.toml").write_text(f'[schemas]\nmodule = "{name}"\n')
    with holdfast.open(tmp_path / "a.db") as opened:
        opened.schemas.attach(ONE, threads="chat-*")
        for number in range(3):
            opened.thread(f"chat-{number}").put(first(number))
        opened.schemas.detach(threads="chat-*")
        yield opened


def run(*arguments: str) -> kit.Result:
    return kit.run("migrate", *arguments, store="a.db")


def test_the_whole_way(store: Store, tmp_path: Path) -> None:
    found = run("status")
    assert (found.code, "1.0.0: 3" in found.out) == (0, True)
    planned = run("plan")
    assert planned.code == 0, planned.err
    for text in ("chat to 2.0.0: 3 states to migrate", "- msgs: ['hello', 'm0']", "+ messages: ['hello', 'm0']"):
        assert text in planned.out
    assert run("up", "--yes").code == 2, "a copy first, or none: that is to be said"
    assert run("up", "--dry-run").out == planned.out
    assert store.thread("chat-0").get().state == first()
    asked = run("up", "--backup", "backups")
    assert (asked.code, (tmp_path / "backups").exists()) == (2, False), "it asks before it makes a backup"
    done = run("up", "--backup", "backups", "--yes")
    assert (done.code, done.out) == (0, "Migrated 3 states of chat to 2.0.0; 0 had that version.\n"), done.err
    with holdfast.open("memory://") as copy:
        assert [each.reason for each in copy.backups(tmp_path / "backups").list()] == ["migration"]
        copy.backups(tmp_path / "backups").restore()
        assert copy.thread("chat-0").get().state == first()
    store.schemas.attach(TWO, threads="chat-*")
    assert store.thread("chat-0").get().state == second()
    assert run("status", "--json").records[0]["states"] == {"2.0.0": 3}
    shown = run("down", "--to", "1.0.0", "--dry-run")
    assert (shown.code, "chat to 1.0.0: 3 states to migrate" in shown.out) == (0, True), shown.err
    assert store.thread("chat-0").get().state == second()
    back = run("down", "--to", "1.0.0", "--yes")
    assert (back.code, "3 of them as they were" in back.out) == (0, True), back.err
    assert "1.0.0 (downgraded)" in run("status").out
    assert store.thread("chat-0").get(migrate=False).state == first()
    again = run("up", "--backup", "backups", "--yes")
    assert again.code == 0, again.err
    assert [each.number for each in store.backups(tmp_path / "backups").list()] == [1, 2]


def test_a_version_with_another_form_is_shown(store: Store, tmp_path: Path) -> None:
    name = f"cli_migrate_{next(numbers)}"
    (tmp_path / f"{name}.py").write_text(
        "from holdfast.schemas import Schema, SchemaSet\n"
        'schemas = SchemaSet(Schema("chat", "1.0.0", {"type": "object", "properties": {}}))\n'
    )
    shown = run("status", "--module", name)
    assert (shown.code, "chat@1.0.0 has another form in the store" in shown.err) == (6, True), shown.err
    refused = run("plan", "--module", name)
    assert (refused.code, "schema-changed" in refused.err) == (4, True), refused.err


def test_states_that_do_not_fit_are_listed(store: Store) -> None:
    store.thread("chat-1").update({"msgs": [1]})
    planned = run("plan")
    assert planned.code == 6
    assert "schema-mismatch thread chat-1, step 1, msgs[0]" in planned.out
    refused = run("up", "--no-backup", "--yes")
    assert (refused.code, "migration-unfit" in refused.err) == (4, True)
    assert store.thread("chat-0").get().schema == "chat@1.0.0"
    skipped = run("up", "--no-backup", "--yes", "--on-error", "skip")
    assert (skipped.code, "Migrated 2 states" in skipped.out) == (6, True)
    store.schemas.attach(TWO, threads="chat-*", validate="off")
    store.thread("chat-0").update({"first": 5})
    store.schemas.detach(threads="chat-*")
    assert run("down", "--to", "1.0.0", "--yes").code == 4
    skipped = run("down", "--to", "1.0.0", "--yes", "--on-error", "skip")
    assert (skipped.code, "Migrated 1 state" in skipped.out) == (6, True), skipped.err


def test_a_skeleton_is_printed(store: Store) -> None:
    found = run("new")
    assert (found.code, 'add("plan", default=[])' in found.out) == (0, True), found.err
    del store


def test_every_migration_is_run_on_generated_states(store: Store) -> None:
    found = run("test", "--examples", "5", "--json")
    assert [(each["source"], each["target"]) for each in found.records] == [("1.0.0", "2.0.0")]
    del store


def test_a_migration_that_does_not_lead_back_is_shown_with_an_example(store: Store, tmp_path: Path) -> None:
    name = f"cli_migrate_{next(numbers)}"
    (tmp_path / f"{name}.py").write_text(
        "from typing import TypedDict\n"
        "from holdfast.schemas import Migration, Schema, SchemaSet, convert\n"
        'one, two = (Schema("x", each, TypedDict("X", {"n": str})) for each in ("1", "2"))\n'
        'to_2 = Migration("x", "1", "2", convert("n", str, lambda value: "other"))\n'
        "schemas = SchemaSet(one, two, to_2)\n"
    )
    found = run("test", "--examples", "5", "--module", name)
    assert found.code == 6
    assert "x 1.0.0 -> 2.0.0, up and down again, does not give the original: n was str ''" in found.out
    del store


def test_diff_and_log_in_one_version(store: Store) -> None:
    """What is stored is shown, unless both sides are to be brought to one version."""
    store.schemas.attach(TWO, threads="chat-*")
    store.thread("chat-0").update({"plan": ["go"]})
    thread = store.thread("chat-0")
    stored = kit.run("diff", "chat-0", store="a.db")
    assert all(text in stored.out for text in ("msgs: removed", "messages: added", "plan: added"))
    one_version = kit.run("diff", "chat-0", "--migrate", store="a.db")
    assert one_version.code == 0, one_version.err
    assert ("plan: +1" in one_version.out, "msgs" in one_version.out, "aside" in one_version.out) == (
        True,
        False,
        False,
    )
    assert [str(each) for each in thread.diff(migrate=True).summary] == ["plan: +1"]
    assert [str(each) for each in thread.diff("#0", "#1", migrate=TWO).summary] == ["plan: +1"]
    assert not thread.diff("#0", "#0", migrate=True)
    assert thread.diff("HEAD", "#0", other="chat-1", migrate=True).new.thread == "chat-1"
    log = kit.run("log", "chat-0", "--oneline", "--migrate", store="a.db")
    assert "plan: +1" in log.out.splitlines()[0]
    assert "messages: added" in log.out.splitlines()[1], "the first checkpoint in the newest version"
    assert kit.run("log", "chat-0", "--migrate", "--json", store="a.db").records[0]["changed"] == ["plan"]
    assert "go" in kit.run("log", "chat-0", "-p", "--migrate", store="a.db").out
    with pytest.raises(InvalidError, match="no version to migrate"):
        thread.diff(state={}, migrate=True)
    store.schemas.detach(threads="chat-*")
    with pytest.raises(InvalidError, match="no schema is attached"):
        thread.diff(migrate=True)
    assert [each.schema for each in thread.log()] == ["chat@2.0.0", "chat@1.0.0"], "nothing was written"
