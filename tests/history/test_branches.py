"""Branches: list, rename, delete, switch, and fork with an edit."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import holdfast
from holdfast.backends.interface import Scan
from holdfast.backends.runtime.drivers import run
from holdfast.backends.tables import TRANSITIONS
from holdfast.errors import ConflictError, DeniedError, InvalidError, NotFoundError
from holdfast.store.store import Store
from tests.store.stores import over
from tests.support.interference import InterferingBackend


@pytest.fixture(params=["memory", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    """Main with three checkpoints, and `draft` from the second with two of its own."""
    url = "memory://" if request.param == "memory" else f"sqlite:///{tmp_path}/store.db"
    with holdfast.open(url, project=True) as opened:
        for n in range(3):
            opened.thread("t").put({"n": n}, id=f"main-{n}")
        opened.thread("t").fork("draft", at="main-1")
        for n in range(2):
            opened.thread("t").put({"n": 1, "draft": n}, branch="draft", id=f"x-draft-{n}")
        yield opened


def names(store: Store) -> list[str]:
    return [branch.name for branch in store.thread("t").branches()]


def check(store: Store) -> None:
    """Every state that is there can be read, and the readable rows tell of just those."""
    ids = {each.id for each in store.thread("t").log().all()}
    assert store.maintenance.verify("t", level="decode").findings == []
    for id in ids:
        assert store.thread("t").get(id).state
    (rows,) = run(store._engine.context.backend.read([Scan(TRANSITIONS, ("", "t"))]))
    assert {row.key[2] for row in rows} == ids


def test_listed_with_heads_and_how_far_they_are_ahead(store: Store) -> None:
    store.thread("t").fork("empty")
    main, draft, empty = store.thread("t").branches()
    assert (main.name, main.base, main.head, main.ahead, main.current) == ("main", None, "main-2", 3, True)
    assert (draft.name, draft.base, draft.head, draft.ahead, draft.current) == (
        "draft", "main-1", "x-draft-1", 2, False,
    )  # fmt: skip
    assert (empty.name, empty.base, empty.head, empty.ahead, empty.current) == (
        "empty", "main-2", "main-2", 0, False,
    )  # fmt: skip
    with pytest.raises(NotFoundError):
        store.thread("nobody").branches()


# Renaming ---------------------------------------------------------------------------------------------------------


def test_renamed(store: Store) -> None:
    store.thread("t").rename_branch("draft", "final")
    assert names(store) == ["main", "final"]
    assert store.thread("t").get(at="final").id == "x-draft-1"
    (rows,) = run(store._engine.context.backend.read([Scan(TRANSITIONS, ("", "t", "x-draft-0"))]))
    assert rows[0].columns[1] == "final"
    store.thread("t").rename_branch("final", "final")
    store.thread("t").put({"n": 9}, branch="final")
    with pytest.raises(NotFoundError, match="no branch 'draft'"):
        store.thread("t").rename_branch("draft", "other")
    with pytest.raises(ConflictError, match="already has a branch 'main'"):
        store.thread("t").rename_branch("final", "main")
    with pytest.raises(InvalidError, match="main cannot be renamed"):
        store.thread("t").rename_branch("main", "trunk")
    for name, why in (("", "cannot be empty"), ("HEAD", "a reserved revision")):
        with pytest.raises(InvalidError, match=why):
            store.thread("t").rename_branch("final", name)
        with pytest.raises(InvalidError, match=why):
            store.thread("t").fork(name)


def test_renamed_while_others_rename() -> None:
    backend = InterferingBackend()
    store, other = over(backend), over(backend)
    store.thread("t").put({"n": 0})
    for name in ("a", "b"):
        store.thread("t").fork(name)
    theirs = backend.interfere(lambda: other.thread("t").rename_branch("b", "c"))
    with pytest.raises(ConflictError, match="already has a branch 'c'"), theirs:
        store.thread("t").rename_branch("a", "c")
    with pytest.raises(NotFoundError), backend.interfere(lambda: other.thread("t").rename_branch("a", "d")):
        store.thread("t").rename_branch("a", "e")


# Deleting ---------------------------------------------------------------------------------------------------------


def test_earlier_revisions_do_not_come_back(store: Store) -> None:
    store.thread("t").put({"n": 0}, id="r0")
    store.thread("t").fork("mistaken", at="r0")
    for n in (1, 2):
        store.thread("t").put({"n": n, "secret": True}, id=f"r{n}", branch="mistaken")
    store.thread("t").put({"n": 1}, id="r1")
    assert store.thread("t").delete_branch("mistaken", force=True, dry_run=True) == ["r1", "r2"]
    assert store.thread("t").delete_branch("mistaken", force=True) == ["r1", "r2"]
    assert "r0" in {each.id for each in store.thread("t").log().all()}
    for id in ("r1", "r2"):
        with pytest.raises(NotFoundError):
            store.thread("t").get(id)
    assert "mistaken" not in {each.name for each in store.thread("t").branches()}


def test_deleted_with_its_own_checkpoints(store: Store) -> None:
    with pytest.raises(ConflictError, match=r"not merged into another branch.*force=True"):
        store.thread("t").delete_branch("draft")
    own = ["x-draft-0", "x-draft-1"]
    assert store.thread("t").delete_branch("draft", force=True, dry_run=True) == own
    assert names(store) == ["main", "draft"]
    assert store.thread("t").delete_branch("draft", force=True) == own
    assert names(store) == ["main"]
    assert [each.id for each in store.thread("t").log().all()] == ["main-2", "main-1", "main-0"]
    assert store.thread("t").info().steps == 3
    check(store)
    store.thread("t").fork("draft")  # the name is free again
    assert store.thread("t").put({"n": 9}, branch="draft").parent == "main-2"


def test_one_without_checkpoints(store: Store) -> None:
    store.thread("t").fork("empty")
    assert store.thread("t").delete_branch("empty", dry_run=True) == []
    assert names(store) == ["main", "draft", "empty"]
    assert store.thread("t").delete_branch("empty") == []
    assert names(store) == ["main", "draft"]
    check(store)


def test_deletion_is_refused(store: Store) -> None:
    store.thread("t").fork("twig", at="x-draft-0")
    with pytest.raises(ConflictError, match="other branches start from 'draft': 'twig'"):
        store.thread("t").delete_branch("draft")
    store.thread("t").delete_branch("twig")
    store.thread("t").label("good", "x-draft-0")
    with pytest.raises(ConflictError, match="have a label: 'good'"):
        store.thread("t").delete_branch("draft")
    store.thread("t").tag("best", "x-draft-1")
    with pytest.raises(ConflictError, match="have a tag: 'best'"):
        store.thread("t").delete_branch("draft")
    with pytest.raises(InvalidError, match="main cannot be deleted"):
        store.thread("t").delete_branch("main", force=True)
    with pytest.raises(NotFoundError, match="no branch 'twig'"):
        store.thread("t").delete_branch("twig", force=True)
    with pytest.raises(NotFoundError, match="no branch ''"):
        store.thread("t").delete_branch("", force=True)
    store.thread("t").delete_branch("draft", force=True)
    assert (store.thread("t").tags(), store.thread("t").labels()) == ({}, {})
    check(store)


def test_pins_and_holds_stand(store: Store) -> None:
    line = store._handle.thread_line("t")
    run(store._engine.holds.pin(line, "x-draft-0", "audit"))
    with pytest.raises(DeniedError, match="pinned"):
        store.thread("t").delete_branch("draft", force=True)
    run(store._engine.holds.unpin(line, "x-draft-0", None))
    run(store._engine.holds.hold(line, "court"))
    with pytest.raises(DeniedError, match="held: court"):
        store.thread("t").delete_branch("draft", force=True)
    run(store._engine.holds.release(line, None))
    assert store.thread("t").delete_branch("draft", force=True) == ["x-draft-0", "x-draft-1"]


def test_branches_that_start_from_it_stay(store: Store) -> None:
    store.thread("t").fork("twig", at="x-draft-0")
    store.thread("t").put({"twig": 0}, branch="twig", id="y-twig-0")
    state = store.thread("t").get("y-twig-0").state
    assert store.thread("t").delete_branch("draft", force=True) == ["x-draft-0", "x-draft-1"]
    assert names(store) == ["main", "twig"]
    assert store.thread("t").get("y-twig-0").state == state
    assert store.thread("t").get(at="twig#0").id == "main-0"
    with pytest.raises(NotFoundError, match="was pruned"):
        store.thread("t").get(at="twig^")
    check(store)
    assert store.thread("t").put({"twig": 1}, branch="twig").step == 4


def test_a_merged_one_goes_without_force_and_the_merge_stays(store: Store) -> None:
    merged = store.thread("t").merge("draft", "main")
    store.thread("t").switch("draft")  # changes nothing, and so nothing is lost
    assert len(store.thread("t").delete_branch("draft")) == 3
    assert names(store) == ["main"]
    found = store.thread("t").get(at="HEAD~1")  # HEAD is back on main
    assert (found.id, found.merged, found.state) == (merged.id, "x-draft-1", {"n": 2, "draft": 1})
    with pytest.raises(NotFoundError, match="was pruned"):
        store.thread("t").find("HEAD~1^2")
    check(store)
    # Its number is not given to another, which would be taken for the merge's parent.
    assert store.thread("t").fork("draft").branch > merged.branch + 1


def test_writers_go_on_while_it_is_deleted() -> None:
    backend = InterferingBackend()
    store, other = over(backend), over(backend)
    store.thread("t").put({"n": 0}, id="a")
    store.thread("t").fork("draft")
    store.thread("t").put({"n": 1}, branch="draft", id="b")

    def write() -> None:
        other.thread("t").put({"n": 2}, branch="draft", id="c")
        other.thread("t").put({"n": 3}, parent="a", id="d")

    with backend.interfere(write):
        assert store.thread("t").delete_branch("draft", force=True)[:1] == ["b"]
    left = {each.id for each in store.thread("t").log().all()}
    assert "b" not in left


def test_a_writer_makes_the_first_step_meanwhile() -> None:
    backend = InterferingBackend()
    store, other = over(backend), over(backend)
    store.thread("t").put({"n": 0}, id="a")
    store.thread("t").fork("draft")
    theirs = backend.interfere(lambda: other.thread("t").put({"n": 2}, branch="draft", id="b"))
    with pytest.raises(ConflictError, match="not merged"), theirs:
        store.thread("t").delete_branch("draft")


# Switching --------------------------------------------------------------------------------------------------------


def test_switched(store: Store) -> None:
    assert store.thread("t").switch("main").id == "main-2"  # it is already
    assert len(store.thread("t").log()) == 5
    there = store.thread("t").switch("draft")
    assert (there.kind, there.parent, there.metadata) == ("switch", "x-draft-1", {"switched": "draft"})
    assert store.thread("t").get().id == there.id
    assert store.thread("t").get().state == {"n": 1, "draft": 1}
    assert [branch.current for branch in store.thread("t").branches()] == [False, True]
    assert store.thread("t").put({"n": 7}).branch == 1
    with pytest.raises(NotFoundError, match="no branch 'nope'"):
        store.thread("t").switch("nope")
    with pytest.raises(NotFoundError):
        store.thread("nobody").switch("main")


def test_switched_to_one_without_checkpoints(store: Store) -> None:
    store.thread("t").fork("early", at="main-0")
    there = store.thread("t").switch("early")
    assert (there.branch, there.parent) == (2, "main-0")
    assert store.thread("t").get().state == {"n": 0}
    check(store)


def test_switched_to_one_that_starts_at_the_latest(store: Store) -> None:
    latest = store.thread("t").get().id
    store.thread("t").fork("fresh")
    there = store.thread("t").switch("fresh")
    assert (there.kind, there.parent) == ("switch", latest)
    assert store.thread("t").put({"n": 1}).branch == there.branch  # and not on the branch that it starts from
    assert [each.name for each in store.thread("t").branches() if each.current] == ["fresh"]


def test_switched_past_ids_of_the_callers_own(store: Store) -> None:
    store.thread("t").put({"n": 3}, branch="draft", id="zzz")
    store.thread("t").fork("other", at="main-0")
    there = store.thread("t").switch("other")
    assert there.id > "zzz"
    assert store.thread("t").get().state == {"n": 0}


def test_switched_while_others_write() -> None:
    backend = InterferingBackend()
    store, other = over(backend), over(backend)
    store.thread("t").put({"n": 0})
    store.thread("t").fork("draft")
    store.thread("t").put({"n": 1})
    with backend.interfere(lambda: other.thread("t").put({"n": 2}, branch="draft")):
        store.thread("t").switch("draft")
    assert store.thread("t").get().state == {"n": 2}


# Forks with an edit -----------------------------------------------------------------------------------------------


def test_forked_with_an_edit(store: Store) -> None:
    made = store.thread("t").fork("what-if", at="main~1", changes={"n": 50, ("deep", "er"): 1})
    assert (made.name, made.base, made.ahead) == ("what-if", "main-1", 1)
    found = store.thread("t").get(at="what-if")
    assert (found.id, found.kind, found.state) == (made.head, "fork", {"n": 50, "deep": {"er": 1}})
    assert found.metadata == {"forked": "main-1"}
    assert store.thread("t").fork("less", at="x-draft-0", remove=["draft"]).head == store.thread("t").get(at="less").id
    assert store.thread("t").get(at="less").state == {"n": 1}
    assert names(store) == ["main", "draft", "what-if", "less"]
    check(store)
    with pytest.raises(ConflictError, match="already has a branch 'less'"):
        store.thread("t").fork("less", changes={"n": 1})
    with pytest.raises(NotFoundError, match="nothing to remove"):
        store.thread("t").fork("none", remove=["nope"])
    assert "none" not in names(store)  # both or neither


def test_two_fork_at_a_time() -> None:
    backend = InterferingBackend()
    store, other = over(backend), over(backend)
    store.thread("t").put({"n": 0})
    with backend.interfere(lambda: other.thread("t").fork("a", changes={"n": 1})):
        store.thread("t").fork("b", changes={"n": 2})
    assert [store.thread("t").get(at=name).state for name in ("a", "b")] == [{"n": 1}, {"n": 2}]
    theirs = backend.interfere(lambda: other.thread("t").fork("c"))
    with pytest.raises(ConflictError, match="already has a branch 'c'"), theirs:
        store.thread("t").fork("c", changes={"n": 3})
