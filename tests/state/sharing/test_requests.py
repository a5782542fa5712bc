"""Requests: each is answered once, by one who lives, or whoever asked is told why not."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import pytest

from holdfast.backends.runtime.drivers import run
from holdfast.backends.runtime.heartbeat import BeatThread, Heartbeat
from holdfast.engine.trace_context import correlation, current
from holdfast.errors import (
    ConflictError,
    HandlerError,
    InvalidError,
    NotFoundError,
    RequestTimeoutError,
    TransientError,
)
from holdfast.state.reader import read_scope
from holdfast.state.sharing.requests import RequestsOperations
from holdfast.state.sharing.work_queue import HandlerCall
from holdfast.store.store import Store
from tests.state.kit import Beats, Clock, awaited


def keys(store: Store, name: str = "planner") -> list[str]:
    requests = store.sharing.requests(name)
    return run(read_scope(store._handle, requests._resource.name, lambda view: view.keys()))


def test_a_call_is_answered(store: Store) -> None:
    requests = store.sharing.requests("planner")
    thread = threading.Thread(target=lambda: requests.serve(lambda value: [value, "!"], limit=3))
    thread.start()
    assert [requests.call({"n": number}, timeout=60) for number in range(3)] == [[{"n": n}, "!"] for n in range(3)]
    thread.join()


def test_requests_are_answered_in_the_order_of_asking(store: Store) -> None:
    requests = store.sharing.requests("planner")
    ids = [requests.ask(number) for number in range(5)]
    assert requests.pending() == 5
    assert requests.serve(lambda value: value * 2, timeout=0) == 5
    assert [requests.wait(id) for id in ids] == [0, 2, 4, 6, 8]
    assert requests.wait(ids[0]) == 0  # one that asked and was started anew can look again
    assert requests.pending() == 0


def test_an_error_is_carried_as_data(store: Store) -> None:
    requests = store.sharing.requests("planner")

    class Strange(Exception):
        pass

    def handler(value: Any) -> Any:
        if value == "raise":
            raise Strange("no such plan")
        return threading.Lock()  # cannot be stored

    ids = [requests.ask("raise"), requests.ask("lock")]
    assert requests.serve(handler, timeout=0) == 2
    with pytest.raises(HandlerError, match="no such plan") as caught:
        requests.wait(ids[0])
    assert caught.value.kind.endswith("Strange")
    assert caught.value.message == "no such plan"
    assert type(caught.value) is HandlerError
    with pytest.raises(HandlerError) as caught:
        requests.wait(ids[1])
    assert caught.value.kind == "UnsupportedError"
    id = requests.ask(1)
    request = requests.take()
    assert request is not None
    requests.fail(request, "just so")
    with pytest.raises(HandlerError, match="an error: just so"):
        requests.wait(id)


def test_nobody_answers(store: Store) -> None:
    requests = store.sharing.requests("planner")
    with pytest.raises(RequestTimeoutError) as caught:
        requests.call(1, timeout=0.01)
    assert caught.value.code == "no-responder"
    assert isinstance(caught.value, TimeoutError)
    # It is cancelled, and not served afterwards.
    assert requests.take() is None
    assert [key for key in keys(store) if not key.startswith("end/")] == []


def test_one_who_is_too_slow(store: Store) -> None:
    requests = store.sharing.requests("planner")
    id = requests.ask(1)
    request = requests.take()
    assert request is not None
    with pytest.raises(RequestTimeoutError, match="did not answer in time") as caught:
        requests.wait(id, timeout=0)
    assert caught.value.code == "unanswered"
    with pytest.raises(ConflictError) as refused:
        requests.answer(request, "late")
    assert refused.value.code == "lease-lost"
    with pytest.raises(NotFoundError):
        requests.wait(id)


def test_one_who_died_is_replaced_and_its_answer_refused(store: Store, clock: Clock) -> None:
    requests = store.sharing.requests("planner")
    id = requests.ask(1, timeout=100)
    dead = requests.take(lease=10)
    assert dead is not None
    assert requests.take() is None
    clock.sleep(9)
    requests.extend(dead, 10)
    clock.sleep(9)
    assert requests.take() is None
    clock.sleep(1)
    other = requests.take()
    assert other is not None
    assert (other.id, other.tries, dead.tries) == (dead.id, 2, 1)
    with pytest.raises(ConflictError) as refused:
        requests.answer(dead, "late")
    assert refused.value.code == "lease-lost"
    with pytest.raises(ConflictError) as refused:
        requests.extend(dead)
    assert refused.value.code == "lease-lost"
    requests.answer(other, "in time")
    with pytest.raises(ConflictError):
        requests.answer(other, "twice")
    assert requests.wait(id) == "in time"


def test_one_who_died_and_nobody_else(store: Store, clock: Clock) -> None:
    requests = store.sharing.requests("planner")
    id = requests.ask(1, timeout=100)
    assert requests.take(lease=10) is not None
    clock.sleep(11)
    with pytest.raises(RequestTimeoutError) as caught:
        requests.wait(id, timeout=0)
    assert caught.value.code == "responder-died"


def test_requests_past_their_time_are_not_handed_out(store: Store, clock: Clock) -> None:
    requests = store.sharing.requests("planner")
    for number in range(20):
        requests.ask(number, timeout=1 if number < 19 else 100)
    clock.sleep(2)
    request = requests.take()
    assert request is not None
    assert request.value == 19
    assert "Request" in repr(request)


def test_what_is_over_goes_by_itself(store: Store, clock: Clock) -> None:
    requests = store.sharing.requests("planner")
    for _ in range(6):
        for _ in range(5):
            requests.ask(0, timeout=1)
        requests.serve(str, timeout=0, limit=3)
        clock.sleep(90)
    requests.ask(1)
    requests.ask(1)
    assert len(keys(store)) <= 6


def test_cancelling(store: Store) -> None:
    requests = store.sharing.requests("planner")
    id = requests.ask(1)
    assert requests.cancel(id)
    assert not requests.cancel(id)
    assert requests.take() is None
    answered = requests.ask(2)
    requests.serve(str, timeout=0)
    assert not requests.cancel(answered)
    assert requests.wait(answered) == "2"
    # A handler whose request was cancelled meanwhile answers nobody, and the next one is served.
    ids = [requests.ask(1), requests.ask(2)]
    assert requests.serve(lambda value: requests.cancel(ids[0]) and value, timeout=0) == 1


def test_an_answer_that_comes_with_the_deadline_is_not_lost(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    requests = store.sharing.requests("planner")
    id = requests.ask(1)
    looked = requests._find_answer

    async def just_missed(id: str) -> Any:
        found = await looked(id)
        request = await RequestsOperations.take(requests)
        assert request is not None
        await RequestsOperations.answer(requests, request, "now")
        return found

    monkeypatch.setattr(requests, "_find_answer", just_missed)
    assert requests.wait(id, timeout=0) == "now"


def test_a_handler_runs_with_the_request_as_its_cause(store: Store) -> None:
    requests, seen = store.sharing.requests("planner"), list[Any]()
    with correlation("run-7"):
        id = requests.ask(1)
    requests.serve(lambda _: seen.append(current()), timeout=0)
    assert [(trace.correlation, trace.cause) for trace in seen] == [("run-7", id)]


def test_a_handler_at_work_for_long_gives_signs_of_life(
    store: Store, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests = store.sharing.requests("planner")
    id = requests.ask(1)
    beats = Beats(monkeypatch)

    def slow(value: int) -> str:
        for _ in range(3):
            clock.sleep(0.02)
            beats.wait()
        assert requests.take() is None  # it would be another's by now
        return "done"

    assert requests.serve(slow, lease=0.03, timeout=0) == 1
    assert requests.wait(id) == "done"


def test_hearts_go_on_after_a_failure_that_passes_and_stop_after_one_that_does_not() -> None:
    beats, ended = list[int](), threading.Event()

    async def beat() -> None:
        beats.append(len(beats))
        if len(beats) == 1:
            raise TransientError("once")
        if len(beats) == 3:
            ended.set()
            raise ConflictError("gone")

    def handler(_: object) -> None:
        assert ended.wait(60)
        time.sleep(0.02)

    HandlerCall(handler, None, Heartbeat(BeatThread(), 0.006, beat)).wait()
    assert beats == [0, 1, 2]

    async def async_handler(_: object) -> None:
        while len(beats) < 3:
            await asyncio.sleep(0.002)
        await asyncio.sleep(0.02)

    async def main() -> None:
        beats.clear()
        await HandlerCall(async_handler, None, Heartbeat(BeatThread(), 0.006, beat)).watch()
        assert beats == [0, 1, 2]

    asyncio.run(main())


def test_for_asyncio(store: Store) -> None:
    async def main() -> None:
        requests = awaited(store).sharing.requests("planner")
        seen: list[Any] = []

        async def handler(value: Any) -> Any:
            seen.append(current().cause)
            await asyncio.sleep(0.01)
            if value == "bad":
                raise ValueError("bad")
            return value

        server = asyncio.create_task(requests.serve(handler, lease=0.009, limit=3))
        assert await asyncio.gather(*(requests.call(number, timeout=60) for number in range(2))) == [0, 1]
        with pytest.raises(HandlerError, match="bad"):
            await requests.call("bad", timeout=60)
        assert await server == 3
        assert len(set(seen)) == 3
        assert await requests.serve(handler, timeout=0) == 0
        with pytest.raises(RequestTimeoutError):
            await requests.call(1, timeout=0)

    asyncio.run(main())


def test_bad_arguments(store: Store) -> None:
    requests = store.sharing.requests("planner")
    for id in ("", "a/b", 3):
        with pytest.raises(InvalidError):
            requests.wait(id)  # type: ignore[arg-type]
    with pytest.raises(InvalidError, match="lease"):
        requests.take(lease=0)
    with pytest.raises(InvalidError, match="timeout"):
        requests.call(1, timeout=-1)
    requests.ask(1)
    request = requests.take()
    assert request is not None
    with pytest.raises(InvalidError, match="take"):
        store.sharing.requests("other").answer(request, 1)
    assert "planner" in repr(requests)
    assert str(requests.scope) == "custom:requests%2Fplanner"


def test_another_conflict_is_not_taken_for_a_lost_lease(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    requests = store.sharing.requests("planner")
    requests.ask(1)

    async def refused(*_: Any) -> None:
        raise ConflictError("others were first 1000 times")

    monkeypatch.setattr(requests, "_answer", refused)
    with pytest.raises(ConflictError, match="1000"):
        requests.serve(str, timeout=0)
