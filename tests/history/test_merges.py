"""Merging branches: results, conflicts, and repeated merges."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.backends.runtime.drivers import run
from holdfast.engine.model.missing import MISSING
from holdfast.engine.rewrite.rewriter import RewritePlan
from holdfast.errors import ConflictError, InvalidError, NotFoundError
from holdfast.history.merge import UNRESOLVED, MergeConflict
from holdfast.store.store import Store
from tests.store.stores import over
from tests.support.interference import InterferingBackend

BASE = {"plan": ["think", "write"], "facts": {"a": 1, "b": 2}, "n": 0}


@pytest.fixture(params=["memory", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    url = "memory://" if request.param == "memory" else f"sqlite:///{tmp_path}/store.db"
    with holdfast.open(url, project=True) as opened:
        opened.thread("t").put(BASE)
        opened.thread("t").fork("draft")
        yield opened


def both(store: Store, ours: dict[Any, Any], theirs: dict[Any, Any]) -> None:
    """Change main, and the draft."""
    store.thread("t").update(ours, branch="main")
    store.thread("t").update(theirs, branch="draft")


def test_a_merge_has_two_parents_and_both_changes(store: Store) -> None:
    both(store, {"n": 1}, {("facts", "c"): 3})
    ours, theirs = store.thread("t").get(at="main"), store.thread("t").get(at="draft")
    merged = store.thread("t").merge("draft", "main", metadata={"by": "ada"})
    assert (merged.kind, merged.parent, merged.merged) == ("merge", ours.id, theirs.id)
    assert merged.metadata == {
        "by": "ada",
        "merged": theirs.id,
        "revision": "draft",
        "base": store.thread("t").get(at=0).id,
    }
    assert store.thread("t").get().state == {**BASE, "n": 1, "facts": {"a": 1, "b": 2, "c": 3}}
    assert store.thread("t").find("HEAD^").id == ours.id
    assert store.thread("t").find("HEAD^2").id == theirs.id
    assert merged.time >= theirs.time
    assert store.thread("t").log()[0].merged == theirs.id
    assert store.thread("t").get().merged == theirs.id
    assert ours.merged is None


def test_merged_changes_are_not_merged_again(store: Store) -> None:
    both(store, {"n": 1}, {("facts", "c"): 3})
    merged = store.thread("t").merge("draft", "main")
    assert store.thread("t").merge("draft", "main").id == merged.id  # nothing to do
    assert store.thread("t").merge("main~1", "main").id == merged.id
    both(store, {("facts", "c"): 4}, {"plan": ["act"]})  # main changes what it has from the draft
    assert store.thread("t").get(store.thread("t").merge("draft", "main").id).state == {
        "plan": ["act"], "facts": {"a": 1, "b": 2, "c": 4}, "n": 1,
    }  # fmt: skip
    store.thread("t").merge("main", "draft")
    assert store.thread("t").get(at="draft").state == store.thread("t").get(at="main").state
    both(store, {"n": 5}, {"plan": []})
    assert store.thread("t").get(store.thread("t").merge("main", "draft").id).state["n"] == 5


def test_a_target_that_has_nothing_of_its_own_gets_a_merge_as_well(store: Store) -> None:
    store.thread("t").update({"n": 5}, branch="draft")
    merged = store.thread("t").merge("draft", "main")
    assert (merged.kind, merged.branch, store.thread("t").get().state["n"]) == ("merge", 0, 5)
    empty = store.thread("t").fork("empty", at="main~1")
    assert store.thread("t").merge("draft", "empty").branch == empty.branch


def test_conflicts_are_raised_and_nothing_is_saved(store: Store) -> None:
    both(store, {"n": 1, "plan": ["think", "ours"]}, {"n": 2, "plan": ["think", "theirs"], ("facts", "a"): 9})
    store.thread("t").update({}, remove=[("facts", "a")], branch="main")
    before = list(store.thread("t").log().all())
    with pytest.raises(ConflictError, match=r"differently: n, plan\[1:2\], facts\.a|facts\.a") as refused:
        store.thread("t").merge("draft", "main")
    clashes = {clash.where: (clash.base, clash.ours, clash.theirs) for clash in refused.value.conflicts}
    assert clashes == {
        "n": (0, 1, 2),
        "plan[1:2]": (["write"], ["ours"], ["theirs"]),
        "facts.a": (1, MISSING, 9),
    }
    assert not MISSING
    assert repr(MISSING) == "MISSING"
    assert store.thread("t").log() == before


@pytest.mark.parametrize(
    ("strategy", "n", "plan"),
    [("ours", 1, ["think", "ours"]), ("theirs", 2, ["think", "theirs"])],
)
def test_strategies(store: Store, strategy: str, n: int, plan: list[str]) -> None:
    both(store, {"n": 1, "plan": ["think", "ours"]}, {"n": 2, "plan": ["think", "theirs"]})
    store.thread("t").merge("draft", "main", strategy=strategy)
    assert store.thread("t").get().state == {**BASE, "n": n, "plan": plan}
    with pytest.raises(InvalidError, match="the strategy must be 'ours', 'theirs' or 'union', not 'mine'"):
        store.thread("t").merge("draft", "main", strategy="mine")


def test_the_union_of_lists(store: Store) -> None:
    both(store, {"plan": [*BASE["plan"], "ours"]}, {"plan": [*BASE["plan"], "theirs", "ours"]})  # type: ignore[misc]
    store.thread("t").merge("draft", "main", strategy="union")
    assert store.thread("t").get().state["plan"] == ["think", "write", "ours", "theirs"]
    both(store, {"n": 1}, {"n": 2})
    with pytest.raises(ConflictError):
        store.thread("t").merge("draft", "main", strategy="union")


def test_a_function_settles(store: Store) -> None:
    both(store, {"n": 1, ("facts", "a"): 5, "plan": ["a"]}, {"n": 2, ("facts", "a"): 6, "plan": ["b"]})
    seen: list[MergeConflict] = []

    def settle(clash: MergeConflict) -> Any:
        seen.append(clash)
        if clash.path == ("n",):
            return clash.ours + clash.theirs
        if clash.where == "facts.a":
            return MISSING
        return UNRESOLVED

    with pytest.raises(ConflictError) as refused:
        store.thread("t").merge("draft", "main", resolve=settle)
    assert [clash.where for clash in refused.value.conflicts] == ["plan[0:1]"]
    assert {clash.where for clash in seen} == {"n", "facts.a", "plan[0:1]"}
    store.thread("t").merge("draft", "main", resolve=settle, strategy="theirs")
    assert store.thread("t").get().state == {"n": 3, "facts": {"b": 2}, "plan": ["b"]}


def test_ways_to_settle_by_path(store: Store) -> None:
    both(store, {"n": 1, ("facts", "a"): 5, ("facts", "b"): 5}, {"n": 2, ("facts", "a"): 6, ("facts", "b"): 6})
    store.thread("t").merge("draft", "main", resolve={"n": max_of, "facts": "theirs", "facts.b": "ours"})
    assert store.thread("t").get().state == {**BASE, "n": 2, "facts": {"a": 6, "b": 5}}
    with pytest.raises(InvalidError, match="not by 'mine'"):
        store.thread("t").merge("draft", "main", resolve={"n": "mine"})


def max_of(clash: MergeConflict) -> Any:
    return max(clash.ours, clash.theirs)


def test_a_stretch_is_settled_with_items(store: Store) -> None:
    both(store, {"plan": ["a"]}, {"plan": ["b"]})
    with pytest.raises(InvalidError, match=r"a list of items, not by str \(at plan\[0:1\]\)"):
        store.thread("t").merge("draft", "main", resolve=lambda _: "c")
    store.thread("t").merge("draft", "main", resolve=lambda clash: [*clash.theirs, *clash.ours, "c"])
    assert store.thread("t").get().state["plan"] == ["b", "a", "c"]


def test_values_of_any_kind_settle(store: Store) -> None:
    both(store, {"n": 1}, {"n": 2})
    value = {"deep": [{"er": (1, 2)}] * 20, "text": "x" * 100_000}
    store.thread("t").merge("draft", "main", resolve=lambda _: value)
    assert store.thread("t").get().state["n"] == value


def test_large_values(store: Store) -> None:
    text = "line\n" * 50_000
    both(store, {"text": text}, {"other": text.upper()})
    store.thread("t").merge("draft", "main")
    both(store, {"text": "first\n" + text}, {"n": 1})
    store.thread("t").merge("draft", "main")
    assert store.thread("t").get().state == {**BASE, "n": 1, "text": "first\n" + text, "other": text.upper()}


def test_what_is_not_there(store: Store) -> None:
    with pytest.raises(NotFoundError, match="'nope'"):
        store.thread("t").merge("nope")
    with pytest.raises(NotFoundError, match="'nope'"):
        store.thread("t").merge("draft", "nope")
    with pytest.raises(NotFoundError):
        store.thread("nobody").merge("draft")


# The target moves -------------------------------------------------------------------------------------------------


def interrupted() -> tuple[InterferingBackend, Store, Store]:
    backend = InterferingBackend()
    store, other = over(backend), over(backend)
    store.thread("t").put(BASE)
    store.thread("t").fork("draft")
    both(store, {"n": 1}, {("facts", "c"): 3})
    return backend, store, other


@pytest.mark.parametrize("into", ["main", "HEAD", "@"])
def test_whoever_adds_meanwhile_is_merged_with(into: str) -> None:
    backend, store, other = interrupted()
    store.thread("t").switch("main")
    with backend.interfere(lambda: other.thread("t").update({"plan": ["other"]})):
        store.thread("t").merge("draft", into)
    assert store.thread("t").get().state == {"n": 1, "plan": ["other"], "facts": {"a": 1, "b": 2, "c": 3}}


def test_a_head_that_was_named_must_be_one() -> None:
    backend, store, other = interrupted()
    head = store.thread("t").find("main").id
    theirs = backend.interfere(lambda: other.thread("t").update({"plan": ["other"]}, branch="main"))
    with pytest.raises(ConflictError, match=f"another checkpoint follows {head} already"), theirs:
        store.thread("t").merge("draft", head)
    assert "c" not in store.thread("t").get(at="main").state["facts"]
    assert store.thread("t").merge("draft", store.thread("t").find("main").id).branch == 0


def test_a_conflict_with_a_step_added_meanwhile() -> None:
    backend, store, other = interrupted()
    theirs = backend.interfere(lambda: other.thread("t").update({("facts", "c"): 4}, branch="main"))
    with pytest.raises(ConflictError, match=r"facts\.c"), theirs:
        store.thread("t").merge("draft", "main")


@pytest.mark.usefixtures("impatient")
def test_a_target_that_never_rests() -> None:
    backend, store, other = interrupted()
    numbers = count()
    theirs = backend.interfere(lambda: other.thread("t").update({"n": next(numbers)}, branch="main"), times=None)
    with pytest.raises(ConflictError, match="gave up merging"), theirs:
        store.thread("t").merge("draft", "main")


def test_asynchronously() -> None:
    async def main() -> None:
        async with await holdfast.aopen("memory://") as store:
            await store.thread("t").put(BASE)
            await store.thread("t").fork("draft", changes={"n": 1})
            await store.thread("t").merge("draft", "main")
            assert (await store.thread("t").get(at="main")).state["n"] == 1

    asyncio.run(main())


# Odd histories ----------------------------------------------------------------------------------------------------


def test_criss_cross(store: Store) -> None:
    both(store, {"n": 1}, {("facts", "c"): 3})
    main, draft = store.thread("t").find("main").id, store.thread("t").find("draft").id
    store.thread("t").merge(draft, "main")
    store.thread("t").merge(main, "draft")
    both(store, {"plan": ["a"]}, {("facts", "d"): 4})
    merged = store.thread("t").merge("draft", "main")
    assert merged.metadata["base"] == draft  # the later of two
    assert merged.metadata["other_bases"] == [main]
    assert store.thread("t").get().state == {"n": 1, "plan": ["a"], "facts": {"a": 1, "b": 2, "c": 3, "d": 4}}


def drop(store: Store, *ids: str) -> None:
    """Prune some checkpoints."""

    async def choose(points: Any, branches: Any) -> RewritePlan:
        del branches
        return RewritePlan(frozenset(point[:2] for point in points if point.id in ids))

    run(store._engine.rewriter.rewrite(store._handle.thread_line("t"), choose))


def test_an_ancestor_that_was_pruned(store: Store) -> None:
    """What one side removed since is not taken for something that the other one added."""
    store.thread("t").put({**BASE, "n": 8, "gone": 1, "plan": ["a", "b"]}, branch="main", id="y")
    store.thread("t").fork("late", at="y")
    store.thread("t").update({("facts", "c"): 3}, branch="late")
    store.thread("t").update({"plan": ["a"], "n": 9}, branch="main", remove=["gone"])
    drop(store, "y")
    with pytest.raises(ConflictError, match="ancestor was pruned") as refused:
        store.thread("t").merge("late", "main")
    assert [clash.where for clash in refused.value.conflicts] == ["plan[1:1]", "facts.c", "n", "gone"]
    merged = store.thread("t").merge("late", "main", strategy="ours")
    assert (merged.metadata["base"], store.thread("t").get().state) == (None, {**BASE, "n": 9, "plan": ["a"]})


def test_an_ancestor_that_was_pruned_and_a_union(store: Store) -> None:
    store.thread("t").put({"plan": ["a"]}, branch="main", id="y")
    store.thread("t").fork("late", at="y")
    store.thread("t").update({"plan": ["a", "b"], "x": 1}, branch="late")
    store.thread("t").update({"plan": ["a", "c"], "z": 1}, branch="main")
    drop(store, "y")
    store.thread("t").merge("late", "main", strategy="union")
    assert store.thread("t").get().state == {"plan": ["a", "c", "b"], "x": 1, "z": 1}


def test_a_merge_that_was_pruned_is_not_forgotten(store: Store) -> None:
    both(store, {"n": 1}, {("facts", "c"): 3})
    merged = store.thread("t").merge("draft", "main")
    after = store.thread("t").update({"n": 2}, branch="main", remove=[("facts", "c")])
    drop(store, merged.id)
    store.maintenance.prune(threads="t", keep_last=20)  # once more: the stub stays what it is
    assert store.thread("t").merge("draft", "main").id == after.id
    store.thread("t").update({"own": 1}, branch="draft")
    store.thread("t").merge("draft", "main")
    assert store.thread("t").get().state == {**BASE, "n": 2, "own": 1}  # what was removed since is not brought up again
    assert not store.maintenance.verify("t").findings


def test_a_branch_whose_merge_was_pruned_is_merged(store: Store) -> None:
    both(store, {"n": 1}, {("facts", "c"): 3})
    merged = store.thread("t").merge("draft", "main")
    store.thread("t").update({"n": 2}, branch="main")
    drop(store, merged.id)
    assert len(store.thread("t").delete_branch("draft")) == 1
    assert not store.maintenance.verify("t").findings


def test_resolutions_are_validated(store: Store) -> None:
    both(store, {"n": 1}, {"n": 2})
    with pytest.raises(InvalidError, match="resolve must be a function or a dict by path"):
        store.thread("t").merge("draft", "main", resolve="ours")  # type: ignore[arg-type]


def test_histories_with_nothing_in_common(store: Store) -> None:
    from holdfast.engine.append import AppendRequest
    from holdfast.engine.lines import ROOT
    from holdfast.engine.model.packed_state import pack_state

    packed = pack_state(store._engine.context.codec, {"own": 1, "n": 0})
    run(
        store._engine.appender.append(
            AppendRequest(store._handle.thread_line("t"), packed, parent=ROOT, id="root", new_branch="root")
        )
    )
    merged = store.thread("t").merge("root", "main")
    assert merged.metadata["base"] is None
    assert store.thread("t").get().state == {**BASE, "own": 1}


def test_a_merge_that_is_saved_again_keeps_its_parents(store: Store) -> None:
    both(store, {"n": 1}, {("facts", "c"): 3})
    merged = store.thread("t").merge("draft", "main")
    theirs = store.thread("t").find("draft").id
    after = store.thread("t").put({"n": 9})
    store.thread("t").put({"n": 5}, id=merged.id, parent=merged.parent)
    assert store.thread("t").get(merged.id).state == {"n": 5}
    assert store.thread("t").find(f"{merged.id}^2").id == theirs
    assert store.thread("t").get(after.id).state == {"n": 9}  # set upon the new one
    assert store.thread("t").merge("draft", "main").id == after.id  # and still merged


def test_a_merge_that_is_set_upon_a_new_revision_keeps_its_parents(store: Store) -> None:
    both(store, {"n": 1}, {("facts", "c"): 3})
    merged = store.thread("t").merge("draft", "main")
    store.thread("t").put({"n": 7}, id=merged.parent, parent=store.thread("t").find("main#0").id)
    assert store.thread("t").get(merged.id).state["n"] == 1  # the state it had
    assert store.thread("t").find(f"{merged.id}^2").id == store.thread("t").find("draft").id


def test_merges_are_compacted_and_copied(store: Store, tmp_path: Path) -> None:
    both(store, {"n": 1}, {("facts", "c"): 3})
    merged, state = store.thread("t").merge("draft", "main"), store.thread("t").get().state
    store.maintenance.compact("t")
    with holdfast.open(f"sqlite:///{tmp_path}/copy.db") as other:
        store.maintenance.copy_to(other)
        for each in (store, other):
            assert each.thread("t").get(merged.id).state == state
            assert each.thread("t").get(merged.id).hash == merged.hash
            assert each.thread("t").find("HEAD^2").id == merged.merged
            assert each.thread("t").merge("draft", "main").id == merged.id


def test_a_dry_run_returns_the_state_of_the_merge_and_saves_nothing(store: Store) -> None:
    both(store, {"n": 1, "facts.c": 3}, {"plan[0]": "read", "n": 2})
    thread = store.thread("t")
    head, steps = thread.find("main").id, thread.info().steps
    with pytest.raises(ConflictError) as refused:
        thread.merge("draft", "main", dry_run=True)
    assert [each.where for each in refused.value.conflicts] == ["n"]
    preview = thread.merge("draft", "main", strategy="theirs", dry_run=True)
    assert (preview.id, thread.info().steps) == (head, steps)
    merged = thread.merge("draft", "main", strategy="theirs")
    assert preview.state == thread.get(merged.id).state
    assert thread.merge("draft", "main", dry_run=True).state == thread.get("main").state
    assert thread.info().steps == steps + 1
