"""What protects a thread in one store is not taken away by a copy from another."""

from __future__ import annotations

import pytest

import holdfast
from holdfast.backends.memory import MemoryBackend
from holdfast.errors import DeniedError
from holdfast.store.store import Store
from tests.engine.lines import store_on


@pytest.fixture
def stores() -> tuple[Store, Store, list[str]]:
    source, target = store_on(MemoryBackend()), store_on(MemoryBackend())
    ids = [source.thread("t").put({"n": n}).id for n in range(4)]
    source.maintenance.copy_to(target)
    return source, target, ids


def test_holds_and_pins_stay_and_come_along(stores: tuple[Store, Store, list[str]]) -> None:
    source, target, ids = stores
    target.thread("t").hold(reason="audit")
    target.thread("t").pin(ids[0], reason="evidence")
    source.thread("t").put({"n": 4})
    source.thread("t").hold(reason="of the source")
    source.thread("t").pin(ids[1], reason="of the source")
    for _ in range(2):
        assert not source.maintenance.copy_to(target).changing
        assert {each.reason for each in target.thread("t").holds()} == {"audit", "of the source"}
        assert {(each.id, each.reason) for each in target.thread("t").pins()} == {
            (ids[0], "evidence"),
            (ids[1], "of the source"),
        }
    assert target.thread("t").get().state == {"n": 4}
    assert not source.maintenance.verify().findings
    assert not target.maintenance.verify().findings
    with pytest.raises(DeniedError):
        target.thread("t").delete()


@pytest.mark.parametrize("how", ["hold", "pin"])
def test_what_is_kept_there_is_not_pruned_by_a_copy(how: str, stores: tuple[Store, Store, list[str]]) -> None:
    source, target, ids = stores
    if how == "hold":
        target.thread("t").hold(reason="audit")
    else:
        target.thread("t").pin(ids[0], reason="evidence")
    source.maintenance.prune(keep_last=2)
    with pytest.raises(DeniedError, match=f"a {how} there retains"):
        source.maintenance.copy_to(target)
    assert target.thread("t").get(ids[0]).state == {"n": 0}
    assert not target.maintenance.verify().findings
    if how == "hold":
        target.thread("t").release()
    else:
        target.thread("t").unpin(ids[0])
    source.maintenance.copy_to(target)
    assert len(target.thread("t").log()) == 2
    assert not target.maintenance.verify().findings


def test_a_pin_elsewhere_does_not_keep_what_is_not_pinned(stores: tuple[Store, Store, list[str]]) -> None:
    source, target, ids = stores
    target.thread("t").pin(ids[3])
    source.maintenance.prune(keep_last=2)
    source.maintenance.copy_to(target)
    assert [each.id for each in target.thread("t").log().all()] == [ids[3], ids[2]]
    assert [each.id for each in target.thread("t").pins()] == [ids[3]]
    with pytest.raises(holdfast.errors.NotFoundError):
        target.thread("t").get(ids[0])
