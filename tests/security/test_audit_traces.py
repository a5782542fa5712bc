"""Nobody takes away what tells of their own deeds, reads without a trace, or learns from an error what is there."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

import holdfast
from holdfast.backends.interface import Put, Row, Scan
from holdfast.backends.memory import MemoryBackend
from holdfast.backends.runtime.drivers import run
from holdfast.backends.tables import EVENTS
from holdfast.engine.model.scopes import Scope
from holdfast.errors import DeniedError, HoldfastError, InvalidError
from holdfast.maintenance.retention import Retention
from holdfast.security.access.policy import Policy
from holdfast.state.sharing import segmented_log
from holdfast.store.identity_view import IdentityView
from holdfast.store.store import Store
from tests.state.kit import Clock, store_on
from tests.support.interference import InterferingBackend


@pytest.fixture
def store(clock: Clock) -> Iterator[Store]:
    with store_on(MemoryBackend(), clock) as opened:
        yield opened


# What tells of one's deeds ------------------------------------------------------------------------------------------


def changed(store: Store, **asked: Any) -> list[tuple[str, str, str, str]]:
    rows = store.audit.query(kind="change", **asked)
    return [
        (each.actor, each.action, each.scope, each.key)
        for each in rows
        if each.action not in ("remove", "create-signing-key")
    ]


def test_a_session_that_is_deleted_leaves_its_rows(store: Store, clock: Clock, tmp_path: Path) -> None:
    store.access.allow_children("user:alice")
    alice, inside = store.as_identity(user="alice"), store.as_identity("user:alice/session:s1/agent:writer")
    session = alice.sessions.start("s1", user="alice", on_end="delete")
    with holdfast.correlation("c1"):
        written = inside.state("user:alice/session:s1/agent:writer").set("evil", 1)
    (before,) = store.audit.query(kind="change")
    heads = store.audit.export(tmp_path / "audit").heads
    clock.sleep(3 * 86400)
    session.end()
    gone, after = (each for each in store.audit.query(kind="change") if each.action != "create-signing-key")
    assert (gone.actor, gone.action, gone.scope) == ("user:alice", "remove", before.scope)
    assert gone.detail.items() > {"steps": 1, "head": heads["␞" + before.scope][1]}.items()
    assert written == 1
    assert after == replace(before, cursor=after.cursor)
    assert changed(store, scope="user:alice/session:s1/agent:writer", correlation="c1")
    assert changed(store, since="1h") == []  # it was long ago, and what follows it is not cut off
    assert changed(store, since="4d")
    alice.sessions.delete("s1")
    assert changed(store) == [("user:alice/session:s1/agent:writer", "set", before.scope, "evil")]
    report = store.audit.verify()
    assert report.ok
    assert not report.unproven
    assert store.maintenance.verify().findings == []
    store.audit.export(tmp_path / "audit")
    assert holdfast.access.check_audit(tmp_path / "audit", heads=heads).ok
    assert not holdfast.access.check_audit(tmp_path / "audit", heads={**heads, "␞agent:other": (1, "00")}).ok


def test_a_session_that_is_removed_for_good_leaves_its_rows(store: Store) -> None:
    session = store.sessions.start("s1", on_end="archive")
    session.state["plan"] = 1
    store.sessions.delete("s1")
    assert changed(store) == [("", "set", "session:s1", "plan")]
    assert store.audit.verify().ok


def test_a_session_without_state_leaves_nothing_behind(store: Store) -> None:
    store.sessions.start("s1", on_end="delete").end()
    store.sessions.delete("s1")
    assert {each.kind for each in store.audit.query()} == {"session"}
    assert "␞audit" not in [line.name for line in run(store._engine.lines.names("", "␞"))]


@pytest.mark.parametrize("there", [True, False], ids=["with state", "without"])
def test_what_is_written_while_a_session_ends_is_told_of(clock: Clock, there: bool) -> None:
    backend = InterferingBackend()
    with store_on(backend, clock) as store:
        session = store.sessions.start("s1", on_end="delete")
        if there:
            session.state["before"] = 1
        with backend.interfere(lambda: session.state.set("late", 1)):
            store.sessions.end("s1")
        assert ("", "set", "session:s1", "late") in changed(store)
        assert store.audit.verify().ok


def test_a_topic_that_is_trimmed_or_deleted_leaves_its_rows(
    store: Store, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segmented_log, "LENGTH", 4)
    a = store.as_identity(agent="a")
    topic = a.sharing.topic("news", agent="a")
    for number in range(10):
        topic.publish(number)
    clock.sleep(60)
    assert topic.trim(older_than=1) == 8
    published = [each for each in changed(store) if each[1] == "publish"]
    assert len(published) == 10
    assert topic.delete()
    assert not topic.delete()
    assert sorted(each for each in changed(store) if each[1] == "publish") == sorted(published)
    assert {each.actor for each in store.audit.query(action="remove")} == {"agent:a"}
    assert store.audit.verify().ok


def test_a_topic_is_not_deleted_under_a_right_that_is_revoked_meanwhile(clock: Clock) -> None:
    backend = InterferingBackend()
    with store_on(backend, clock) as store:
        topic = store.sharing.topic("news", agent="a")
        topic.publish(1)
        grant = store.access.grant("agent:b", ["read", "write"], "agent:a/custom:topic%2Fnews")
        with pytest.raises(DeniedError, match="revoked"), backend.interfere(lambda: store.access.revoke(grant)):
            store.as_identity(agent="b").sharing.topic("news", agent="a").delete()
        assert topic.count() == 1


def test_a_damaged_row_does_not_keep_a_session_from_its_end(store: Store) -> None:
    @store.hooks.before("state.set", record=True)
    def noted(call: Any) -> None:
        call.note("seen", 1)

    session = store.sessions.start("s1", on_end="delete")
    session.state["plan"] = 1
    backend = store._engine.context.backend
    (rows,) = run(backend.read([Scan(EVENTS, ("", "␞session:s1"))]))
    damaged = next(row for row in rows if row.body)
    run(backend.apply([Put(EVENTS, Row(damaged.key, damaged.columns, damaged.body[:-1]))]))
    session.end()
    assert any("damaged" in each.detail for each in store.audit.query())
    assert store.audit.verify().ok


def test_a_prune_of_everything_leaves_the_audit_and_the_rights(store: Store) -> None:
    a, b = store.as_identity(agent="a"), store.as_identity(agent="b")
    for number in range(5):
        a.state(agent="a")["plan"] = number
        a.grant("agent:b", keys=f"k{number}")
        with pytest.raises(DeniedError):
            b.state(agent="a").get("plan")
    store.maintenance.prune(policy=Retention(keep_latest=True), kinds="all")
    report = store.audit.verify()
    assert report.ok
    assert (report.pruned, report.unproven) == (4, 0)  # the scope's own steps, whose records are still proven
    with pytest.raises(InvalidError, match="not pruned"):
        store.maintenance.prune(policy=Retention(keep_latest=True), threads=["audit"], kinds="audit")


# Reading without a trace ---------------------------------------------------------------------------------------------


def reads(store: Store, actor: str) -> list[tuple[str, str]]:
    return [(each.scope, each.key) for each in store.audit.query(actor=actor, kind="read")]


def test_a_function_that_sees_a_value_is_a_read_also_if_it_fails(store: Store) -> None:
    store.state(agent="a")["plan"] = "secret"
    store.access.grant("agent:b", ["read", "write"], agent="a")
    b = store.as_identity(agent="b")

    def peek(_: Any) -> Any:
        raise LookupError

    with pytest.raises(LookupError):
        b.state(agent="a").change("plan", peek)
    assert reads(store, "agent:b") == [("agent:a", "plan")]


def test_moving_state_and_looking_at_an_archive_are_reads(store: Store) -> None:
    store.state(agent="a")["plan"] = "secret"
    store.access.grant("agent:b", ["read", "write"], agent="a")
    b = store.as_identity(agent="b")
    b.state(agent="a").move_to(b.state(agent="b"))
    assert reads(store, "agent:b") == [("agent:a", "plan")]
    store.access.allow_children("user:u")
    store.sessions.start("s1", user="u", on_end="archive").state["plan"] = 1
    store.sessions.end("s1")
    assert store.as_identity(user="u").sessions.archived("s1") == {"plan": 1}
    assert ("user:u/session:s1", "plan") in reads(store, "user:u")


def test_an_answer_is_not_given_to_whoever_was_cut_off_meanwhile(store: Store) -> None:
    requests = store.sharing.requests("help")
    store.access.grant("agent:b", "write", "custom:requests%2Fhelp")
    asked = store.as_identity(agent="b").sharing.requests("help")
    id = asked.ask("what?")
    answering = threading.Timer(0.05, lambda: [store.access.cut_off("agent:b"), requests.serve(str, limit=1)])
    answering.start()
    with pytest.raises(DeniedError):
        asked.wait(id, timeout=60)
    answering.join()


# What errors tell ----------------------------------------------------------------------------------------------------


def refused(act: Callable[[], object], name: str) -> tuple[str, str, object]:
    with pytest.raises(DeniedError) as caught:
        act()
    error = caught.value
    return type(error).__name__, str(error).replace(name, "…"), error.__context__ or error.__cause__


@pytest.mark.parametrize("action", ["get", "delete", "end", "touch", "resume", "read", "verify"])
def test_what_is_there_and_what_is_not_look_the_same(store: Store, action: str) -> None:
    store.sessions.start("there", user="bob")
    store.as_identity(agent="victim").artifacts.register(b"x", id="there")
    alice = store.as_identity(user="alice")
    for several in (alice.sessions, alice.artifacts):
        if hasattr(several, action):
            there, nowhere = (
                refused(lambda name=name: getattr(several, action)(name), name)  # type: ignore[misc] # noqa: B023
                for name in ("there", "nowhere")
            )
            assert there == nowhere
            assert there[2] is None


def test_nobody_is_told_who_else_has_the_same_content(store: Store) -> None:
    a, b = store.as_identity(agent="a"), store.as_identity(agent="b")
    a.artifacts.register(b"the same", id="first")
    assert b.artifacts.register(b"the same", id="second").same_as == ""
    assert b.artifacts.register(b"the same", id="third").same_as in ("", "second")
    assert store.artifacts.register(b"the same", id="fourth").same_as == "first"


def test_a_session_is_not_ended_under_a_right_that_is_revoked_meanwhile(clock: Clock) -> None:
    backend = InterferingBackend()
    with store_on(backend, clock) as store:
        store.sessions.start("s1", user="a").state["plan"] = 1
        grant = store.access.grant("agent:b", ["read", "write"], "user:a/session:s1")
        with pytest.raises(DeniedError, match="revoked"), backend.interfere(lambda: store.access.revoke(grant)):
            store.as_identity(agent="b").sessions.end("s1")
        assert store.sessions.get("s1").status == "active"


def test_a_policy_decides_on_the_list_of_sessions_too(store: Store) -> None:
    store.sessions.start("s1", user="a")
    assert store.as_identity(user="a").sessions.list()
    with pytest.raises(DeniedError):
        store.as_identity(user="a", mode="custom", policy=Policy().allow("read", "agent:*")).sessions.list()


# Names that lie ------------------------------------------------------------------------------------------------------


class _Liar(str):
    """Says that it is another text than it is, however it is asked."""

    def __hash__(self) -> int:
        return hash("fresh")

    def __eq__(self, other: object) -> bool:
        return other == "fresh"

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __str__(self) -> str:
        return "open"

    def __len__(self) -> int:
        return 1

    def isascii(self) -> bool:
        return True

    def replace(self, *_: Any) -> str:
        return "fine"

    def split(self, *_: Any) -> list[str]:
        return ["agent:fresh"]


def test_no_name_is_remembered_in_place_of_another(store: Store) -> None:
    intruder: IdentityView = store.as_identity(agent="liar")
    for use in (
        lambda: intruder.state(agent=_Liar("liar")),
        lambda: intruder.state(_Liar("agent:liar")),
        lambda: Scope.of(**{_Liar("agent"): "liar"}),
        lambda: intruder.state(agent="liar").set(_Liar("liar"), 1),
        lambda: intruder.state(agent="liar").list_keys(_Liar("liar")),
    ):
        use()
    assert str(store.state(agent="fresh").scope) == "agent:fresh"
    store.state(agent="fresh")["fresh"] = 1
    assert list(store.state(agent="fresh")) == ["fresh"]
    assert list(store.state(agent="liar")) == ["liar"]


@pytest.mark.parametrize("name", ["../x", "a\0b", "x" * 300])
def test_a_name_that_lies_is_checked_all_the_same(store: Store, name: str) -> None:
    intruder = store.as_identity(agent="liar")
    with pytest.raises(InvalidError):
        intruder.state(agent="liar").set(_Liar(name), 1)
    with pytest.raises(InvalidError):
        intruder.state(agent=_Liar(name))
    assert len(store.audit.query(actor="agent:liar", outcome="invalid")) == 2


@pytest.mark.parametrize("made", [[], {}, type("a\tb\n", (), {})()], ids=["list", "dict", "odd"])
def test_what_is_no_text_is_noted_without_harm(store: Store, made: Any) -> None:
    with pytest.raises(HoldfastError):
        store.as_identity(agent="liar").state(agent=made)
    (noted,) = store.audit.query(outcome="invalid")
    assert "\t" not in noted.scope + noted.key
    noted.scope.encode()


def test_a_watch_stays_with_the_scope_that_it_was_made_for(store: Store) -> None:
    watch = store.as_identity(agent="a").state(agent="a").watch()
    with pytest.raises(AttributeError):
        watch.scope = Scope.of(agent="b")  # type: ignore[misc]


# Company -------------------------------------------------------------------------------------------------------------


def test_nothing_is_drawn_from_the_chance_of_the_program(store: Store) -> None:
    before = random.getstate()
    a = store.as_identity(agent="a", read_window=0)
    a.state(agent="a")["plan"] = 1
    assert a.state(agent="a")["plan"] == 1
    store.sessions.start("s1").state["plan"] = 1
    assert random.getstate() == before


def test_a_page_of_the_audit_reads_little_of_each_of_many_scopes(
    store: Store, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(50):
        clock.sleep(1)  # what is done at one time has no order
        with store.transaction() as together:
            for agent in range(10):
                together.state(agent=f"a{agent}")[f"k{number}"] = number
    read = 0
    backend = store._engine.context.backend
    plain = backend.read

    async def counting(queries: Any) -> Any:
        nonlocal read
        found = await plain(queries)
        read += sum(len(rows) for query, rows in zip(queries, found, strict=True) if query.space is EVENTS)
        return found

    monkeypatch.setattr(backend, "read", counting)
    page = store.audit.query(limit=5)
    assert [each.key for each in page] == ["k49"] * 5
    assert read < 50
    whole = [page[-1]]
    while page:
        page = store.audit.query(limit=7, cursor=whole[-1].cursor)
        whole += page
    assert len(whole) == 500 - 4
    assert len({each.cursor for each in whole}) == len(whole)


def test_a_listing_asks_once_for_the_rights_of_many_scopes(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(30):
        store.state(agent=f"a{number}")["k"] = 1
    store.access.grant("agent:b", agent="a7", until=timedelta(days=1))
    b = store.as_identity(agent="b")
    asked = 0
    plain = store._engine.lines.revalidate_tip

    async def counting(line: Any) -> Any:
        nonlocal asked
        asked += line.name == "␞access"
        return await plain(line)

    monkeypatch.setattr(store._engine.lines, "revalidate_tip", counting)
    assert [str(each.scope) for each in b.scopes()] == ["agent:a7"]
    assert asked <= 2


# Names that are none -------------------------------------------------------------------------------------------------

TRIES: dict[str, Callable[[IdentityView, str], object]] = {
    "a session": lambda acting, id: acting.sessions.get(id),
    "a new session": lambda acting, id: acting.sessions.start(id),
    "an artifact": lambda acting, id: acting.artifacts.get(id),
    "a new artifact": lambda acting, id: acting.artifacts.register(b"x", id=id),
    "a subscriber": lambda acting, id: acting.sharing.topic("news", agent="a").subscribe(id),
}


@pytest.mark.parametrize("hostile", ["../other", "a\0b", "x" * 10_000], ids=["traversal", "NUL", "10 KB"])
@pytest.mark.parametrize("what", TRIES)
def test_an_id_that_is_none_is_noted(store: Store, what: str, hostile: str) -> None:
    with pytest.raises(InvalidError):
        TRIES[what](store.as_identity(agent="a"), hostile)
    (noted,) = store.audit.query(outcome="invalid")
    assert noted.actor == "agent:a"
    assert len(noted.key) < 1000
