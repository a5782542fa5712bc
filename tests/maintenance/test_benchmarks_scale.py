"""Threads that are made in bulk are as if they had been saved, and every operation that is measured on them works. Each
can be measured alone, and what was measured before stays."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import holdfast
from benchmarks import scale
from benchmarks.bulk_threads import fill, metadata_of, thread_of
from benchmarks.scale import WORK, Cost, measure, names_of, page_of, plot_of, prepared, store_for, table_of


@pytest.fixture
def store(tmp_path: Path) -> Iterator[holdfast.Store]:
    with holdfast.open(f"sqlite:///{tmp_path}/threads.db") as opened:
        fill(opened, 40, steps=3)
        yield opened


def test_threads_made_in_bulk_are_sound_and_go_on(store: holdfast.Store) -> None:
    assert store.maintenance.verify(level="decode").findings == []
    assert len(store.threads(limit=1000)) == 40
    assert [each.thread for each in store.threads(where="meta.user=u7")] == [thread_of(7)]
    thread = store.thread(thread_of(7))
    assert [each.step for each in thread.log()] == [2, 1, 0]
    assert thread.get().metadata == metadata_of(7)
    assert [each["role"] for each in thread.get().state["messages"]] == ["user", "assistant", "user"]
    thread.update({"more": 1})
    assert thread.diff("HEAD~1", "HEAD")
    assert store.maintenance.prune(keep_last=1).dropped == 2 * 40 + 1
    assert store.maintenance.verify(level="decode").findings == []
    with pytest.raises(ValueError, match="exists already"):
        fill(store, 1, first=3)


def test_what_is_measured_works(tmp_path: Path) -> None:
    """One after another in a folder, since some need what those before them have made."""
    for name, work in WORK.items():
        try:
            with prepared(work, store_for(work, tmp_path, size=40)) as store:
                work.call(store, tmp_path)
        except Exception as error:
            error.add_note(name)
            raise


def test_the_table_says_what_was_stopped_and_what_has_a_rate() -> None:
    found = {"walk": {1000: Cost(0.1, 40.0), 20_000: Cost(2.0, 41.0)}, "long": {1000: Cost(None, None)}}
    assert table_of(found).splitlines()[2:] == [
        "| walk | 100.0 ms, 40 MB | 2.0 s, 41 MB | 10,000 |",
        "| long | stopped |  |  |",
    ]


def test_the_documents_have_the_figures_that_were_measured() -> None:
    """`python -m benchmarks.scale --draw` writes both."""
    found = scale.stored_figures()
    assert found.keys() <= WORK.keys()
    page = scale.PAGE.read_text(encoding="utf-8")
    assert page_of(found, page) == page
    assert scale.PLOT.read_text(encoding="utf-8") == plot_of(found)
    assert "](scale.svg)" in page


def test_an_operation_is_selected_by_its_name_or_a_part_of_it() -> None:
    assert names_of("") == [*WORK]
    assert names_of("verify, structure") == ["verify, structure"]
    assert names_of("verify") == ["verify, structure", "verify, structure, in parts of 10,000", "verify, hashes"]
    assert names_of("verify, hashes; heads") == ["heads", "verify, hashes"]
    assert names_of("nothing of this kind") == []
    assert all(names_of(name) == [name] for name in WORK)


def test_a_figure_is_recorded_beside_those_of_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"before\n{scale.BEGIN}\nold\n{scale.END}\nafter\n")
    for name, path in (("OUTPUT", "scale.json"), ("PLOT", "scale.svg"), ("PAGE", "page.md")):
        monkeypatch.setattr(scale, name, tmp_path / path)
    scale.record("heads", 1000, Cost(0.5, 60.0))
    scale.record("status", 1_000_000, Cost(0.1, 46.0))
    scale.record("later", 1000, Cost(0.2, 50.0))
    scale.record("heads", 1_000_000, Cost(None, None))
    found = scale.stored_figures()
    assert found.pop("later") == {1000: Cost(0.2, 50.0)}, "of a newer version of the command"
    assert found == {
        "status": {1_000_000: Cost(0.1, 46.0)},
        "heads": {1000: Cost(0.5, 60.0), 1_000_000: Cost(None, None)},
    }
    assert page.read_text() == f"before\n{scale.BEGIN}\n\n{table_of(scale.stored_figures())}\n\n{scale.END}\nafter\n"
    assert sorted(each.name for each in tmp_path.iterdir()) == ["page.md", "scale.json", "scale.svg"]


def test_what_is_known_is_not_measured_again(tmp_path: Path) -> None:
    known = {"heads": {40: Cost(0.5, 60.0)}, "export": {20: Cost(None, None)}}
    assert [*measure([40], ["heads", "export", "import"], 60, tmp_path, known)] == []
    assert not (tmp_path / "40" / "threads.db").exists()


def test_a_store_that_was_stopped_while_it_was_made_is_made_again(tmp_path: Path) -> None:
    (tmp_path / "part").mkdir()
    (tmp_path / "part" / "threads.db").write_bytes(b"half")
    for _ in range(2):
        with holdfast.open(store_for(WORK["status"], tmp_path, 40)) as store:
            assert len(store.threads(limit=1000)) == 40


@pytest.mark.nightly
def test_an_operation_alone_gets_what_it_needs_once(tmp_path: Path) -> None:
    for name in ("import", "restore all", "search for a word"):
        (found,) = measure([40], [name], 60, tmp_path)
        assert found[:2] == (name, 40)
        assert found[2].cpu
        needed = WORK[name].after
        result = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "40").glob("*.done")}
        assert f"{needed}.done" in result
        assert len([*measure([40], [name], 60, tmp_path)]) == 1
        assert result == {path.name: path.stat().st_mtime_ns for path in (tmp_path / "40").glob("*.done")}
    (stopped,) = measure([500], ["keys, encrypt all anew"], 1, tmp_path)
    assert stopped[2] == Cost(None, None), "it takes some seconds"
