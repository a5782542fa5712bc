"""Lists of lines: only those of what has changed are read, and all lines are walked in parts where it is not known."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence, Set
from pathlib import Path
from random import Random

import pytest

import holdfast
from holdfast import Store
from holdfast.engine.row_format import Line
from holdfast.maintenance.backup import creator, line_lists, reader, store_walk
from holdfast.maintenance.backup.capture import MomentFinder, Outline
from holdfast.maintenance.backup.format import LineEntry, Slice
from holdfast.maintenance.backup.reader import BackupBackend, LineRows
from holdfast.maintenance.backup.repository import Repository
from holdfast.maintenance.backup.store_walk import StoreWalk
from holdfast.maintenance.verify import heads, verifier
from tests.maintenance.test_backup import contents
from tests.maintenance.test_backup_reuse import packs


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have lists of a few lines be in many pages, packs and groups."""
    for module, name, value in (
        (line_lists, "_PAGE_LINES", 4),
        (line_lists, "_LARGE_PAGE_LINES", 8),
        (line_lists, "_FEW_PAGES", 6),
        (line_lists, "_SMALL_LAYER", 3),
        (store_walk, "_ROWS", 12),
        (creator, "GROUP", 8),
    ):
        assert hasattr(module, name)
        monkeypatch.setattr(module, name, value)


@pytest.fixture
def pages(monkeypatch: pytest.MonkeyPatch) -> Counter[Slice]:
    """Count which pages of lists are read."""
    counts, page = Counter[Slice](), Repository.page

    async def counted(self: Repository, part: Slice) -> Sequence[LineEntry]:
        counts[part] += 1
        return await page(self, part)

    monkeypatch.setattr(Repository, "page", counted)
    return counts


@pytest.fixture
def store() -> Iterator[Store]:
    with holdfast.open("memory://") as store:
        yield store


def assert_restored(store: Store, repository: Path) -> None:
    with holdfast.open("memory://") as new:
        new.backups(repository).restore()
        assert contents(new) == contents(store)


def cut_feed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the feed of changes not know what changed since the last backup."""
    start = MomentFinder.start

    async def cut(self: MomentFinder, token: str) -> tuple[str, None]:
        return (await start(self, token))[0], None

    monkeypatch.setattr(MomentFinder, "start", cut)


def test_only_the_lists_of_what_has_changed_are_read(store: Store, repository: Path, pages: Counter[Slice]) -> None:
    for number in range(60):
        store.thread(f"chat {number:02}").put({"n": number})
    backups = store.backups(repository)
    made = backups.create()
    assert made.lines >= 60
    pages.clear()
    again = backups.create()
    assert len(pages) <= 1, "the page with the settings, which have the record of the last backup"
    assert again.lines == made.lines
    store.thread("chat 31").put({"n": -1})
    backups.create()
    assert len(pages) == 2, "also the page of the thread"
    assert_restored(store, repository)
    pages.clear()
    assert backups.verify().ok
    assert len(pages) > 12, "there are many pages"


@pytest.mark.parametrize("way", ["feed", "gap", "many"])
@pytest.mark.parametrize("seed", range(2))
def test_every_way_finds_what_has_changed(
    way: str, seed: int, store: Store, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    random, backups = Random(seed), store.backups(repository)
    if way == "many":
        monkeypatch.setattr(creator, "_MOST_CHANGED", 2)
    if way == "gap":
        cut_feed(monkeypatch)
    walks, walk = 0, StoreWalk.outlines

    def counted(self: StoreWalk, lines: list[Line]) -> object:
        nonlocal walks
        walks += 1
        return walk(self, lines)

    monkeypatch.setattr(StoreWalk, "outlines", counted)
    for number in range(5):
        for _ in range(12):
            thread = store.thread(f"chat {random.randrange(25):02}")
            match random.randrange(6):
                case 0:
                    thread.delete()
                case 1:
                    for n in range(15):  # more than a scan reads at once
                        thread.put({"n": n})
                case 2:
                    store.state(session=f"{random.randrange(9)}")["goal"] = random.random()
                case _:
                    thread.put({"n": random.random(), "text": "long text " * random.randrange(3000)})
        made = backups.create()
        assert made.lines == len(store.maintenance.heads().threads), "it is counted right, too"
        assert_restored(store, repository)
        if number:
            assert bool(walks) is (way != "feed")
        walks = 0
    assert backups.verify(level="decode").ok


@pytest.mark.parametrize("what", ["prune", "delete", "put"])
def test_lines_that_change_while_they_are_read_together(
    what: str, store: Store, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(20):
        for n in range(3):
            store.thread(f"chat {number:02}").put({"n": n})
    changed, struck = StoreWalk.changed, 0

    async def strike(self: StoreWalk, outlines: Mapping[Line, Outline]) -> Set[Line]:
        nonlocal struck
        thread = store.thread("chat 07")
        if Line("", "chat 07") in outlines and not struck:
            struck += 1
            if what == "prune":
                store.maintenance.prune(keep_last=1, threads=["chat 07"])
            elif what == "delete":
                thread.delete()
            else:
                thread.put({"n": 3})
        found = await changed(self, outlines)
        assert (Line("", "chat 07") in found) is (what != "put" and Line("", "chat 07") in outlines)
        return found

    monkeypatch.setattr(StoreWalk, "changed", strike)
    assert not store.backups(repository).create().damaged
    assert struck == 1
    assert_restored(store, repository)


def test_packs_that_only_replaced_lines_need_are_forgotten(
    store: Store, repository: Path, pages: Counter[Slice]
) -> None:
    """`prune` deletes them, and the next backup notices that lists name packs that are not there."""
    for number in range(60):
        store.thread(f"chat {number:02}").put({"text": f"{number} " * 500})
    backups = store.backups(repository)
    backups.create()
    before = {path.name for path in packs(repository)}
    for number in range(20):
        store.thread(f"chat {number:02}").delete()
    backups.create()
    assert backups.prune(keep_last=1, grace=0, max_unused=1.0).removed == 1
    backups.prune(keep_last=1, grace=0, max_unused=1.0)
    assert before - {path.name for path in packs(repository)}, "a pack was deleted"
    pages.clear()
    backups.create()
    assert len(pages) > 12, "all lists are read, to be sure that nothing is lost"
    pages.clear()
    backups.create()
    assert len(pages) <= 1, "and that once"
    assert_restored(store, repository)
    assert backups.verify().ok


def test_a_walk_through_an_opened_backup_reads_each_line_about_once(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(40):
        store.thread(f"chat-{number:02}").put({"n": number})
    store.thread("chat-20").tag("good")
    store.backups(tmp_path).create()
    loads, load = Counter[Line](), BackupBackend.load

    async def counted(self: BackupBackend, line: Line) -> LineRows:
        loads[line] += 1
        return await load(self, line)

    monkeypatch.setattr(BackupBackend, "load", counted)
    monkeypatch.setattr(reader, "_LINES", 2)
    for module in (heads, verifier):
        monkeypatch.setattr(module, "GROUP", 8)
    with store.backups(tmp_path).open() as opened:
        assert opened.maintenance.verify(level="structure").ok
        ours, theirs = [each.maintenance.heads(kinds="thread").threads for each in (store, opened)]
        assert ours == theirs
        assert {each.name for each in opened.threads(limit=50)} == {f"chat-{number:02}" for number in range(40)}
    assert set(range(40)) == {int(line.name[5:]) for line in loads if line.name.startswith("chat-")}
    # A few times for each operation, and not for each table or group.
    assert max(loads.values()) <= 12, loads
