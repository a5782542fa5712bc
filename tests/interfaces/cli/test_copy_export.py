"""`copy`, `export`, `import` and `delete`."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

import holdfast
from holdfast.engine.namespaces import thread_name
from holdfast.interfaces.cli import exit_codes
from tests.interfaces.cli import kit

Run = Callable[..., kit.Result]
NAMES = ["chat/anna", "t1", "t2"]


def threads(url: str | Path) -> list[str]:
    with holdfast.open(url) as store:
        return [each.thread for each in store.threads()]


def hashes(url: str, thread: str) -> list[str]:
    with holdfast.open(url) as store:
        return [each.hash for each in store.thread(thread).log().all()]


# copy


def test_copying_all(hf: Run, url: str, tmp_path: Path) -> None:
    other = f"sqlite:///{tmp_path}/copy.db"
    result = hf("copy", other)
    assert (result.code, result.err) == (0, "")
    assert result.out.startswith("Copied 3 lines: ")
    assert threads(other) == NAMES
    assert hashes(other, "t1") == hashes(url, "t1")
    assert hf("copy", other).out.startswith("Copied 3 lines, 3 of them existed already: 0 rows")


def test_copying_some_to_a_path(hf: Run, tmp_path: Path) -> None:
    (record,) = hf("copy", tmp_path / "copy.db", "t2", "--json").records
    assert (record["threads"], record["skipped"], record["changing"]) == (1, 0, [])
    assert threads(f"sqlite:///{tmp_path}/copy.db") == ["t2"]
    missing = hf("copy", tmp_path / "copy.db", "nowhere")
    assert missing.code == exit_codes.NOT_FOUND
    assert "nowhere" in missing.err


def test_copying_what_has_another_history(hf: Run, tmp_path: Path) -> None:
    other = f"sqlite:///{tmp_path}/copy.db"
    with holdfast.open(other) as store:
        store.thread("t1").put({"mine": 1})
    assert hf("copy", other).code == exit_codes.CONFLICT
    with holdfast.open(other) as store:
        assert store.thread("t1").get().state == {"mine": 1}


def test_copying_all_tenants(tmp_path: Path) -> None:
    one, two = f"sqlite:///{tmp_path}/one.db", f"sqlite:///{tmp_path}/two.db"
    for tenant in ("acme", "other"):
        with holdfast.open(one, tenant=tenant) as store:
            store.thread("t").put({"of": tenant})
    assert kit.run("copy", two, "--all-tenants", store=one).code == 0
    for tenant in ("acme", "other"):
        with holdfast.open(two, tenant=tenant) as store:
            assert store.thread("t").get().state == {"of": tenant}


def test_copying_to_itself(hf: Run, url: str) -> None:
    result = hf("copy", url)
    assert result.code == exit_codes.USAGE
    assert "cannot be copied to itself" in result.err


# export and import


@pytest.mark.parametrize("name", ["threads.jsonl", "threads.jsonl.gz"])
def test_there_and_back(hf: Run, url: str, tmp_path: Path, name: str) -> None:
    file, other = tmp_path / name, f"sqlite:///{tmp_path}/other.db"
    exported = hf("export", file)
    assert (exported.code, exported.err) == (0, "")
    assert exported.out.startswith("Exported 3 threads: ")
    dry = kit.run("import", file, "--dry-run", store=url)
    assert dry.lines[0] == "Would import 0 threads; 3 existed already"
    assert [line.split()[:2] for line in dry.lines[2:]] == [["thread", name] for name in NAMES]
    imported = kit.run("import", file, store=other)
    assert imported.code == 0
    assert imported.out.startswith("Imported 3 threads: ")
    assert threads(other) == NAMES
    assert hashes(other, "t1") == hashes(url, "t1")
    (again,) = kit.run("import", file, "--json", store=other).records
    assert (again["threads"], again["skipped"], again["rows"], again["dry_run"]) == ([], NAMES, 0, False)


def test_some_threads_and_another_name(hf: Run, url: str, tmp_path: Path) -> None:
    (record,) = hf("export", tmp_path / "f", "t1", "t2", "--json").records
    assert record["threads"] == 2
    dry = hf("import", tmp_path / "f", "t1", "--as", "copy", "--dry-run")
    assert dry.lines[0] == "Would import 1 thread"
    assert [line.split() for line in dry.lines[2:]] == [
        ["thread", "t1", "12", "import"],
        ["thread", "t2", "1", "leave", "out"],
    ]
    assert threads(url) == NAMES
    assert hf("import", tmp_path / "f", "t1", "--as", "copy").code == 0
    assert hashes(url, "copy") == hashes(url, "t1")
    assert hf("import", tmp_path / "f", "--as", "copy").code == exit_codes.USAGE
    assert hf("import", tmp_path / "f", "chat/anna").code == exit_codes.NOT_FOUND


def test_through_pipes(url: str, tmp_path: Path) -> None:
    other = f"sqlite:///{tmp_path}/other.db"
    export = subprocess.run(
        kit.command("--store", url, "export", "-", "t1"), env=kit.environment(), capture_output=True, check=True
    )
    assert b"Exported 1 thread" in export.stderr
    brought = subprocess.run(
        kit.command("--store", other, "import", "-"),
        env=kit.environment(),
        input=export.stdout,
        capture_output=True,
        check=True,
    )
    assert brought.stdout.startswith(b"Imported 1 thread")
    assert threads(other) == ["t1"]


def test_no_room_for_two_kinds_of_json(hf: Run) -> None:
    result = hf("export", "-", "--json")
    assert result.code == exit_codes.USAGE
    assert "needs a file" in result.err


def test_states_as_json(hf: Run, tmp_path: Path) -> None:
    result = hf("export", tmp_path / "states.jsonl", "t1", "--format", "json")
    assert result.out.startswith("Exported 1 thread: 8 states, ")
    documents = [json.loads(line) for line in (tmp_path / "states.jsonl").read_text().splitlines()]
    assert {each["checkpoint"] for each in documents} == {*(f"c{n}" for n in range(6)), "b3", "b4"}
    refused = hf("import", tmp_path / "states.jsonl")
    assert refused.code == exit_codes.USAGE
    assert "cannot be imported" in refused.err


def test_the_interchange_format(hf: Run, tmp_path: Path) -> None:
    file, other = tmp_path / "chats.jsonl", tmp_path / "other.db"
    result = hf("export", file, "t1", "--format", "jsonl")
    assert result.out.startswith("Exported 1 thread: 8 checkpoints, ")
    assert hf("import", file, "--from", "jsonl", "--as", "t9", "--dry-run").out == "Would import 1 thread\n"
    assert hf("--store", other, "import", file, "--from", "jsonl").out.startswith("Imported 1 thread: ")
    assert threads(other) == ["t1"]
    again = hf("--store", other, "import", file, "--from", "jsonl").out
    assert again == "Imported 0 threads: 0 rows, 0 B; 1 existed already\n"
    file.write_text(file.read_text().replace('"type":"end"', '"type":"fin"'))
    wrong = hf("--store", other, "import", file, "--from", "jsonl", "--as", "t2")
    assert (wrong.code, wrong.out) == (exit_codes.USAGE, "")
    assert "line 11 of" in wrong.err
    assert hf("import", file, "--from", "jsonl", "--allow", "a:b").code == exit_codes.USAGE


def test_what_goes_wrong(hf: Run, tmp_path: Path) -> None:
    hf("export", tmp_path / "f")
    data = (tmp_path / "f").read_bytes()
    (tmp_path / "cut").write_bytes(data[: len(data) // 2])
    cut = hf("import", tmp_path / "cut")
    assert (cut.code, cut.out) == (exit_codes.INTEGRITY, "")
    assert "Copy the file again" in cut.err
    assert hf("import", tmp_path / "nowhere").code == exit_codes.NOT_FOUND
    assert hf("export", tmp_path / "no" / "folder").code == exit_codes.ERROR
    assert hf("export", tmp_path / "g", "nowhere").code == exit_codes.NOT_FOUND
    assert not (tmp_path / "g").exists()
    assert hf("export").code == exit_codes.USAGE
    nowhere = kit.run("export", tmp_path / "g", store=f"sqlite:///{tmp_path}/none.db")
    assert nowhere.code == exit_codes.NO_STORE
    assert not (tmp_path / "none.db").exists()
    with holdfast.open(f"sqlite:///{tmp_path}/other.db") as store:
        store.thread("t1").put({"mine": 1})
    assert kit.run("import", tmp_path / "f", store=f"sqlite:///{tmp_path}/other.db").code == exit_codes.CONFLICT
    assert threads(f"sqlite:///{tmp_path}/other.db") == ["t1"]


def test_interrupting_an_export_leaves_nothing(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/many.db"
    with holdfast.open(url) as store:
        for n in range(20):
            store.thread(f"t{n:03}").put({"n": n})
    (tmp_path / "out").mkdir()
    with kit.halted("--store", url, "export", tmp_path / "out" / "f", after=5) as terminal:
        terminal.expect("halted")
        assert "Exporting" in terminal.plain
        assert list((tmp_path / "out").iterdir()) != []
        terminal.send("\x03")
        assert terminal.wait() == exit_codes.INTERRUPTED
    assert list((tmp_path / "out").iterdir()) == []
    assert kit.run("status", "--json", store=url).records[0]["threads"] == 20


# delete


def test_deleting(hf: Run, url: str) -> None:
    dry = hf("delete", "t1", "t2", "--dry-run")
    assert dry.lines[0].startswith("Would delete 2 threads: 9 checkpoints, ")
    assert dry.lines[1:] == ["  t1", "  t2"]
    assert threads(url) == NAMES
    unsure = hf("delete", "t1")
    assert unsure.code == exit_codes.USAGE
    assert "--yes" in unsure.err
    assert threads(url) == NAMES
    result = hf("delete", "t1", "t2", "--yes")
    assert (result.code, result.err) == (0, "")
    assert result.out.startswith("Deleted 2 threads: 9 checkpoints, ")
    assert threads(url) == ["chat/anna"]
    (record,) = hf("delete", "chat/anna", "--yes", "--json").records
    assert (record["threads"], record["steps"], record["dry_run"]) == (["chat/anna"], 1, False)


def test_deleting_what_is_not_there_deletes_nothing(hf: Run, url: str) -> None:
    result = hf("delete", "t1", "nowhere", "--yes")
    assert result.code == exit_codes.NOT_FOUND
    assert threads(url) == NAMES
    assert hf("delete").code == exit_codes.USAGE


def test_a_thread_that_is_held_is_not_deleted(hf: Run, url: str) -> None:
    with holdfast.open(url) as store:
        store.thread("t2").hold(reason="audit")
    for arguments in (["--yes"], ["--dry-run"]):
        result = hf("delete", "t1", "t2", *arguments)
        assert result.code == exit_codes.ERROR
        assert "held: audit" in result.err
    assert threads(url) == NAMES


def test_namespaces_are_deleted_with_their_thread(hf: Run, url: str) -> None:
    with holdfast.open(url) as store:
        store.thread(thread_name("t2", "child:1")).put({"n": 1})
    assert hf("delete", "t2", "--yes").out.startswith("Deleted 2 threads: 2 checkpoints")
    assert threads(url) == ["chat/anna", "t1"]


def test_people_are_asked(url: str) -> None:
    with holdfast.open(url) as store:
        for n in range(12):
            store.thread(f"many{n:02}").put({"n": n})
    names = [f"many{n:02}" for n in range(12)]
    with kit.Terminal(*kit.command("--store", url, "delete", *names)) as terminal:
        terminal.expect("and 2 more")
        terminal.expect("Delete 12 threads permanently?")
        terminal.send("n\n")
        assert terminal.wait() == exit_codes.ERROR
    assert len(threads(url)) == 15
    with kit.Terminal(*kit.command("--store", url, "delete", *names)) as terminal:
        terminal.expect("permanently?")
        terminal.send("y\n")
        terminal.expect("Deleted 12 threads")
        assert terminal.wait() == 0
    assert threads(url) == NAMES


def test_deleting_what_has_not_changed_for_long(hf: Run, url: str) -> None:
    assert hf("delete", "--where", "updated<90d", "--yes").lines == ["0 threads deleted, 0 B."]
    with holdfast.open(url) as store:
        store.thread("t1").hold(reason="case")
    dry = hf("delete", "--where", "updated<0s", "--dry-run")
    assert [line.partition(":")[0] for line in dry.lines] == [
        "thread chat/anna",
        "thread t2",
        dry.lines[-1].partition(":")[0],
    ]
    assert dry.lines[-1].startswith("2 threads would be deleted, ")
    assert "thread t1: the thread is held: case" in dry.err
    unsure = hf("delete", "--where", "updated<0s")
    assert unsure.code == exit_codes.USAGE
    assert threads(url) == NAMES
    (record,) = hf("delete", "--where", "updated<0s", "--prefix", "t", "--yes", "--json").records
    assert [each["name"] for each in record["deleted"]] == ["t2"]
    assert [each["problem"] for each in record["skipped"]] == ["the thread is held: case"]
    assert threads(url) == ["chat/anna", "t1"]
    for wrong in (
        ["t1", "--expired"],
        ["--expired", "--where", "x"],
        ["t1", "--prefix", "t"],
        ["--expired", "--kind", "agent"],
    ):
        assert hf("delete", *wrong, "--yes").code == exit_codes.USAGE, wrong


def test_threads_that_expire(hf: Run, url: str) -> None:
    assert hf("expire", "t2").out == "t2 never expires.\n"
    assert hf("expire", "t2", "1h").out.startswith("t2 expires ")
    assert hf("expire", "t1", "0.001s").code == 0
    assert hf("expire", "chat/anna", "1h").code == 0
    assert hf("expire", "chat/anna", "never").out == "chat/anna never expires.\n"
    assert hf("delete", "--expired", "--yes").lines[0].startswith("thread t1: deleted, last changed ")
    assert threads(url) == ["chat/anna", "t2"]


def test_people_are_asked_about_what_has_not_changed(url: str) -> None:
    with kit.Terminal(*kit.command("--store", url, "delete", "--where", "updated<0s")) as terminal:
        terminal.expect("  chat/anna")
        terminal.expect("Delete these permanently?")
        terminal.send("n\n")
        assert terminal.wait() == exit_codes.ERROR
    assert threads(url) == NAMES
