"""Sessions start, live, end by their policy, and come back; what ended takes no more writes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from itertools import count
from typing import Any

import pytest
from msgspec.structs import astuple

import holdfast
from holdfast.backends.interface import Get, Put, Row, Scan
from holdfast.backends.runtime.drivers import run
from holdfast.backends.tables import LINES, LINKS, STEPS, TABLES
from holdfast.engine.model.scopes import MARK
from holdfast.engine.row_format import Line, StepRef
from holdfast.errors import ConflictError, DeniedError, InvalidError, NotFoundError
from holdfast.state.scopes import delete_expired
from holdfast.state.session_guard import EXPIRY
from holdfast.state.sessions import lifecycle
from holdfast.state.sessions.records import SessionRecords
from holdfast.store.store import Store
from tests.maintenance.kit import DAY, HOUR, SECOND, Clock, awaited, timed


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store(clock: Clock) -> Store:
    return timed(clock)


def ids(sessions: Any) -> list[str]:
    return [session.id for session in sessions]


def rows_of(store: Store, line: str) -> dict[str, int]:
    """How many rows a line has, by space."""
    backend = store._engine.context.backend
    counts = {space.name: len(run(backend.read([Scan(space, ("", line))]))[0]) for space in TABLES}
    return {name: count for name, count in counts.items() if count}


def test_a_session_has_a_scope_of_its_own_inside_that_of_its_user(store: Store) -> None:
    session = store.sessions.start("s1", user="alice", agent="writer", metadata={"channel": "web"})
    session.state["seen"] = [1, 2]
    assert str(session.scope) == "user:alice/session:s1/agent:writer"
    assert store.state(agent="writer", session="s1", user="alice")["seen"] == [1, 2]
    assert dict(store.state(session="s1")) == dict(store.state(user="alice")) == {}
    assert (session.id, session.user, session.metadata, session.status) == ("s1", "alice", {"channel": "web"}, "active")
    assert session.ended is None
    assert repr(session) == "<Session 's1' active>"
    assert store.sessions.start().id != store.sessions.start().id
    assert store.sessions.start("plain").user is None


@pytest.mark.parametrize("is_started", [False, True])
def test_what_is_only_inside_a_session_leaves_no_orphan(store: Store, clock: Clock, is_started: bool) -> None:
    if is_started:
        store.sessions.start("s1")
    store.state(session="s1", agent="writer")["k"] = 1
    assert rows_of(store, f"{MARK}session:s1") == {"lines": 1, "links": 1}
    assert store.maintenance.verify().findings == []
    assert store.maintenance.sweep_orphans(grace="0s").found == []
    with timed(clock) as copy:
        store.maintenance.copy_to(copy)
        assert rows_of(copy, f"{MARK}session:s1") == {"lines": 1, "links": 1}


def test_an_id_is_used_once(store: Store) -> None:
    store.sessions.start("s1", user="alice")
    with pytest.raises(ConflictError, match="there is a session of this id"):
        store.sessions.start("s1", user="bob")
    store.sessions.end("s1")
    with pytest.raises(ConflictError):
        store.sessions.start("s1")
    store.sessions.delete("s1")
    store.sessions.start("s1")


def test_the_block_of_a_session_ends_it_also_when_it_fails(store: Store) -> None:
    with store.sessions.start("s1") as session:
        session.state["k"] = 1
    assert session.status == store.sessions.get("s1").status == "ended"
    with pytest.raises(ZeroDivisionError), store.sessions.start("s2"):
        raise ZeroDivisionError
    assert store.sessions.get("s2").status == "ended"


def test_delete_removes_the_state_its_history_and_all_inside(store: Store) -> None:
    session = store.sessions.start("s1", user="u")
    session.state.batch({"a": 1, "large": "x" * 200_000})
    store.state(user="u", session="s1", workflow="w")["b"] = 2
    store.state(user="u", session="s10")["c"] = 3
    assert session.state.history()
    session.end("done")
    assert (session.status, session.reason, session.ended) == ("ended", "done", session.started)
    assert dict(session.state) == dict(store.state(user="u", session="s1", workflow="w")) == {}
    assert session.state.history() == []
    assert rows_of(store, f"{MARK}user:u/session:s1") == {"lines": 1, "links": 1}
    assert rows_of(store, f"{MARK}user:u/session:s1/workflow:w") == {}
    assert dict(store.state(user="u", session="s10")) == {"c": 3}
    with pytest.raises(NotFoundError, match="deleted when it ended"):
        store.sessions.resume("s1")
    with pytest.raises(NotFoundError, match="not archived"):
        store.sessions.archived("s1")


@pytest.mark.parametrize("on_end", ["delete", "archive", "keep"])
def test_an_ended_session_takes_no_writes_through_any_handle(store: Store, on_end: Any) -> None:
    session = store.sessions.start("s1", user="u", on_end=on_end)
    state = store.state(user="u", session="s1")
    inside = store.state(user="u", session="s1", agent="a")
    state["k"], inside["k"] = 1, 1
    store.sessions.end("s1")
    before = dict(state)
    for write in (
        lambda: session.state.set("k", 2),
        lambda: state.delete("k"),
        lambda: state.clear(),
        lambda: inside.set("k", 2),
        lambda: store.state(user="u", session="s1", agent="new").set("k", 2),
        lambda: store.state(agent="out").move_to(state, on_conflict="overwrite"),
        session.touch,
    ):
        store.state(agent="out")["k"] = 3
        with pytest.raises(DeniedError) as refused:
            write()
        assert refused.value.code == "session-ended"

    def both(together: Any) -> None:
        together.state(agent="out").set("k", 4)
        together.state(user="u", session="s1").set("k", 4)

    with pytest.raises(DeniedError):
        store.transaction(both)
    assert store.state(agent="out")["k"] == 3
    assert dict(state) == before == ({"k": 1} if on_end == "keep" else {})
    store.sessions.end("s1")  # again is no failure


def test_archive_puts_the_state_away_and_resume_brings_it_back_as_it_was(store: Store, clock: Clock) -> None:
    session = store.sessions.start("s1", user="u", on_end="archive", metadata={"n": 1})
    session.state.batch({"b": 1, "a": {"deep": [1, 2]}})
    session.state.set("short", 1, ttl=60)
    session.state.set("long", 1, ttl=3600)
    store.state(user="u", session="s1", agent="x")["k"] = "v"
    session.end()
    assert dict(session.state) == dict(store.state(user="u", session="s1", agent="x")) == {}
    assert store.sessions.archived("s1") == {"a": {"deep": [1, 2]}, "b": 1, "long": 1, "short": 1}
    assert store.sessions.archived("s1", "user:u/session:s1/agent:x") == {"k": "v"}
    assert store.sessions.archived("s1", "user:u/session:s1/agent:y") == {}
    with pytest.raises(InvalidError, match="does not belong to the session"):
        store.sessions.archived("s1", "user:u")
    store.maintenance.prune(kinds=["session", "scope", "system"], keep_last=1)
    clock.now += 120 * SECOND
    again = store.sessions.resume("s1")
    assert dict(again.state) == {"a": {"deep": [1, 2]}, "b": 1, "long": 1}
    assert again.state.item("long").expires is not None
    assert (again.status, again.metadata, again.reason) == ("active", {"n": 1}, "")
    assert store.state(user="u", session="s1", agent="x")["k"] == "v"
    again.state["b"] = 2
    again.end()
    assert store.sessions.archived("s1")["b"] == 2
    assert store.sessions.resume("s1").state["b"] == 2


def test_a_session_that_was_kept_is_read_and_resumed(store: Store) -> None:
    session = store.sessions.start("s1", on_end="keep")
    session.state["k"] = 1
    session.end()
    assert dict(store.sessions.get("s1").state) == {"k": 1}
    store.sessions.resume("s1").state["k"] = 2
    empty = store.sessions.start("empty", on_end="keep")
    empty.end()
    with pytest.raises(DeniedError):
        empty.state["k"] = 1


def test_time_is_up_by_age_and_by_idleness(store: Store, clock: Clock) -> None:
    store.sessions.start("aged", ttl=timedelta(hours=1))
    store.sessions.start("idle", idle=600)
    store.sessions.start("forever")
    assert astuple(store.sessions.collect()) == (0, 0, 0, 0)
    clock.now += 599 * SECOND
    store.state(session="idle")["k"] = 1
    clock.now += 599 * SECOND
    store.sessions.touch("idle")
    clock.now += 599 * SECOND
    store.state(session="idle", agent="inside")["k"] = 1
    clock.now += 599 * SECOND
    assert astuple(store.sessions.collect()) == (0, 0, 1, 0)
    assert ids(store.sessions.list(status="active")) == ["aged", "forever", "idle"]
    clock.now += HOUR
    assert [session.status for session in store.sessions.list()] == ["expired", "active", "expired"]
    assert ids(store.sessions.list(status="expired")) == ["aged", "idle"]
    assert astuple(store.sessions.collect()) == (2, 0, 0, 0)
    assert store.sessions.get("idle").reason == "expired"
    assert ids(store.sessions.list(status="active")) == ["forever"]
    assert astuple(store.sessions.collect()) == (0, 0, 0, 0)


def test_one_that_is_idle_for_too_long_lives_again_until_it_is_collected(store: Store, clock: Clock) -> None:
    session = store.sessions.start("s1", idle=60)
    clock.now += HOUR
    assert store.sessions.get("s1").status == "expired"
    assert store.sessions.resume("s1").status == "active"
    assert astuple(store.sessions.collect()) == (0, 0, 1, 0)
    clock.now += 61 * SECOND
    session.state["k"] = 1
    assert astuple(store.sessions.collect()) == (0, 0, 1, 0)
    assert store.sessions.get("s1").status == "active"


def test_one_that_lasted_for_as_long_as_it_may_comes_back_only_anew(store: Store, clock: Clock) -> None:
    store.sessions.start("gone", ttl=60)
    store.sessions.start("kept", ttl=60, on_end="archive").state["k"] = 1
    clock.now += HOUR
    with pytest.raises(NotFoundError):
        store.sessions.resume("gone")
    again = store.sessions.resume("kept")
    assert dict(again.state) == {"k": 1}
    assert again.started.timestamp() * 1e9 == clock.now
    assert store.sessions.get("kept").status == "active"


def test_keys_that_lapse_are_no_sign_of_life(store: Store, clock: Clock) -> None:
    session = store.sessions.start("s1", idle=300)
    session.state.set("k", 1, ttl=60)
    clock.now += 299 * SECOND
    assert run(delete_expired(store._handle)) == (1, 1)
    assert store.sessions.get("s1").status == "active"
    clock.now += SECOND
    assert store.sessions.get("s1").status == "expired"
    assert astuple(store.sessions.collect()) == (1, 0, 0, 0)


def test_only_lapses_and_nothing_else_left(store: Store, clock: Clock) -> None:
    """A line whose last steps are all lapses counts from what was before them, however many they are."""
    session = store.sessions.start("s1", idle=300)
    for number in range(130):
        session.state["k"] = number
    backend = store._engine.context.backend
    (rows,) = run(backend.read([Scan(STEPS, ("", f"{MARK}session:s1"))]))
    for row in rows[1:]:
        columns = list(row.columns)
        columns[5] = EXPIRY
        run(backend.apply([Put(STEPS, Row(row.key, tuple(columns), row.body))]))
    clock.now += 301 * SECOND
    assert store.sessions.get("s1").status == "expired"


def test_records_and_archives_go_after_their_retention(store: Store, clock: Clock) -> None:
    for on_end in ("delete", "archive", "keep"):
        with store.sessions.start(on_end, on_end=on_end, retention=timedelta(days=2)) as session:
            session.state["k"] = 1
    clock.now += DAY
    assert astuple(store.sessions.collect()) == (0, 0, 0, 0)
    clock.now += DAY
    assert astuple(store.sessions.collect()) == (0, 2, 0, 0)
    assert ids(store.sessions.list()) == ["keep"]
    for gone in ("delete", "archive"):
        assert rows_of(store, f"{MARK}session:{gone}") == {}
        with pytest.raises(NotFoundError):
            store.sessions.get(gone)
    assert dict(store.state(session="keep")) == {"k": 1}
    store.sessions.delete("keep")
    assert rows_of(store, f"{MARK}session:keep") == {}
    assert not any(row.key[2] == "due" for row in run(store._engine.context.backend.read([Scan(LINKS, ("",))]))[0])


def test_what_is_held_stays_and_does_not_keep_others_from_being_collected(store: Store, clock: Clock) -> None:
    for id in ("held", "other"):
        store.sessions.start(id, idle=60).state["k"] = 1
    line = Line("", f"{MARK}session:held")
    run(store._engine.holds.hold(line, "a dispute"))
    clock.now += 60 * SECOND
    assert astuple(store.sessions.collect(limit=1)) == (0, 0, 0, 1)
    assert astuple(store.sessions.collect(limit=1)) == (1, 0, 0, 0)
    assert dict(store.state(session="held")) == {"k": 1}
    assert ids(store.sessions.list(status="expired")) == ["held"]
    with pytest.raises(DeniedError, match="held"):
        store.sessions.end("held")
    run(store._engine.holds.release(line, None))
    clock.now += HOUR
    assert astuple(store.sessions.collect()) == (1, 0, 0, 0)


def test_the_expired_are_found_in_pages(store: Store, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.state.sessions.api._PAGE", 64)
    for number in range(130):
        store.sessions.start(f"s{number:03}", idle=60)
    store.sessions.start("t", idle=120)
    clock.now += 60 * SECOND
    store.state(session="s100")["k"] = 1
    assert ids(store.sessions.list(status="expired", cursor="s098", limit=2)) == ["s099", "s101"]
    expired = store.sessions.list(status="expired", limit=1000)
    assert len(expired) == 129
    assert [each.id for each in store.sessions.list(status="expired", limit=7).all()] == ids(expired)
    assert store.sessions.list(status="expired", cursor="s129") == []


def test_lists_are_paged_and_filtered(store: Store, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.state.sessions.api._PAGE", 64)
    for number in range(130):
        store.sessions.start(f"s{number:03}", user=f"u{number % 3}", metadata={"odd": bool(number % 2)})
    store.sessions.end("s001")
    with store.sessions.start("t", user="u1", on_end="archive"):
        pass
    page = store.sessions.list(limit=2)
    assert ids(page) == ["s000", "s001"]
    assert ids(store.sessions.list(cursor=page.next, limit=2)) == ["s002", "s003"]
    every = store.sessions.list(limit=1000)
    assert len(every) == 131
    assert [each.id for each in store.sessions.list(limit=7).all()] == ids(every)
    assert ids(store.sessions.list(user="u1", limit=3)) == ["s001", "s004", "s007"]
    assert ids(store.sessions.list(user="u1", status="active", metadata={"odd": True}, limit=2)) == ["s007", "s013"]
    assert ids(store.sessions.list(user="u1", status="archived")) == ["t"]
    assert ids(store.sessions.list(status="ended")) == ["s001"]
    assert store.sessions.list(user="nobody") == store.sessions.list(limit=0) == []
    assert store.sessions.list(metadata={"other": 1}) == []


def test_metadata_is_changed_entry_by_entry(store: Store) -> None:
    store.sessions.start("s1", metadata={"a": 1, "b": 1})
    assert store.sessions.update("s1", {"b": 2, "c": 3}).metadata == {"a": 1, "b": 2, "c": 3}
    assert store.sessions.get("s1").metadata == {"a": 1, "b": 2, "c": 3}


def test_each_of_it_is_a_step_that_tells_who_and_when(store: Store, clock: Clock) -> None:
    session = store.sessions.start("s1", idle=60)
    session.end()
    (rows,) = run(store._engine.context.backend.read([Scan(STEPS, ("", f"{MARK}sessions"))]))
    assert [StepRef.of(row).kind for row in rows] == ["start", "end"]
    told = [(row.kind, row.action, row.key) for row in store.audit.query(kind="session")]
    assert sorted(told) == [("session", "end", "s1"), ("session", "start", "s1")]
    assert store.audit.verify().ok


def test_wrong_use_is_said(store: Store) -> None:
    for wrong in (
        lambda: store.sessions.start("s", on_end="burn"),  # type: ignore[arg-type]
        lambda: store.sessions.start("s", ttl=0),
        lambda: store.sessions.start("s", idle=-1),
        lambda: store.sessions.start("a/../b"),
        lambda: store.sessions.start("s", metadata=[1]),  # type: ignore[arg-type]
        lambda: store.sessions.list(status="dead"),  # type: ignore[arg-type]
        lambda: store.sessions.collect(limit=-1),
        lambda: store.sessions.get("\0"),
    ):
        with pytest.raises(InvalidError):
            wrong()
    for missing in (store.sessions.get, store.sessions.resume, store.sessions.end, store.sessions.touch):
        with pytest.raises(NotFoundError, match="no such session"):
            missing("nobody")
    store.sessions.start("s")
    with pytest.raises(InvalidError, match="cannot end it as expired"):
        store.sessions.end("s", "expired")
    assert run(store._engine.context.backend.read([Scan(LINKS, ("", f"{MARK}session:s"))])) == [[]]
    assert run(store._engine.context.backend.read([Get(LINES, [("", f"{MARK}session:s")])])) == [[]]


def test_the_same_awaited(store: Store, clock: Clock) -> None:
    async def scenario() -> None:
        other = awaited(store)
        async with await other.sessions.start("s1", idle=60, on_end="archive") as session:
            await session.state.set("k", 1)
            await session.touch()
            assert await session.state.get("k") == 1
        assert (await other.sessions.get("s1")).status == "archived"
        assert await other.sessions.archived("s1") == {"k": 1}
        again = await other.sessions.resume("s1")
        assert await again.state.get("k") == 1
        clock.now += 61 * SECOND
        assert astuple(await other.sessions.collect()) == (1, 0, 0, 0)
        assert [each.id for each in await other.sessions.list(status="archived")] == ["s1"]

    asyncio.run(scenario())


def test_a_scope_made_at_the_last_moment_shares_the_end(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process makes a scope inside the session's, after its scopes were listed and before the mark is there."""
    for on_end in ("archive", "delete"):
        session = store.sessions.start(on_end, on_end=on_end)
        session.state["k"] = 1
        late, taken = store.state(session=on_end, agent="late"), lifecycle.SessionLifecycle._save_end

        async def ended(self: Any, *args: Any, late: Any = late, taken: Any = taken, **kwargs: Any) -> Any:
            if not len(late):
                late["k"] = 2
            return await taken(self, *args, **kwargs)

        with monkeypatch.context() as patched:
            patched.setattr(lifecycle.SessionLifecycle, "_save_end", ended)
            session.end()
        assert dict(late) == {}
        with pytest.raises(DeniedError):
            late["k"] = 3
    assert store.sessions.archived("archive", "session:archive/agent:late") == {"k": 2}
    assert store.sessions.resume("archive").state["k"] == 1
    assert store.state(session="archive", agent="late")["k"] == 2


@contextmanager
def interference(act: Callable[[], object], times: int | None = 1) -> Iterator[None]:
    """Have others act right after a record was read: the first so many times, or always. Fails if they never do."""
    get, struck, acting = SessionRecords.get, 0, False

    async def interfered(self: SessionRecords, id: str, *, migrate: bool = True) -> Any:
        nonlocal struck, acting
        record = await get(self, id, migrate=migrate)
        if not acting and (times is None or struck < times):
            acting, struck = True, struck + 1
            act()
            acting = False
        return record

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(SessionRecords, "get", interfered)
        yield
    assert struck == times or (times is None and struck)


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("action", ["update", "end", "delete", "resume"])
def test_who_is_interrupted_by_others_goes_on_with_what_they_made(store: Store, action: str) -> None:
    store.sessions.start("s1", on_end="archive").state["k"] = 1
    if action == "resume":
        store.sessions.end("s1")
    given = ({"mine": 1},) if action == "update" else ()
    # The first read is that of whoever asks whether it may be done.
    with interference(lambda: store.sessions.update("s1", {"other": 1}), times=2):
        getattr(store.sessions, action)("s1", *given)
    if action == "delete":
        assert store.sessions.list() == []
        return
    session = store.sessions.get("s1")
    assert session.metadata == {"other": 1, **(given[0] if given else {})}
    assert session.status == ("archived" if action == "end" else "active")
    assert dict(session.state) == ({} if action == "end" else {"k": 1})
    if action == "resume":
        store.sessions.end("s1")
    numbers = count()
    with (
        interference(lambda: store.sessions.update("s1", {"n": next(numbers)}), times=None),
        pytest.raises(ConflictError, match="gave up .* a session after 5 concurrent writes"),
    ):
        getattr(store.sessions, action if action != "end" else "delete")("s1", *given)


def test_a_session_that_ends_while_it_is_resumed_is_restored(store: Store) -> None:
    store.sessions.start("s1", on_end="archive").state["k"] = 1
    with interference(lambda: store.sessions.end("s1"), times=2):
        session = store.sessions.resume("s1")
    assert (session.status, dict(session.state)) == ("active", {"k": 1})


def test_two_who_collect_do_it_once(store: Store, clock: Clock) -> None:
    for on_end in ("delete", "archive", "keep"):
        store.sessions.start(on_end, idle=60, on_end=on_end, retention=60).state["k"] = 1
    for counts in ((3, 0), (0, 2)):
        clock.now += HOUR
        found: list[Any] = []
        with interference(lambda found=found: found.append(store.sessions.collect())):  # type: ignore[misc]
            found.append(store.sessions.collect())
        assert (sum(each.ended for each in found), sum(each.forgotten for each in found)) == counts
    assert ids(store.sessions.list()) == ["keep"]
    assert store.sessions.get("keep").on_end == "keep"


def test_a_copy_of_the_store_knows_what_has_ended(store: Store) -> None:
    for on_end in ("delete", "archive", "keep"):
        with store.sessions.start(on_end, on_end=on_end) as session:
            session.state["k"] = 1
            store.state(session=on_end, agent="x")["b"] = 2
    store.maintenance.prune(kinds=["session", "scope", "system"], keep_last=1)
    copy = timed(Clock())
    assert store.maintenance.copy_to(copy).changing == ()
    for on_end in ("delete", "archive", "keep"):
        for scope in (copy.state(session=on_end), copy.state(session=on_end, agent="x")):
            with pytest.raises(DeniedError):
                scope["k"] = 3
    assert dict(copy.sessions.resume("archive").state) == {"k": 1}
    assert copy.state(session="archive", agent="x")["b"] == 2


def test_changes_in_a_session_share_a_correlation_id(store: Store) -> None:
    with store.sessions.start("s1", user="u", on_end="archive") as session:
        session.state["k"] = 1
        store.state(agent="elsewhere")["k"] = 1
        store.state(user="u", session="s1", tool="t")["k"] = 1
        with holdfast.correlation("request-7"):
            session.state["k"] = 2
    store.state(agent="elsewhere")["k"] = 2
    again = store.sessions.resume("s1")
    again.state["k"] = 3  # also outside of a block
    again.touch()
    store.transaction(lambda transaction: transaction.state(user="u", session="s1").set("k", 4))
    store.sessions.update("s1", {"a": 1})
    store.sessions.end("s1")
    found = [(record.kind, record.action, record.key) for record in store.audit.query(correlation="s1", limit=50)]
    assert sorted(found) == sorted(
        [
            ("session", "start", "s1"),
            *[("change", "set", "k")] * 5,
            *[("session", "end", "s1")] * 2,
            ("session", "restore", "s1"),
            ("session", "touch", "s1"),
            ("session", "update", "s1"),
        ]
    )
    assert [entry.correlation for entry in store.state(agent="elsewhere").history()][1:] == ["s1"]
    assert len(store.audit.query(correlation="request-7")) == 1
    other = store.sessions.start("s2")
    other.state["k"] = 1
    with store.transaction() as transaction:  # of two sessions, it is that of neither
        for id in ("s2", "s3"):
            transaction.state(session=id)["k"] = 2
    assert [entry.correlation == "s2" for entry in other.state.history()] == [False, True]


def test_a_session_may_be_entered_again(store: Store) -> None:
    session = store.sessions.start("s1", on_end="archive")
    for _ in range(2):
        with session:
            store.state(agent="a")["k"] = 1
        store.sessions.resume("s1")
    assert {entry.correlation for entry in store.state(agent="a").history()} == {"s1"}
