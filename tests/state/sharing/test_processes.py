"""Processes that share, and are killed while they do: nothing is lost, doubled or out of order."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice, pairwise
from pathlib import Path

import pytest

import holdfast
from holdfast.errors import RequestTimeoutError
from tests.agents.autosaved import patiently, timely
from tests.state.sharing.worker import LEASE, STAGES
from tests.support.kills import count_kill
from tests.support.nightly import mostly_nightly


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/store.db"


@contextmanager
def process(url: str, *how: str) -> Iterator[subprocess.Popen[str]]:
    """A process that takes part; killed at the end, if it has not ended by then."""
    command = [sys.executable, "-m", "tests.state.sharing.worker", url, *how]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        try:
            yield child
        finally:
            child.kill()


def line(child: subprocess.Popen[str]) -> str:
    """The next line that a process tells."""
    assert child.stdout is not None
    return child.stdout.readline().rstrip("\n")


@pytest.mark.nightly
def test_a_subscriber_that_is_killed_misses_nothing_and_gets_little_twice(url: str) -> None:
    count, kills = 0, 1
    with holdfast.open(url) as store:
        topic = store.sharing.topic("news")
        runs: list[list[int]] = []
        for kill in range(kills + 1):
            for _ in range(20 if kill else 60):  # there is more, also if the one before had got through all of it
                topic.publish(count)
                count += 1
            with process(url, "subscribe", "a", "none" if kill < kills else str(count - 1)) as child:
                assert line(child) == "ready"
                seen = [int(line(child)) for _ in range(20)] if kill < kills else []
                if kill < kills:
                    child.kill()
                assert child.stdout is not None
                runs.append(seen + [int(each) for each in child.stdout.read().split()])
        assert topic.subscribe("a").lag() == 0
    for one, other in pairwise(runs):
        # It goes on with the message that it had last, or with the one after it.
        assert other[0] in (one[-1], one[-1] + 1)
    assert all(run == list(range(run[0], run[-1] + 1)) for run in runs)
    assert (runs[0][0], runs[-1][-1]) == (0, count - 1)


@pytest.mark.nightly
def test_messages_of_many_processes_are_seen_by_all_in_one_order_within_a_second(url: str) -> None:
    with holdfast.open(url) as store:
        topic = store.sharing.topic("news")
        one, two = topic.subscribe("one"), topic.subscribe("two")

        def heard() -> None:
            with process(url, "publish", "x", "20") as x, process(url, "publish", "y", "20") as y:
                order, late = [], []
                for message in islice(one, 40):
                    order.append(message.value)
                    late.append(time.time() - message.time.timestamp())
                assert x.wait(60) == y.wait(60) == 0
            one.ack()
            assert [message.value for message in two.receive_many(timeout=0)] == order
            two.ack()
            assert [n for who, n in order if who == "x"] == [n for who, n in order if who == "y"] == list(range(20))
            timely(min(late[:4]) < 1, f"they were seen after {late[:4]} seconds")

        patiently(heard)


@pytest.mark.nightly
@pytest.mark.parametrize("rounds", [2, 6])
def test_workers_of_a_pipeline_are_killed_and_each_item_is_handed_on_once(url: str, rounds: int) -> None:
    count = 24
    with holdfast.open(url) as store:
        pipeline = store.sharing.pipeline("ingest", STAGES, tries=1000)
        ids = pipeline.put_many([number] for number in range(count))
        with process(url, "pipeline", str(count)) as steady:
            for number in range(rounds):
                with process(url, "pipeline", str(count)) as victim:
                    assert line(victim) == "ready"
                    time.sleep(0.05 * (number + 1))
            assert steady.wait(120) == 0
        results = pipeline.results()
        assert [(result.id, result.value) for result in results] == [
            (id, [number, *STAGES]) for number, id in enumerate(ids)
        ]
        stats = pipeline.stats()
        assert (sum(stats.waiting.values()), sum(stats.working.values()), stats.dead) == (0, 0, 0)
        # Each stage handed each item on once, whoever took it how often.
        done = store.audit.query(action="done", limit=1000)
        assert len(done) == count * len(STAGES)
        assert not store.maintenance.verify().findings


@pytest.mark.nightly
def test_a_responder_is_killed_and_another_answers(url: str) -> None:
    with holdfast.open(url) as store:
        requests = store.sharing.requests("planner")
        with process(url, "serve", "slow") as victim:
            assert line(victim) == "ready"
            id = requests.ask(21, timeout=60)
            assert id in line(victim)
            victim.kill()
            count_kill()
            with process(url, "serve", "quick"):
                assert requests.wait(id, timeout=60) == 42
                assert requests.call(4, timeout=60) == 8


def test_a_responder_is_killed_and_there_is_no_other(url: str) -> None:
    with holdfast.open(url) as store:
        requests = store.sharing.requests("planner")
        with process(url, "serve", "slow") as victim:
            assert line(victim) == "ready"
            id = requests.ask(1, timeout=60)
            assert id in line(victim)
        with pytest.raises(RequestTimeoutError) as caught:
            requests.wait(id, timeout=LEASE + 0.1)
        assert caught.value.code == "responder-died"


@pytest.mark.parametrize(("editors", "count"), mostly_nightly([(2, 8), (8, 4)], daily=[(2, 8)]))
def test_processes_edit_one_document_and_lose_no_edit(url: str, editors: int, count: int) -> None:
    with holdfast.open(url) as store:
        document = store.sharing.document("plan")
        document.save({"text": "", "list": [], "dict": {}, "count": 0}, 0)
        children = [process(url, "edit", f"e{number}", str(count)) for number in range(editors)]
        started = [child.__enter__() for child in children]
        try:
            assert [child.wait(120) for child in started] == [0] * editors
        finally:
            for child in children:
                child.__exit__(None, None, None)
        value = document.read().value
    marks = sorted(f"e{editor}-{number}" for editor in range(editors) for number in range(count))
    assert sorted(value["text"].splitlines()) == sorted(value["list"]) == sorted(value["dict"]) == marks
    assert value["count"] == editors * count
