"""What is done to threads says who did it and why: saves in their steps, everything else in the audit."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypedDict

import pytest
from langgraph.graph import END, START, StateGraph

import holdfast
from holdfast.backends.interface import Create, Delete, Put, Scan
from holdfast.backends.runtime.drivers import run
from holdfast.backends.tables import EVENTS, LINES, LINKS, STEPS
from holdfast.engine.checked_rows import CHECKSUMS
from holdfast.engine.row_format import ORIGIN, StepRef
from holdfast.errors import DeniedError
from holdfast.langgraph import HoldfastSaver
from holdfast.security.audit.thread_audit import ALWAYS, REPLACING
from holdfast.store.store import Store
from tests.support.interference import InterferingBackend


def actions(store: Store, **filters: Any) -> list[str]:
    return [each.action for each in store.audit.query(kind="thread", **filters)][::-1]


# Saves --------------------------------------------------------------------------------------------------------


def test_a_save_has_the_correlation_and_the_cause_in_its_step(store: Store) -> None:
    store.thread("chat").put({"n": 0})
    with holdfast.correlation("req-1", cause="event-9"):
        saved = store.thread("chat").put({"n": 1}, metadata={"by": "hand"})
    plain, found = store.thread("chat").get(at="#0"), store.thread("chat").get()
    assert (plain.correlation, plain.cause) == ("", "")
    assert (found.id, found.actor, found.correlation, found.cause) == (saved.id, "", "req-1", "event-9")
    assert found.metadata == {"by": "hand"}
    (record,) = store.audit.query(correlation="req-1")
    assert (record.kind, record.action, record.thread, record.scope) == ("thread", "save", "chat", "thread:chat")
    assert (record.id, record.outcome, record.cause) == (saved.id, "ok", "event-9")
    assert not store.audit.query(correlation="req-2")
    assert store.maintenance.verify(level="decode").ok


def test_a_save_without_a_correlation_stores_nothing_more(store: Store, backend: InterferingBackend) -> None:
    def batch_of(save: Callable[[], object]) -> list[str]:
        backend.batches.clear()
        save()
        return [f"{type(each).__name__} {each.space.name}" for batch in backend.batches for each in batch]

    store.thread("chat").put({"n": 0})
    plain = batch_of(lambda: store.thread("chat").put({"n": 1}))
    with holdfast.correlation("req-1"):
        first = batch_of(lambda: store.thread("chat").put({"n": 2}))
        second = batch_of(lambda: store.thread("chat").put({"n": 3}))
    assert first == [*plain, "Ensure links"]  # the mark of the line, once
    assert second == plain


def test_every_kind_of_save_has_them(store: Store) -> None:
    thread = store.thread("chat")
    with holdfast.correlation("req-1"):
        first = thread.put({"n": 1, "m": 1})
        thread.update({"n": 2})
        thread.fork("draft", at=first, changes={"m": 5})
        thread.merge("draft", "main")
        thread.restore(first)
        thread.switch("draft")
        with store.transaction() as together:
            together.put("other", {"n": 1})
    expected = ["save", "update", "fork", "merge", "restore", "switch"]
    assert sorted(actions(store, thread="chat", correlation="req-1")) == sorted(expected)
    assert actions(store, correlation="req-1", thread="other") == ["save"]


class Count(TypedDict):
    n: int


def graph(saver: HoldfastSaver) -> Any:
    inner = StateGraph(Count).add_node("add", lambda state: {"n": state["n"] + 1}).add_edge(START, "add")
    inner_graph = inner.add_edge("add", END).compile(checkpointer=True)
    builder = StateGraph(Count).add_node("inner", inner_graph).add_edge(START, "inner").add_edge("inner", END)
    return builder.compile(checkpointer=saver)


@pytest.mark.parametrize("is_async", [False, True])
def test_the_saver_of_langgraph_has_them_in_subgraphs_too(store: Store, is_async: bool) -> None:
    saver, config = HoldfastSaver(store), {"configurable": {"thread_id": "chat"}}
    with holdfast.correlation("req-1"):
        if is_async:
            asyncio.run(graph(saver).ainvoke({"n": 1}, config))
        else:
            graph(saver).invoke({"n": 1}, config)
    names = [each.thread for each in store.threads()]
    assert len(names) == 2
    for name in names:
        checkpoints = store.thread(name).log()
        assert checkpoints
        assert {each.correlation for each in checkpoints} == {"req-1"}
        assert not any(ORIGIN in each.metadata for each in checkpoints)
    found = store.audit.query(thread="chat", limit=1000)
    assert {each.thread for each in found} == set(names)
    assert len(found) == sum(len(store.thread(name).log()) for name in names)


def test_checkpoints_are_linked_with_artifacts(store: Store) -> None:
    store.artifacts.register(b"facts", id="facts")
    store.thread("chat").put({"n": 0})
    with store.artifacts.using("facts"):
        saved = store.thread("chat").put({"n": 1})
        store.state(agent="a")["k"] = 1
    links = store.artifacts.changes("facts")
    assert [(str(each.scope), each.key) for each in links] == [("thread:chat", saved.id), ("agent:a", "k")]
    assert links[0].version == 2
    (link,) = store.artifacts.of(thread="chat")
    assert (link.artifact, link.id) == ("facts", saved.id)
    assert store.artifacts.of(thread="chat", key=saved.id)[0].artifact == "facts"
    assert not store.artifacts.of(thread="other")


def test_a_new_revision_keeps_the_origin_of_what_follows(store: Store) -> None:
    with holdfast.correlation("one"):
        store.thread("chat").put({"n": 1}, id="1", metadata={"x": 1})
    with holdfast.correlation("two"):
        store.thread("chat").put({"n": 2}, id="2", metadata={"x": 2})
        store.thread("chat").put({"n": 3}, id="3")
    with holdfast.correlation("again"):
        store.thread("chat").put({"n": 10}, id="1", metadata={"x": 1})
        store.thread("chat").put({"n": 3}, id="3")  # as it is: no new revision
    assert [(each.id, each.correlation) for each in store.thread("chat").log()] == [
        ("3", "two"),
        ("2", "two"),
        ("1", "again"),
    ]
    assert store.maintenance.verify().ok


def test_the_hash_covers_the_origin(store: Store, backend: InterferingBackend) -> None:
    with holdfast.correlation("req-1"):
        store.thread("chat").put({"n": 1})
    ((row,),) = run(backend.inner.read([Scan(STEPS, ("", "chat"))]))
    plain = CHECKSUMS.salvage(STEPS, row)
    for old, new in ((b"req-1", b"req-2"), (b"\xa5req-1", b"\xa5\x00\x00\x00\x00\x00")):
        assert old in plain.body
        store._engine.context.cache.clear()
        run(store._engine.context.backend.apply([Put(STEPS, plain._replace(body=plain.body.replace(old, new)))]))
        assert [each.code.value for each in store.maintenance.verify("chat").findings]
    point = StepRef.of(plain)
    forged = point._replace(metadata=point.metadata.replace("req-1", "req-2"))
    run(store._engine.context.backend.apply([Put(STEPS, forged.row(store._handle.thread_line("chat"), plain.body))]))
    assert [each.column for each in store.maintenance.verify("chat").findings] == ["metadata"]
    store.maintenance.repair()
    assert store.maintenance.verify("chat").ok
    assert actions(store, correlation="req-1") == ["save"]


def test_the_audit_is_paged_over_threads_and_scopes(store: Store) -> None:
    for number in range(30):
        with holdfast.correlation(f"req-{number % 3}"):
            store.thread(f"chat-{number % 4}").put({"n": number})
            store.state(agent=f"a{number % 4}")["n"] = number
        store.thread("plain").put({"n": number})
    found = list(store.audit.query(limit=7).all())
    assert len(found) == len({each.cursor for each in found}) == 60
    assert [each.time for each in found] == sorted((each.time for each in found), reverse=True)
    one = list(store.audit.query(limit=4, correlation="req-1").all())
    assert one == [each for each in found if each.correlation == "req-1"]
    assert len(one) == 20
    assert list(store.audit.query(limit=4, thread="chat-1").all()) == [
        each for each in found if each.thread == "chat-1"
    ]
    assert not store.audit.query(thread="plain")
    assert len(store.audit.query(limit=1000, since=found[19].time)) >= 20


# Everything else ----------------------------------------------------------------------------------------------


def operations(store: Store, folder: Path) -> dict[str, Callable[[], object]]:
    """Every operation of a thread that is no save, in an order in which each is possible."""
    thread, prune = store.thread("chat"), store.maintenance.prune
    return {
        "tag": lambda: thread.tag("v1"),
        "untag": lambda: thread.untag("v1"),
        "label": lambda: thread.label("good"),
        "unlabel": lambda: thread.unlabel("good"),
        "fork": lambda: thread.fork("draft"),
        "rename-branch": lambda: thread.rename_branch("draft", "better"),
        "delete-branch": lambda: thread.delete_branch("better"),
        "pin": lambda: thread.pin("#0"),
        "unpin": lambda: thread.unpin("#0"),
        "hold": lambda: thread.hold(reason="court"),
        "release": lambda: thread.release(),
        "prune": lambda: prune("chat", keep_last=1),
        "export": lambda: store.maintenance.export(folder / "chat.holdfast", threads=["chat"]),
        "copy": lambda: HoldfastSaver(store).copy_thread("chat", "copy"),
        "delete": lambda: thread.delete(),
        "import": lambda: store.maintenance.import_(folder / "chat.holdfast"),
    }


def test_everything_else_leaves_a_record(store: Store, tmp_path: Path) -> None:
    for number in range(4):
        store.thread("chat").put({"n": number})
    done = operations(store, tmp_path)
    with holdfast.correlation("req-1", cause="event-9"):
        for action, operate in done.items():
            operate()
            newest = store.audit.query(thread="chat")[0]
            assert (newest.action, newest.actor, newest.outcome) == (action, "", "ok")
            assert (newest.correlation, newest.cause) == ("req-1", "event-9")
    assert actions(store, thread="chat") == list(done)
    assert store.audit.verify().ok


def test_without_a_correlation_only_what_removes_protects_or_lets_out_does(store: Store, tmp_path: Path) -> None:
    for number in range(4):
        store.thread("chat").put({"n": number})
    done = operations(store, tmp_path)
    for operate in done.values():
        operate()
    replacing = REPLACING - {"tag", "label", "pin"}  # they replace none here
    assert actions(store, thread="chat") == [each for each in done if each in ALWAYS or each in replacing]
    assert {"delete", "prune", "export", "import", "hold", "release"} <= ALWAYS


def test_what_fails_or_does_nothing_leaves_no_record(store: Store) -> None:
    thread = store.thread("chat")
    store.thread("chat").put({"n": 1})
    thread.hold()
    with pytest.raises(DeniedError):
        thread.delete()
    with pytest.raises(DeniedError):
        store.maintenance.delete(["chat"])
    store.thread("no such thread").delete()
    store.maintenance.prune("chat", keep_last=1)
    store.maintenance.prune(keep_last=1, dry_run=True)
    assert actions(store) == ["hold"]


def test_several_threads_that_are_deleted_together_leave_one_each(store: Store) -> None:
    for name in ("a", "b", "c"):
        store.thread(name).put({"n": 1})
    store.maintenance.delete(["a", "b"])
    assert [each.thread for each in store.audit.query(kind="thread", action="delete")][::-1] == ["a", "b"]


def test_a_thread_whose_name_looks_like_something_else(store: Store) -> None:
    names = ["a\tb", "a/b", "thread:x", "agent:a", "a%2Fb", "x\ty\tz", "␟", "🧵"]
    for name in names:
        store.thread(name).put({"n": 1})
        with holdfast.correlation("req-1"):
            store.thread(name).put({"n": 2})
        store.thread(name).delete()
    for name in names:
        assert [each.thread for each in store.audit.query(thread=name)] == [name]  # the step is gone with it
    assert not store.audit.query(scope="agent:a")


OF_KEYS = {"rotate-keys", "schedule-key", "destroy-key", "keep-key"}
"""They need an encrypted store: tests/security/encryption has them."""
OF_ERASURE = {"erase", "erased", "set-subject"}
"""tests/security/erasure has them."""


@pytest.mark.parametrize(
    "action",
    [*sorted(ALWAYS - {"export", "delete-branch", "set-owner"} - OF_KEYS - OF_ERASURE), "tag", "fork", "copy"],
)
def test_the_record_is_in_the_batch_of_the_change(
    store: Store, backend: InterferingBackend, tmp_path: Path, action: str
) -> None:
    for number in range(4):
        store.thread("chat").put({"n": number})
    with holdfast.correlation("req-1"):
        for name, operate in operations(store, tmp_path).items():
            backend.batches.clear()
            operate()
            if name == action:
                break
    recorded = [
        batch for batch in backend.batches if any(each.space is EVENTS for each in batch if not _is_delete(each))
    ]
    assert len(recorded) == 1
    changed = {
        *(each.space.name for each in recorded[0] if isinstance(each, Create | Put) and each.row.key[1] != "␞audit"),
        *(each.space.name for each in recorded[0] if _is_delete(each)),
    }
    tables = {"delete": "steps", "prune": "folds", "import": "lines", "fork": "branches", "copy": "lines"}
    assert tables.get(action, "refs") in changed


def _is_delete(change: object) -> bool:
    return isinstance(change, Delete)


@pytest.mark.parametrize("action", ["tag", "delete", "prune", "hold", "import"])
def test_others_write_to_the_audit_and_the_thread_meanwhile(
    store: Store, backend: InterferingBackend, tmp_path: Path, action: str
) -> None:
    """A record that loses the race for its place in the audit is written after the winner, and the change with it."""
    for number in range(4):
        store.thread("chat").put({"n": number})
    stranger = store.as_identity(agent="x")

    def attempt() -> None:
        with pytest.raises(DeniedError):
            stranger.state(agent="y").get("k")

    done = operations(store, tmp_path)
    with holdfast.correlation("req-1"):
        for name, operate in done.items():
            if name != action:
                operate()
                continue
            where = lambda batch: any(each.space is EVENTS and not _is_delete(each) for each in batch)  # noqa: E731
            with backend.interfere(attempt, "apply", times=3, where=where) as interference:
                operate()
            assert interference.struck == 3
            break
    assert len(store.audit.query(kind="denied")) == 3
    assert actions(store, thread="chat")[-1] == action
    assert store.audit.verify().ok
    assert store.maintenance.verify().ok


def test_a_quota_forbids_no_deletion(store: Store) -> None:
    store.thread("chat").put({"text": "x" * 2000})
    store.maintenance.set_quota(bytes=100, threads=1, steps=1)
    assert store.thread("chat").delete()
    assert actions(store) == ["delete"]


def test_a_store_that_is_open_for_reading_is_exported_without_a_record(tmp_path: Path) -> None:
    path = tmp_path / "agents.db"
    with holdfast.open(path) as store:
        store.thread("chat").put({"n": 1})
        store.maintenance.export(tmp_path / "one")
    with holdfast.open(path, read_only=True) as store:
        assert store.maintenance.export(tmp_path / "two").threads == 1
        assert actions(store) == ["export"]


def test_the_mark_of_a_line_is_written_again_after_others_deleted_it(store: Store, backend: InterferingBackend) -> None:
    with holdfast.correlation("one"):
        store.thread("chat").put({"n": 1})
    lines = [Delete(table, ("", "chat")) for table in (LINES, STEPS, LINKS)]
    run(backend.inner.apply(lines))  # as another process does
    with holdfast.correlation("two"):
        store.thread("chat").put({"n": 1})
    assert actions(store) == ["save"]
    assert store.audit.query()[0].correlation == "two"


@pytest.mark.parametrize("way", ["copy_to", "export", "copy_thread"])
def test_a_copy_has_the_origins(store: Store, tmp_path: Path, way: str) -> None:
    with holdfast.correlation("req-1"):
        store.thread("chat").put({"n": 1})
    with holdfast.open(tmp_path / "other.db") as other:
        target, name = other, "chat"
        if way == "copy_to":
            store.maintenance.copy_to(other)
        elif way == "export":
            store.maintenance.export(tmp_path / "file")
            other.maintenance.import_(tmp_path / "file")
        else:
            HoldfastSaver(store).copy_thread("chat", "copy")
            target, name = store, "copy"
        assert target.thread(name).get().correlation == "req-1"
        assert name in [each.thread for each in target.audit.query(correlation="req-1")]
