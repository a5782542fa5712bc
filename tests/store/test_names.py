"""Names, tags and branches."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from holdfast import Store
from holdfast.backends.memory import MemoryBackend
from holdfast.errors import ConflictError, InvalidError, NotFoundError
from tests.store.stores import over
from tests.support.counting import CountingBackend


def test_a_name_finds_its_checkpoint(store: Store) -> None:
    first = store.thread("t").put({"n": 1}, tag="before the call")
    second = store.thread("t").put({"n": 2})
    store.thread("t").tag("after")
    store.thread("t").tag("also first", first.id)
    assert store.thread("t").get(at="before the call").id == first.id
    assert store.thread("t").tags() == {"after": second.id, "also first": first.id, "before the call": first.id}


def test_a_name_belongs_to_one_checkpoint(store: Store) -> None:
    first = store.thread("t").put({"n": 1}, tag="good")
    second = store.thread("t").put({"n": 2})
    store.thread("t").tag("good", first.id)  # it has it already
    with pytest.raises(
        ConflictError, match=f"another checkpoint has the tag 'good' .at checkpoint {first.id} .*move=True"
    ):
        store.thread("t").tag("good", second.id)
    store.thread("t").tag("good", second.id, move=True)
    assert store.thread("t").tags() == {"good": second.id}


def test_a_checkpoint_whose_name_is_taken_is_not_saved(store: Store) -> None:
    store.thread("t").put({"n": 1}, tag="good")
    with pytest.raises(ConflictError, match="has the tag 'good' .at thread 't'.. Use another tag"):
        store.thread("t").put({"n": 2}, tag="good")
    assert store.thread("t").get().state == {"n": 1}
    assert len(store.thread("t").log()) == 1
    store.thread("u").put({"n": 1}, tag="good")  # another thread's names are its own


def test_names_stay_with_an_id_that_is_revised(store: Store) -> None:
    store.thread("t").put({"n": 1}, id="1", tag="good", labels=["x"])
    store.thread("t").put({"n": 2}, id="1")
    assert store.thread("t").get(at="good").state == {"n": 2}
    assert [each.id for each in store.thread("t").log(label="x").all()] == ["1"]


def test_tags_find_any_number(store: Store) -> None:
    ids = [store.thread("t").put({"n": n}, labels=["all", "odd" if n % 2 else "even"]).id for n in range(6)]
    assert [each.id for each in store.thread("t").log(label="odd").all()] == [ids[5], ids[3], ids[1]]
    assert [each.id for each in store.thread("t").log(label="all", limit=2)] == [ids[5], ids[4]]
    assert [each.id for each in store.thread("t").log(label="all", cursor=ids[1]).all()] == [ids[0]]
    assert store.thread("t").log(label="none") == []
    assert {tag: sorted(found) for tag, found in store.thread("t").labels().items()} == {
        "all": ids,
        "even": ids[0::2],
        "odd": ids[1::2],
    }


def test_tag_and_untag(store: Store) -> None:
    first, second = store.thread("t").put({"n": 1}), store.thread("t").put({"n": 2})
    store.thread("t").label("x")
    store.thread("t").label("x")
    store.thread("t").label("x", first.id)
    store.thread("t").label("y", first.id)
    assert sorted(store.thread("t").labels()["x"]) == [first.id, second.id]
    store.thread("t").unlabel("x", second.id)
    assert store.thread("t").labels() == {"x": [first.id], "y": [first.id]}
    store.thread("t").label("x", second.id)
    store.thread("t").unlabel("x")
    assert store.thread("t").labels() == {"y": [first.id]}
    store.thread("t").unlabel("never given")
    store.thread("never written").unlabel("x")
    assert store.threads()[0].steps == 2


def test_what_is_not_there_gets_no_name(store: Store) -> None:
    store.thread("t").put({})
    there, nobody = store.thread("t"), store.thread("nobody")
    for refer, missing in ((there.tag, nobody.tag), (there.label, nobody.label)):
        with pytest.raises(NotFoundError, match=r"no checkpoint has the id or the tag 'nope'.*thread 't'.*log\(\)"):
            refer("x", "nope")
        with pytest.raises(NotFoundError, match=r"'nobody'.*threads\(\)"):
            missing("x")
    with pytest.raises(NotFoundError, match=r"no checkpoint has the id or the tag 'x'"):
        store.thread("t").get(at="x")


# Branches ---------------------------------------------------------------------------------------------------------


def test_a_branch_goes_on_by_itself(store: Store) -> None:
    made = [store.thread("t").put({"n": n}) for n in range(3)]
    fork = store.thread("t").fork("try", at=made[1].id)
    assert (fork.name, fork.base, fork.branch) == ("try", made[1].id, 1)
    assert store.thread("t").get(at="try").id == made[1].id
    first = store.thread("t").put({"n": "try 0"}, branch="try")
    second = store.thread("t").put({"n": "try 1"}, branch="try")
    on_main = store.thread("t").put({"n": 3}, branch="main")
    assert (first.parent, first.branch, first.step) == (made[1].id, 1, 2)
    assert (second.parent, second.branch, second.step) == (first.id, 1, 3)
    assert (on_main.parent, on_main.branch, on_main.step) == (made[2].id, 0, 3)
    assert store.thread("t").get(at="try").state == {"n": "try 1"}
    assert store.thread("t").get(at="main").state == {"n": 3}
    assert [(each.branch, each.name, each.base) for each in store.thread("t").branches()] == [
        (0, "main", None),
        (1, "try", made[1].id),
    ]


def test_branches_of_branches(store: Store) -> None:
    base = store.thread("t").put({"n": 0})
    for depth in range(40):
        store.thread("t").fork(f"b{depth}", at=base.id)
        base = store.thread("t").put({"n": depth + 1}, branch=f"b{depth}")
    store._engine.context.cache.clear()
    assert store.thread("t").get(base.id).state == {"n": 40}
    assert store.thread("t").get(at="b20").state == {"n": 21}
    assert len(store.thread("t").branches()) == 41


def test_fork_by_step_and_at_the_latest(store: Store) -> None:
    made = [store.thread("t").put({"n": n}) for n in range(3)]
    assert store.thread("t").fork("a").base == made[2].id
    assert store.thread("t").fork("b", at=0).base == made[0].id


def test_a_fork_copies_nothing() -> None:
    backend = CountingBackend(MemoryBackend())
    store = over(backend)
    for n in range(40):
        store.thread("t").put({"messages": [f"message {m}" for m in range(n * 10)]})
    backend.reset()
    store.thread("t").fork("b", at=35)
    assert set(+backend.rows_written) <= {"branches", "lines"}
    assert sum(backend.bytes_written.values()) < 100
    backend.reset()
    store.thread("t").put({"messages": ["x"]}, branch="b")
    assert +backend.rows_written == {"steps": 1}


def test_names_of_branches(store: Store) -> None:
    store.thread("t").put({})
    store.thread("t").fork("b")
    for taken in ("b", "main"):
        with pytest.raises(ConflictError, match=f"already has a branch '{taken}' .at thread 't'.. Use another name"):
            store.thread("t").fork(taken)
    with pytest.raises(InvalidError, match="name of a branch cannot be empty .at thread 't'."):
        store.thread("t").fork("")
    looks: list[Callable[[], object]] = [
        lambda: store.thread("t").get(at="zz"),
        lambda: store.thread("t").put({}, branch="zz"),
    ]
    for look in looks:
        with pytest.raises(NotFoundError, match=r"no branch ('zz'|has that name).*thread 't'"):
            look()
    with pytest.raises(NotFoundError, match=r"'nobody'.*threads\(\)"):
        store.thread("nobody").branches()
    with pytest.raises(NotFoundError, match="'nobody'"):
        store.thread("nobody").fork("b")
    with pytest.raises(NotFoundError, match="'nope'"):
        store.thread("t").fork("c", at="nope")


@pytest.mark.parametrize("branch", ["main", "b"])
def test_a_branch_ends_in_the_last_revision(store: Store, branch: str) -> None:
    store.thread("t").put({"n": 0}, id="0")
    store.thread("t").fork("b")
    store.thread("t").put({"n": 1}, id="1", branch=branch)
    store.thread("t").put({"n": "revised"}, id="1")
    assert store.thread("t").get(at=branch).state == {"n": "revised"}
    assert store.thread("t").update({"more": 1}, branch=branch).parent == "1"
    assert store.thread("t").get(at=branch).state == {"n": "revised", "more": 1}
