"""Names, tags and branches."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from holdfast import Store
from holdfast.backends.memory import MemoryBackend
from holdfast.backends.wrappers.counting import CountingBackend
from holdfast.errors import ConflictError, InvalidError, NotFoundError
from tests.store.stores import over


def test_a_name_finds_its_checkpoint(store: Store) -> None:
    first = store.put("t", {"n": 1}, name="before the call")
    second = store.put("t", {"n": 2})
    store.name("t", "after")
    store.name("t", "also first", first.id)
    assert store.get("t", name="before the call").id == first.id
    assert store.names("t") == {"after": second.id, "also first": first.id, "before the call": first.id}


def test_a_name_belongs_to_one_checkpoint(store: Store) -> None:
    first = store.put("t", {"n": 1}, name="good")
    second = store.put("t", {"n": 2})
    store.name("t", "good", first.id)  # it has it already
    with pytest.raises(
        ConflictError, match=f"another checkpoint has the name 'good' .at checkpoint {first.id} .*move=True"
    ):
        store.name("t", "good", second.id)
    store.name("t", "good", second.id, move=True)
    assert store.names("t") == {"good": second.id}


def test_a_checkpoint_whose_name_is_taken_is_not_saved(store: Store) -> None:
    store.put("t", {"n": 1}, name="good")
    with pytest.raises(ConflictError, match="has the name .at thread 't'.. Use another name"):
        store.put("t", {"n": 2}, name="good")
    assert store.get("t").state == {"n": 1}
    assert len(store.log("t")) == 1
    store.put("u", {"n": 1}, name="good")  # another thread's names are its own


def test_names_stay_with_an_id_that_is_revised(store: Store) -> None:
    store.put("t", {"n": 1}, id="1", name="good", tags=["x"])
    store.put("t", {"n": 2}, id="1")
    assert store.get("t", name="good").state == {"n": 2}
    assert [each.id for each in store.log("t", tag="x")] == ["1"]


def test_tags_find_any_number(store: Store) -> None:
    ids = [store.put("t", {"n": n}, tags=["all", "odd" if n % 2 else "even"]).id for n in range(6)]
    assert [each.id for each in store.log("t", tag="odd")] == [ids[5], ids[3], ids[1]]
    assert [each.id for each in store.log("t", tag="all", limit=2)] == [ids[5], ids[4]]
    assert [each.id for each in store.log("t", tag="all", before=ids[1])] == [ids[0]]
    assert store.log("t", tag="none") == []
    assert {tag: sorted(found) for tag, found in store.tags("t").items()} == {
        "all": ids,
        "even": ids[0::2],
        "odd": ids[1::2],
    }


def test_tag_and_untag(store: Store) -> None:
    first, second = store.put("t", {"n": 1}), store.put("t", {"n": 2})
    store.tag("t", "x")
    store.tag("t", "x")
    store.tag("t", "x", first.id)
    store.tag("t", "y", first.id)
    assert sorted(store.tags("t")["x"]) == [first.id, second.id]
    store.untag("t", "x", second.id)
    assert store.tags("t") == {"x": [first.id], "y": [first.id]}
    store.tag("t", "x", second.id)
    store.untag("t", "x")
    assert store.tags("t") == {"y": [first.id]}
    store.untag("t", "never given")
    store.untag("never written", "x")
    assert store.threads()[0].steps == 2


def test_what_is_not_there_gets_no_name(store: Store) -> None:
    store.put("t", {})
    for refer in (store.name, store.tag):
        with pytest.raises(NotFoundError, match=r"no checkpoint with id 'nope' \(at thread 't'\).*log\(\)"):
            refer("t", "x", "nope")
        with pytest.raises(NotFoundError, match=r"'nobody'.*threads\(\)"):
            refer("nobody", "x")
    with pytest.raises(NotFoundError, match=r"no checkpoint has the name 'x' .*names\(\)"):
        store.get("t", name="x")


# Branches ---------------------------------------------------------------------------------------------------------


def test_a_branch_goes_on_by_itself(store: Store) -> None:
    made = [store.put("t", {"n": n}) for n in range(3)]
    fork = store.fork("t", made[1].id, branch="try")
    assert (fork.name, fork.base, fork.branch) == ("try", made[1].id, 1)
    assert store.get("t", branch="try").id == made[1].id
    first = store.put("t", {"n": "try 0"}, branch="try")
    second = store.put("t", {"n": "try 1"}, branch="try")
    on_main = store.put("t", {"n": 3}, branch="main")
    assert (first.parent, first.branch, first.step) == (made[1].id, 1, 2)
    assert (second.parent, second.branch, second.step) == (first.id, 1, 3)
    assert (on_main.parent, on_main.branch, on_main.step) == (made[2].id, 0, 3)
    assert store.get("t", branch="try").state == {"n": "try 1"}
    assert store.get("t", branch="main").state == {"n": 3}
    assert [(each.branch, each.name, each.base) for each in store.branches("t")] == [
        (0, "main", None),
        (1, "try", made[1].id),
    ]


def test_branches_of_branches(store: Store) -> None:
    base = store.put("t", {"n": 0})
    for depth in range(40):
        store.fork("t", base.id, branch=f"b{depth}")
        base = store.put("t", {"n": depth + 1}, branch=f"b{depth}")
    store.engine.ground.cache.clear()
    assert store.get("t", base.id).state == {"n": 40}
    assert store.get("t", branch="b20").state == {"n": 21}
    assert len(store.branches("t")) == 41


def test_fork_by_step_and_at_the_latest(store: Store) -> None:
    made = [store.put("t", {"n": n}) for n in range(3)]
    assert store.fork("t", branch="a").base == made[2].id
    assert store.fork("t", step=0, branch="b").base == made[0].id


def test_a_fork_copies_nothing() -> None:
    backend = CountingBackend(MemoryBackend())
    store = over(backend)
    for n in range(40):
        store.put("t", {"messages": [f"message {m}" for m in range(n * 10)]})
    backend.reset()
    store.fork("t", step=35, branch="b")
    assert set(+backend.rows_written) <= {"branches", "lines"}
    assert sum(backend.bytes_written.values()) < 100
    backend.reset()
    store.put("t", {"messages": ["x"]}, branch="b")
    assert +backend.rows_written == {"steps": 1}


def test_names_of_branches(store: Store) -> None:
    store.put("t", {})
    store.fork("t", branch="b")
    for taken in ("b", "main"):
        with pytest.raises(ConflictError, match=f"has a branch '{taken}' already .at thread 't'.. Use another name"):
            store.fork("t", branch=taken)
    with pytest.raises(InvalidError, match="name of a branch is not empty .at thread 't'."):
        store.fork("t", branch="")
    looks: list[Callable[[], object]] = [
        lambda: store.get("t", branch="zz"),
        lambda: store.put("t", {}, branch="zz"),
    ]
    for look in looks:
        with pytest.raises(NotFoundError, match=r"no branch 'zz' \(at thread 't'\). See branches\(\)"):
            look()
    with pytest.raises(NotFoundError, match=r"'nobody'.*threads\(\)"):
        store.branches("nobody")
    with pytest.raises(NotFoundError, match="'nobody'"):
        store.fork("nobody", branch="b")
    with pytest.raises(NotFoundError, match="'nope'"):
        store.fork("t", "nope", branch="c")


@pytest.mark.parametrize("branch", ["main", "b"])
def test_a_branch_ends_in_the_last_revision(store: Store, branch: str) -> None:
    store.put("t", {"n": 0}, id="0")
    store.fork("t", branch="b")
    store.put("t", {"n": 1}, id="1", branch=branch)
    store.put("t", {"n": "revised"}, id="1")
    assert store.get("t", branch=branch).state == {"n": "revised"}
    assert store.update("t", {"more": 1}, branch=branch).parent == "1"
    assert store.get("t").state == {"n": "revised", "more": 1}
