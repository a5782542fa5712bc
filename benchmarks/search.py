"""Text search over many messages: how long the first page takes.

    python -m benchmarks.search [--messages 1000000] [--url sqlite:////tmp/search.db]

Builds a store of threads of 1,000 messages, several of them a step, with an index of words that grows as the steps are
saved. Then it asks for frequent words, rare ones, phrases and starts of words, and prints how long the first page of
each takes: the median, and the slowest, of many. A store that is there already is not filled again.
"""

from __future__ import annotations

import argparse
import random
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import holdfast
from benchmarks.measure import Figure, Result
from holdfast.errors import UnsupportedError
from holdfast.history.search import SearchPage

MESSAGES = 1_000_000
PER_THREAD, PER_STEP = 1_000, 25
ROUNDS = 20
MOST = 200
"""How many milliseconds the first page may take."""

SYLLABLES = ("ka", "to", "mi", "re", "sol", "ban", "ter", "qui", "lo", "ne", "ar", "ven", "dis", "pro", "un", "ex")


def vocabulary(size: int, source: random.Random) -> list[str]:
    """Distinct made-up words."""
    words: dict[str, None] = {}
    while len(words) < size:
        words["".join(source.choices(SYLLABLES, k=source.randint(2, 4)))] = None
    return list(words)


def build(store: holdfast.Store, messages: int, words: list[str], source: random.Random) -> None:
    """Fill a store. Words are as frequent as in a language: the n-th has 1/n of the first one's share."""
    shares = [1 / (place + 1) for place in range(len(words))]
    drawn = source.choices(words, shares, k=400_000)
    store.maintenance.build_index()
    for thread in range(messages // PER_THREAD):
        talk: list[dict[str, str]] = []
        with store.transaction() as together:
            for step in range(PER_THREAD // PER_STEP):
                for number in range(PER_STEP):
                    start = source.randrange(len(drawn) - 60)
                    said = " ".join(drawn[start : start + source.randint(10, 60)])
                    if number == 0:
                        said += f" order{thread}x{step}"
                    talk.append({"role": "user" if number % 2 else "assistant", "content": said})
                together.put(f"thread-{thread:05}", {"messages": talk})


def timed(store: holdfast.Store, query: str) -> tuple[list[float], SearchPage]:
    """How long the first page takes, in milliseconds, and what is on it."""
    took, page = [], store.search(query, limit=20)
    for _ in range(ROUNDS):
        start = time.perf_counter()
        page = store.search(query, limit=20)
        took.append((time.perf_counter() - start) * 1000)
    return took, page


def searched(store: holdfast.Store, messages: int) -> Iterator[Figure]:
    """Fill a store, if it is empty, and time each kind of search in it."""
    source = random.Random(11)
    words = vocabulary(20_000, source)
    if not store.threads(limit=1):
        build(store, messages, words, source)
    last = messages // PER_THREAD - 1
    queries = {
        "frequent word": words[0],
        "two frequent words": f"{words[0]} {words[1]}",
        "medium word": words[300],
        "rare word": words[-1],
        "one in all": f"order{last // 2}x7",
        "phrase": f'"{words[0]} {words[1]} {words[2]}"',
        "start of words": f"{words[40][:4]}*",
        "start of two letters": f"{words[40][:2]}*",
        "of one role": f"{words[20]} role:human",
        "in one thread": f"{words[5]} thread:thread-{last // 2:05}",
        "one of two": f"{words[-1]} OR order{last // 3}x3",
        "nothing": "unheardof",
    }
    for name, query in queries.items():
        took, page = timed(store, query)
        note = f"at most {max(took):.1f}; {len(page)} matches, {page.examined} examined, by {page.how}"
        yield Figure(f"search of {messages:,} messages: {name}", statistics.median(took), "ms", ceiling=MOST, note=note)


def searching_a_million_messages() -> Result:
    """The first page of searches in 1,000,000 messages, on SQLite"""
    with tempfile.TemporaryDirectory() as folder, holdfast.open(f"sqlite:///{Path(folder)}/search.db") as store:
        return Result(list(searched(store, MESSAGES)))


CASES = (searching_a_million_messages,)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=MESSAGES)
    parser.add_argument("--url", default="")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        url = options.url or f"sqlite:///{Path(folder)}/search.db"
        with holdfast.open(url) as store:
            if not store._engine.context.backend.capabilities.words:
                raise UnsupportedError("this store keeps no index of words", where=url)
            for figure in searched(store, options.messages):
                print(f"{figure.name:50} {figure.value:8.1f} ms ({figure.note})")


if __name__ == "__main__":
    main()
