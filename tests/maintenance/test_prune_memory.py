"""Pruning takes little memory: many threads, or one very long one, and somebody who writes meanwhile."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import pytest

import holdfast
from benchmarks.prune import pruned
from tests.support.nightly import mostly_nightly

LONG = """
import sys, tracemalloc
import holdfast

steps, cache_bytes = map(int, sys.argv[2:])
with holdfast.open(sys.argv[1], cache_bytes=cache_bytes) as store:
    store.maintenance.prune(keep_last=1, threads="short")  # so that everything is loaded
    tracemalloc.start()
    for rules in ({"keep_last": steps * 5 // 6}, {"keep_where": "meta.n:7"}):
        for dry_run in (True, False):
            tracemalloc.reset_peak()
            report = store.maintenance.prune(threads="long", dry_run=dry_run, each=lambda thread: None, **rules)
            print(report.dropped, tracemalloc.get_traced_memory()[1])
"""


@pytest.mark.nightly
def test_many_threads_with_a_writer(tmp_path: Path) -> None:
    found = pruned(30, 60, 20, tmp_path)
    assert found["dropped"] >= 30 * 40
    assert (found["errors"], found["problems"]) == (0, 0)
    assert found["appended"] > 0
    assert found["rss"] < 200e6


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("steps", "size", "cache_bytes"),
    mostly_nightly([(150, 16_000, 256 << 10), (1500, 8000, 4 << 20)], daily=[(150, 16_000, 256 << 10)]),
)
def test_a_long_thread_does_not_need_all_its_bodies(tmp_path: Path, steps: int, size: int, cache_bytes: int) -> None:
    url = f"sqlite:///{tmp_path}/store.db"
    bodies, chance = 0, random.Random(0)
    with holdfast.open(url) as store:
        store.thread("short").put({})
        for start in range(0, steps, steps // 6):
            with store.transaction() as together:
                for n in range(start, start + steps // 6):
                    text = chance.randbytes(size).hex()
                    bodies += len(text)
                    together.put("long", {"text": text, "n": n}, metadata={"n": n % 10})
    assert bodies == 2 * steps * size
    command = [sys.executable, "-c", LONG, url, str(steps), str(cache_bytes)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    figures = [tuple(map(int, line.split())) for line in done.stdout.splitlines()]
    assert [dropped for dropped, _ in figures] == [steps // 6] * 2 + [steps * 3 // 4 - 1] * 2
    assert max(peak for _, peak in figures) < bodies * 3 / 4, figures


@pytest.mark.torture
def test_a_thousand_threads(tmp_path: Path) -> None:
    found = pruned(1000, 200, 100, tmp_path)
    assert (found["errors"], found["problems"]) == (0, 0)
    assert found["rss"] < 200e6
