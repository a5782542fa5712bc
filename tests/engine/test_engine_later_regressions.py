"""More of what once went wrong: deep values, equal keys, deleted threads, cancelled rewrites, signals, forks."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import subprocess
import sys
import threading
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.backends.interface import Backend
from holdfast.backends.runtime.drivers import arun, run
from holdfast.backends.sqlite.backend import SQLiteBackend
from holdfast.engine.context import EngineContext
from holdfast.engine.copy.within_store import LineCopier
from holdfast.engine.engine import Engine
from holdfast.engine.row_format import Line
from holdfast.errors import ConflictError, InvalidError, NotFoundError, TooDeepError
from holdfast.store.store import AsyncStore
from tests.engine.lines import Backends, Clock, store_on
from tests.engine.test_engine_regressions import stores
from tests.support.interference import InterferingBackend, Moment, at_every_moment


def nested(levels: int, value: Any) -> Any:
    return value if not levels else {"k": nested(levels - 1, value)}


@pytest.mark.parametrize("levels", [5, 12, 14, 15, 20, 44])
def test_deep_values_are_read_again(shared: Backend, levels: int) -> None:
    store = store_on(shared, fold_every=3)
    for n in range(5):
        store.thread("t").put({"a": nested(levels, {"i": n, "t": "x" * 300}), "l": [nested(levels, [n, "y" * 300])]})
    for n in range(5):
        state = store_on(shared).thread("t").get(at=n).state
        assert state == {"a": nested(levels, {"i": n, "t": "x" * 300}), "l": [nested(levels, [n, "y" * 300])]}


def test_a_part_that_would_be_too_deep_in_its_place_is_refused(shared: Backend) -> None:
    store = store_on(shared)
    store.thread("t").put({"a": nested(8, {})})
    with pytest.raises(TooDeepError):
        store.thread("t").update({("a", *"kkkkkkk", "v"): nested(45, 1)})
    with pytest.raises(InvalidError, match="a path has at most 10 keys, and this one 11"):
        store.thread("t").update({("a", *"kkkkkkkkkk"): 1})
    store.thread("t").update({("a", *"kkkkkkkk"): nested(20, 1)})
    assert store_on(shared).thread("t").get().state == {"a": nested(8, nested(20, 1))}


@pytest.mark.parametrize(
    "wrong",
    [
        lambda s: s.thread("t").update({}, remove=[("d", 1), ("d", True)]),
        lambda s: s.thread("t").update({("d", 1): 5, ("d", True, "x"): 1}),
        lambda s: s.thread("t").update({("d", 1.0): 5}, remove=[("d", True)]),
    ],
    ids=["removed twice", "set and changed", "set and removed"],
)
def test_equal_keys_are_one_place(shared: Backend, wrong: Any) -> None:
    store = store_on(shared)
    store.thread("t").put({"d": {1: {"q": 1}}})
    with pytest.raises(InvalidError, match="the same value is changed twice"):
        wrong(store)
    store.thread("t").update({("d", float("inf")): 1, ("d", 2**63): 2})
    assert store_on(shared).thread("t").get().state == {"d": {1: {"q": 1}, float("inf"): 1, 2**63: 2}}
    with pytest.raises(InvalidError, match="numbers of at most 64 bits"):
        store.thread("t").update({("d", 10**400): 2})


@pytest.mark.parametrize("again", [False, True], ids=["gone", "made anew"])
def test_writing_to_a_thread_that_another_deleted(shared: Backend, again: bool) -> None:
    one, other = stores(shared, fold_every=2)
    for n in range(5):
        other.thread("t").put({"x": n})
    one.thread("t").info()
    one.thread("t").get()
    other.thread("t").delete()
    if again:
        other.thread("t").put({"x": "new"})
    assert one.thread("t").put({"x": 2}).step == int(again)
    assert one.thread("t").update({"y": 1}).step == 1 + int(again)


@pytest.mark.parametrize(
    "use",
    [
        lambda store: store.thread("t").put({"v": 9}, id="9"),
        lambda store: store.thread("t").update({"w": 1}),
        lambda store: store.thread("t").put({"v": "again"}, id="3"),
        lambda store: store.thread("t").restore("3"),
        lambda store: store.thread("t").get(lazy=True).state["v"],
        lambda store: store.thread("t").get(datetime.now().astimezone()),
    ],
    ids=["put", "update", "revise", "restore", "lazy", "time"],
)
def test_using_a_thread_while_another_deletes_it(fresh: Backends, use: Any) -> None:
    def scenario(moment: Moment) -> None:
        backend = InterferingBackend(fresh())
        store, other = store_on(backend, cache_bytes=0, fold_every=2), store_on(backend.inner)
        for n in range(5):
            other.thread("t").put({"v": n}, id=str(n))
        with moment.interfere(backend, lambda: other.thread("t").delete()):
            try:
                use(store)
            except (NotFoundError, KeyError):  # the lazy state is a mapping
                assert not other.threads()
        cold = store_on(backend.inner)
        assert cold.maintenance.verify(level="decode").findings == []
        assert len(cold.thread("t").log()) <= 1 if moment.came else len(cold.thread("t").log()) >= 5

    at_every_moment(scenario, ["read"])


def test_with_no_cache_wrong_input_is_still_told(shared: Backend) -> None:
    store = store_on(shared, cache_bytes=0)
    store.thread("t").put({"v": 1})
    with pytest.raises(NotFoundError, match="no checkpoint with id 'nope'"):
        store.thread("t").put({}, parent="nope")
    with pytest.raises(NotFoundError, match="nothing to remove"):
        store.thread("t").update({}, remove=["nope"])


def test_the_same_in_another_form_is_no_change(shared: Backend) -> None:
    store = store_on(shared)
    store.thread("t").put({"d": {"a": 1}, "l": [1, 2]})
    last = store.thread("t").update({("d", "b"): 2, "l": []}, id="~")
    assert store.thread("t").put({"d": {"a": 1, "b": 2}, "l": []}, if_changed=True).id == last.id
    assert store.thread("t").update({("d", "b"): 2, "l": []}, id="~").branch == 0
    assert len(store.thread("t").branches()) == 1


def test_nothing_new_on_a_branch_without_steps(shared: Backend) -> None:
    store = store_on(shared)
    first = store.thread("t").put({"x": 1})
    store.thread("t").put({"x": 2})
    store.thread("t").fork("side", at=first.id)
    assert store.thread("t").put({"x": 1}, branch="side", if_changed=True).id == first.id
    assert store.thread("t").put({"x": 3}, branch="side", if_changed=True).parent == first.id


def test_an_id_again_on_its_branch(shared: Backend) -> None:
    store = store_on(shared)
    store.thread("t").put({"x": 1}, id="1")
    for _ in range(3):
        assert store.thread("t").put({"x": 2}, id="k", branch="main").step == 1
    assert len(store.thread("t").branches()) == 1


def test_names_that_the_parent_has(shared: Backend) -> None:
    store = store_on(shared)
    store.thread("t").put({"x": 1}, tag="best")
    store.thread("t").put({"x": 1}, tag="best", if_changed=True, labels=["again"])
    assert list(store.thread("t").labels()) == ["again"]
    store.thread("t").put({"x": 2})
    with pytest.raises(ConflictError, match="has the tag"):
        store.thread("t").put({"x": 2}, tag="best", if_changed=True)


def test_refusing_is_about_others_not_about_memory(shared: Backend) -> None:
    one, other = stores(shared)
    one.thread("t").put({"x": 1})
    other.thread("t").put({"x": 2})
    assert one.thread("t").get().state == {"x": 2}
    assert one.thread("t").put({"x": 3}, on_conflict="raise").step == 2


def test_steps_are_counted_along_a_branch(shared: Backend) -> None:
    store = store_on(shared)
    for n in range(5):
        store.thread("t").put({"n": n}, id=f"k{n}")
    times = [each.time for each in store.thread("t").log().all()]
    store.thread("t").put({"n": "new"}, id="k2")
    assert [store.thread("t").get(at=n).id for n in range(5)] == ["k0", "k1", "k2", "k3", "k4"]
    assert [each.step for each in store.thread("t").log().all()] == [4, 3, 2, 1, 0]
    assert [each.time for each in store.thread("t").log().all()] == times
    with pytest.raises(NotFoundError):
        store.thread("t").get(at=5)


@pytest.mark.parametrize(
    "use",
    [lambda store: store.thread("t").fork("f", "4"), lambda store: store.thread("t").tag("n", "4")],
    ids=["fork", "tag"],
)
def test_a_fork_or_tag_of_what_was_deleted_is_refused(fresh: Backends, use: Any) -> None:
    def scenario(moment: Moment) -> None:
        backend = InterferingBackend(fresh())
        store, other = store_on(backend), store_on(backend.inner)
        for n in range(5):
            other.thread("t").put({"n": n}, id=str(n))

        def anew() -> None:
            other.thread("t").delete()
            other.thread("t").put({"fresh": 1}, id="0")

        with moment.interfere(backend, anew):
            try:
                use(store)
            except NotFoundError:
                assert [each.id for each in other.thread("t").log().all()] == ["0"]
        assert [each.name for each in store.thread("t").branches()] == ["main"] or not moment.came
        assert not store.thread("t").tags() or not moment.came
        store.maintenance.compact("t")
        assert store.thread("t").get().state == ({"fresh": 1} if moment.came else {"n": 4})

    at_every_moment(scenario, at_least=1)


def test_a_cancelled_rewrite_leaves_no_lease(tmp_path: Path) -> None:
    backend = InterferingBackend(run(SQLiteBackend.open(f"sqlite:///{tmp_path}/x.db")))
    store = AsyncStore(Engine(EngineContext(backend)), "")
    cancelled = 0

    async def fill() -> None:
        for n in range(40):
            await store.thread("t").put({"n": n})

    async def go(moment: Moment) -> None:
        nonlocal cancelled
        task = asyncio.create_task(store.maintenance.compact("t"))
        with moment.interfere(backend, task.cancel):
            try:
                await task
            except asyncio.CancelledError:
                cancelled += 1
        await store.maintenance.compact("t")
        assert (await store.thread("t").get(at=17)).state == {"n": 17}

    asyncio.run(fill())
    at_every_moment(lambda moment: asyncio.run(go(moment)), ["any"], at_least=5)
    assert cancelled >= 5
    run(backend.close())


def test_a_cancelled_copy_of_several_lines_leaves_no_lease(tmp_path: Path) -> None:
    backend = InterferingBackend(run(SQLiteBackend.open(f"sqlite:///{tmp_path}/x.db")))
    store = AsyncStore(Engine(EngineContext(backend)), "")
    numbers, cancelled = itertools.count(), 0

    async def go(moment: Moment) -> None:
        nonlocal cancelled
        number = next(numbers)
        names = {Line("", f"{name}"): Line("", f"{name} {number}") for name in "ab"}
        task = asyncio.create_task(arun(LineCopier(store._engine).copy(names)))
        with moment.interfere(backend, task.cancel):
            try:
                await task
            except asyncio.CancelledError:
                cancelled += 1
        if not await store.threads(prefix=f"a {number}"):
            await arun(LineCopier(store._engine).copy(names))
        assert (await store.thread(f"b {number}").get()).state == {"n": 1}

    async def fill() -> None:
        for name in "ab":
            await store.thread(name).put({"n": 1})

    asyncio.run(fill())
    at_every_moment(lambda moment: asyncio.run(go(moment)), ["any"], at_least=5)
    assert cancelled >= 5
    run(backend.close())


def test_wrong_places_to_remove_and_to_save(tmp_path: Path) -> None:
    with holdfast.open("memory://") as store:
        store.thread("t").put({"plan": {"goal": 1}, "goal": 2})
        with pytest.raises(InvalidError, match=r"Give a list: remove=\[\('plan', 'goal'\)\]"):
            store.thread("t").update({}, remove=("plan", "goal"))
        store.thread("u").put({})
        with pytest.raises(InvalidError, match="belongs to thread 't'"):
            store.thread("u").get(store.thread("t").get())
        with pytest.raises(InvalidError, match="too far away"):
            store.thread("t").get(at=datetime.min)
    with pytest.raises(holdfast.errors.InvalidError, match="async with"), holdfast.aopen("memory://"):
        pass


HANDLER = """
import os, signal, sys, threading, time, holdfast
store = holdfast.open(sys.argv[1])
errors, inside = [], []
def handler(*_):
    if inside:  # on a slow machine the next signal comes before this one is done with
        return
    inside.append(True)
    try:
        store.thread("from the handler").put({"n": 1})
    except holdfast.errors.UnavailableError as error:
        errors.append(str(error))
    finally:
        inside.clear()
signal.signal(signal.SIGUSR1, handler)
stop = threading.Event()
def pester():
    while not stop.is_set():
        os.kill(os.getpid(), signal.SIGUSR1)
        time.sleep(0.0007)
threading.Thread(target=pester, daemon=True).start()
for n in range(300):
    store.thread("t").put({"n": n})
stop.set()
assert store.thread("t").get().state == {"n": 299}
assert all("In a signal handler only record the signal" in error for error in errors)
print("done", bool(errors))
"""


@pytest.mark.skipif(not hasattr(signal, "SIGUSR1"), reason="no such signal here")
def test_saving_in_a_signal_handler_does_not_hang(tmp_path: Path) -> None:
    command = [sys.executable, "-c", HANDLER, f"sqlite:///{tmp_path}/x.db"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout == "done True\n", done.stderr


ANY_LINE = """
import sys, threading, holdfast
from holdfast.backends.runtime import group_commit
from holdfast.backends.sqlite import connections
from holdfast.engine import append_queue
files = {module.__file__ for module in (group_commit, connections, append_queue)}
store = holdfast.open(sys.argv[1])
store.thread("t").put({"n": -1})
saved = refused = 0
def save_at(number, thread):
    global saved, refused
    lines = 0
    def line(frame, event, _):
        nonlocal lines
        if event == "line":
            lines += 1
            if lines == number:
                handler()
        return line
    def call(frame, event, _):
        return line if frame.f_code.co_filename in files else None
    def handler():
        global saved, refused
        sys.settrace(None)
        try:
            store.thread(thread).put({"from the handler": number})
            saved += 1
        except holdfast.errors.UnavailableError as error:
            assert "In a signal handler only record the signal" in str(error), error
            refused += 1
    sys.settrace(call)
    store.thread("t").put({"n": number})
    sys.settrace(None)
    assert store.thread("t").get().state in ({"n": number}, {"from the handler": number})
    return lines >= number
for thread in ("t", "u"):
    number = 1
    while save_at(number, thread):
        number += 1
print(saved > 20, refused > 10)
"""


@pytest.mark.nightly
def test_saving_at_any_line_of_a_save_does_not_hang(tmp_path: Path) -> None:
    """As in a signal handler, which may run between any two of them."""
    command = [sys.executable, "-X", "faulthandler", "-c", ANY_LINE, f"sqlite:///{tmp_path}/x.db"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout == "True True\n", done.stderr


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_locks_are_renewed_in_a_forked_child() -> None:
    with holdfast.open("memory://") as store:
        store.thread("t").put({"n": 1})
        cache, memory = store._engine.context.cache, store._engine.context.stored
        held = threading.Event()
        done = threading.Event()

        def hold() -> None:
            with cache._lock, memory._lock:  # type: ignore[attr-defined]
                held.set()
                done.wait(120)

        thread = threading.Thread(target=hold)
        thread.start()
        assert held.wait(120)
        child = os.fork()
        if child == 0:  # pragma: no cover - in the child
            signal.alarm(120)
            os._exit(0 if store.thread("t").get().state == {"n": 1} else 1)
        done.set()
        thread.join()
        assert os.waitpid(child, 0)[1] == 0


def test_agents_with_slots_are_saved() -> None:
    class Agent(holdfast.savers.CheckpointableMixin):
        __slots__ = ("_secret", "notes")

        def __init__(self) -> None:
            self.notes = ["a"]
            self._secret = 1

    with holdfast.open("memory://") as store:
        agent = Agent().attach(store, "t")
        agent.checkpoint()
        agent.notes.append("b")
        agent.restore()
        assert agent.notes == ["a"]


def test_autosaves_that_are_set_up_wrongly() -> None:
    with holdfast.open("memory://") as store:
        for wrong in (
            lambda: holdfast.savers.EveryStep("3"),  # type: ignore[arg-type]
            lambda: holdfast.savers.Interval(float("nan")),
            lambda: holdfast.savers.OnEvent(["a"]),  # type: ignore[arg-type]
            lambda: holdfast.savers.AutoCheckpointer(store, "t", {}),  # type: ignore[arg-type]
            lambda: holdfast.savers.AutoCheckpointer(store, "t", dict, holdfast.savers.EveryStep),  # type: ignore[arg-type]
            lambda: holdfast.savers.AsyncAutoCheckpointer(store, "t", dict),  # type: ignore[arg-type]
        ):
            with pytest.raises((holdfast.errors.ConfigError, InvalidError)):
                wrong()
        with pytest.raises(InvalidError, match="pair of channel and value"):
            holdfast.savers.Checkpointer(store).put_writes("t", "1", [("a", 1, 2)], task_id="x")  # type: ignore[list-item]


def test_clock_that_goes_backwards(shared: Backend) -> None:
    clock = Clock()
    store = store_on(shared, clock=clock)
    for n in range(5):
        store.thread("t").put({"n": n})
        clock.now -= 10**9
    log = list(store.thread("t").log().all())
    assert [each.step for each in log] == [4, 3, 2, 1, 0]
    assert len({each.time for each in log}) == 1
