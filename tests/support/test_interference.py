"""The helper for interference itself: a test in which it never strikes must fail."""

from __future__ import annotations

from contextlib import suppress

import pytest

from holdfast.errors import ConflictError, NotFoundError
from tests.store.stores import over
from tests.support import interference
from tests.support.interference import InterferingBackend, Moment, at_every_moment


def test_an_interference_that_never_strikes_is_a_failure() -> None:
    backend = InterferingBackend()
    store = over(backend)
    with pytest.raises(AssertionError, match="ended before the apply"), backend.interfere(lambda: None):
        store.threads()
    with pytest.raises(AssertionError, match="ended before the apply"), backend.interfere(lambda: None, at=5):
        store.thread("none").get()
    with pytest.raises(AssertionError, match="interfered 1 times, not 2"), backend.interfere(lambda: None, times=2):
        store.thread("t").put({"n": 1})


def test_one_at_a_time() -> None:
    backend = InterferingBackend()
    with (
        pytest.raises(AssertionError, match="one interference at a time"),
        backend.interfere(lambda: None),
        backend.interfere(lambda: None),
    ):
        pass


def test_the_second_party_must_not_fail() -> None:
    backend = InterferingBackend()
    store, other = over(backend), over(backend)
    with (
        pytest.raises(AssertionError, match="the interference itself failed"),
        backend.interfere(lambda: other.thread("none").get()),
        suppress(NotFoundError),
    ):
        store.thread("t").put({"n": 1})
    with (
        pytest.raises(NotFoundError),
        backend.interfere(lambda: other.thread("none").get(), allowed=(NotFoundError,)),
    ):
        store.thread("t").put({"n": 1})


def test_its_own_calls_do_not_count_and_nothing_strikes_afterwards() -> None:
    backend = InterferingBackend()
    store, other = over(backend), over(backend)
    store.thread("t").put({"n": 0})
    with backend.interfere(lambda: other.thread("t").put({"n": "theirs"}), times=None) as theirs:
        store.threads()
        for _ in range(2):
            with pytest.raises(ConflictError):
                store.thread("t").put({"n": 1}, on_conflict="raise")
    store.thread("t").put({"n": 2})
    assert theirs.struck == 2
    assert [each.step for each in store.thread("t").log().all()] == [3, 2, 1, 0]


def test_a_sweep_has_every_moment_and_ends() -> None:
    moments: list[tuple[str, int, bool]] = []

    def scenario(moment: Moment) -> None:
        backend = InterferingBackend()
        store = over(backend, cache_bytes=0)
        store.thread("t").put({"n": 1})
        before = backend.reads, len(backend.batches)
        with moment.interfere(backend, lambda: None):
            store.thread("t").put({"n": 2})
        calls = backend.reads - before[0] if moment.kind == "read" else len(backend.batches) - before[1]
        assert moment.came == (moment.at < calls)
        moments.append((moment.kind, moment.at, moment.came))

    counts = at_every_moment(scenario)
    assert moments == [(kind, at, at < count) for kind, count in counts.items() for at in range(count + 1)]
    assert min(counts.values()) >= 1


def test_a_sweep_fails_with_its_moment_or_if_it_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def reads(moment: Moment) -> None:
        backend = InterferingBackend()
        with moment.interfere(backend, lambda: None):
            over(backend).threads()
        assert moment.kind == "read" or not moment.came

    with pytest.raises(AssertionError, match=r"interfered before 0 calls \(apply\)"):
        at_every_moment(reads)
    with pytest.raises(AssertionError, match="no operation to interfere with"):
        at_every_moment(lambda _: None)

    def fails(moment: Moment) -> None:
        reads(moment)
        raise ValueError

    with pytest.raises(ValueError) as caught:  # noqa: PT011 - the note is what matters
        at_every_moment(fails, ["read"])
    assert caught.value.__notes__ == ["with interference before read number 0 (from 0)"]

    def endless(moment: Moment) -> None:
        backend = InterferingBackend()
        with moment.interfere(backend, lambda: None):
            for _ in range(moment.at + 1):
                over(backend).threads()

    monkeypatch.setattr(interference, "MOST_MOMENTS", 10)
    with pytest.raises(AssertionError, match="ever more calls"):
        at_every_moment(endless, ["read"])
