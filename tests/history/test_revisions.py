"""Revisions: `HEAD~2`, `draft@{2h}`, abbreviated ids."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import holdfast
from holdfast.backends.interface import Delete, Put, Row
from holdfast.backends.memory import MemoryBackend
from holdfast.backends.runtime.drivers import run
from holdfast.backends.runtime.memory_cache import MemoryCache
from holdfast.backends.tables import STEPS
from holdfast.engine.branch_graph import BranchGraph, Position
from holdfast.engine.context import EngineContext
from holdfast.engine.engine import Engine
from holdfast.engine.row_format import Branch
from holdfast.engine.types import to_time
from holdfast.errors import CorruptError, InvalidError, NotFoundError
from holdfast.history.revisions import find_step
from holdfast.store.store import Store
from tests.support.counting import CountingBackend
from tests.support.nightly import examples

HOUR = 3600 * 10**9
START = 1_700_000_000 * 10**9


class Clock:
    """An hour passes with each look at it, unless it stands still."""

    def __init__(self) -> None:
        self.now = START
        self.runs = True

    def __call__(self) -> int:
        self.now += HOUR * self.runs
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store(clock: Clock) -> Iterator[Store]:
    """Main with ten checkpoints, `draft` from the sixth with three, `twig` from draft's second with two, all by hour;
    the fourth of main has a name."""
    store = Store(Engine(EngineContext(MemoryBackend(), MemoryCache(1 << 20), clock=clock)), "")
    for n in range(10):
        store.thread("t").put({"n": n}, id=f"{n}abc-{n}")
    store.thread("t").fork("draft", at="5abc-5")
    for n in range(3):
        store.thread("t").put({"draft": n}, branch="draft", id=f"draft-{n}")
    store.thread("t").fork("twig", at="draft-1")
    for n in range(2):
        store.thread("t").put({"twig": n}, branch="twig", id=f"twig-{n}")
    store.thread("t").tag("gold", "3abc-3")
    clock.runs = False
    yield store
    store.close()


REVISIONS: list[tuple[str, str]] = [
    ("HEAD", "9abc-9"),
    ("@", "9abc-9"),
    ("HEAD~", "8abc-8"),
    ("~1", "8abc-8"),
    ("HEAD~9", "0abc-0"),
    ("twig", "twig-1"),
    ("twig~", "twig-0"),
    ("twig~2", "draft-1"),
    ("twig^^^", "draft-0"),
    ("twig~3^0~0", "draft-0"),
    ("twig~4", "5abc-5"),
    ("twig~9", "0abc-0"),
    ("main", "9abc-9"),
    ("main^", "8abc-8"),
    ("draft", "draft-2"),
    ("draft~3", "5abc-5"),
    ("#3", "3abc-3"),
    ("main#9", "9abc-9"),
    ("twig#3", "3abc-3"),
    ("twig#7", "draft-1"),
    ("twig#8", "twig-0"),
    ("HEAD#6~1", "5abc-5"),
    ("gold", "3abc-3"),
    ("gold~3", "0abc-0"),
    ("3abc-3", "3abc-3"),
    ("3abc", "3abc-3"),
    ("3abc~1", "2abc-2"),
    ("twig-1^", "twig-0"),
]


def test_revisions(store: Store, subtests: pytest.Subtests) -> None:
    for revision, id in REVISIONS:
        with subtests.test(revision=revision):
            assert store.thread("t").find(revision).id == id
            found = store.thread("t").get(at=revision)
            assert (found.id, found.state) == (id, store.thread("t").get(id).state)


def test_times(store: Store) -> None:
    for n in range(10):
        point = store.thread("t").get(at=f"main#{n}")
        back = (START + 10 * 24 * HOUR - to_time(point.time) + 999) // HOUR
        store._engine.context.clock.now = START + 10 * 24 * HOUR  # type: ignore[attr-defined]
        for text in (f"{back}h", f"{back} hours ago", point.time.isoformat()):
            assert store.thread("t").find(f"main@{{{text}}}").id == point.id
            assert store.thread("t").find(f"gold@{{{text}}}").id == f"{min(n, 3)}abc-{min(n, 3)}"
            assert (
                store.thread("t").find(f"@{{{text}}}").id == point.id == store.thread("t").find(f"HEAD@{{{text}}}").id
            )
            assert store.thread("t").find(f"twig@{{{text}}}").step == min(n, 5)
    assert store.thread("t").find("twig@{now}").id == "twig-1"
    assert store.thread("t").find("@{now}").id == store.thread("t").find("main@{now}").id == "9abc-9"
    assert store.thread("t").find("draft@{now}~1").id == "draft-1"
    for text in ("@{1y}", "twig@{1y}"):
        with pytest.raises(NotFoundError, match="no checkpoint at or before that time"):
            store.thread("t").find(text)


def test_times_after_the_clock_was_set_back(store: Store, clock: Clock) -> None:
    thread, year = store.thread("t"), 365 * 24 * HOUR
    assert thread.find("@{now}").id == "9abc-9"
    clock.now -= year
    for text in ("twig@{now}", "twig@{0s}"):
        assert thread.find(text).id == "twig-1"
    for text in ("@{now}", "HEAD@{now}", "@{0s}", "main@{now}"):
        assert thread.find(text).id == "9abc-9"
    assert thread.find("main@{1h}").id == "8abc-8"  # an hour before the last one
    store.thread("t").put({"n": 10}, id="yabc")
    assert thread.find("@{now}").id == thread.find("main@{now}").id == "yabc"
    for n in range(2):
        store.thread("plain").put({"n": n}, id=f"p{n}")
        clock.now -= year
        for text in ("@{now}", "HEAD@{now}", "@{0s}", "main@{now}"):  # of the thread, which was never forked
            assert store.thread("plain").find(text).id == f"p{n}"
    with pytest.raises(NotFoundError, match="no checkpoint at or before that time"):
        thread.find("@{2y}")


WRONG: list[tuple[str, type[Exception], str]] = [
    ("", InvalidError, "cannot be empty"),
    ("nope", NotFoundError, "'nope'"),
    ("drat", NotFoundError, "Did you mean 'draft'"),
    ("glod", NotFoundError, "Did you mean 'gold'"),
    ("head", NotFoundError, "no checkpoint has the id or the tag 'head'"),
    ("main~10", NotFoundError, "only 9 checkpoints before 'main' .*column 5"),
    ("~99", NotFoundError, "only 9 checkpoints before 'HEAD'"),
    ("#10", NotFoundError, "'HEAD' has the steps 0 to 9, but no step 10"),
    ("draft#9", NotFoundError, "'draft' has the steps 0 to 8, but no step 9 .*column 6"),
    ("main#", InvalidError, "the number of a step is missing .*column 5"),
    ("HEAD~x", InvalidError, "'~x' is not a suffix.*column 5"),
    ("gold~1~y", InvalidError, "'~1~y' is not a suffix"),
    ("HEAD@{2h", InvalidError, "'@{2h' is not a suffix"),
    ("main@{when}", InvalidError, "'when' is not a time .*column 7"),
    ("HEAD^2", NotFoundError, "has 1 parent, but no number 2"),
    ("0abc-0^2", NotFoundError, "has 0 parents"),
    ("dra", NotFoundError, "Did you mean 'draft'"),
    ("twi~1", NotFoundError, "Did you mean 'twig'"),
    ("twig-", InvalidError, r"several ids start with 'twig-': twig-0 \(save, 2023-\d\d-\d\d .*twig-1 .*Write more"),
    ("3ab", NotFoundError, "has 4 characters or more"),
    ("7", NotFoundError, "Step 7 is '#7'"),
    ("14:05", NotFoundError, r"The last one by a time is '@\{14:05\}'"),
    ("yesterday~1", NotFoundError, r"'@\{yesterday\}'"),
]


def test_invalid_revisions(store: Store, subtests: pytest.Subtests) -> None:
    for revision, kind, message in WRONG:
        with subtests.test(revision=revision), pytest.raises(kind, match=message):
            store.thread("t").find(revision)


def test_more_ids_than_are_listed() -> None:
    with holdfast.open("memory://") as store:
        for n in range(20):
            store.thread("t").put({"n": n}, id=f"same-{n:02}")
        with pytest.raises(InvalidError, match=r"same-05 \(save, [^)]*\), and more"):
            store.thread("t").find("same-")
        with pytest.raises(NotFoundError, match="no such thread"):
            store.thread("nobody").find("same-")
        with pytest.raises(NotFoundError, match="no such thread"):
            store.thread("nobody").find("main")


def test_revised_checkpoints_are_one() -> None:
    with holdfast.open("memory://") as store:
        for n in range(12):
            store.thread("t").put({"n": n}, id="again-and-again")
        assert store.thread("t").get(at="again").state == {"n": 11}


def test_precedence_of_ids_tags_and_branches() -> None:
    with holdfast.open("memory://") as store:
        first = store.thread("t").put({"n": 0}, id="here~1").id
        second = store.thread("t").put({"n": 1}, id="here")
        assert store.thread("t").find("here~1").id == first  # an id, and not the parent of another
        store.thread("t").tag("there", first)
        store.thread("t").fork("there")
        store.thread("t").put({"n": 2}, branch="there", id="there-2")
        assert store.thread("t").find("there").id == first  # a name, and not a branch
        store.thread("t").untag("there")
        assert store.thread("t").find("there").id == "there-2"  # a branch, and not the start of an id
        assert store.thread("t").find("there-").id == "there-2"
        store.thread("t").put({"n": 3}, id="there")
        assert store.thread("t").find("there").id == "there"  # an id, and not a branch
        store.thread("t").fork("draft~1", at=second.id)
        store.thread("t").fork("draft", at="there-2")
        assert store.thread("t").find("draft~1").id == second.id


def test_pruned(store: Store) -> None:
    gone = {"2abc-2", "draft-1", "5abc-5"}

    async def choose(points: Any, branches: Any) -> Any:
        from holdfast.engine.rewrite.rewriter import RewritePlan

        del branches
        return RewritePlan(frozenset(point[:2] for point in points if point.id in gone))

    line = store._handle.thread_line("t")
    run(store._engine.rewriter.rewrite(line, choose))
    for text in ("#2", "twig~2", "main~7", "draft#5", "gold^"):
        with pytest.raises(
            NotFoundError, match=rf"the checkpoint that '{text.replace('^', '.')}' names, of 2023-.* was pruned"
        ):
            store.thread("t").find(text)
    with pytest.raises(NotFoundError, match="'2abc-2'"):
        store.thread("t").find("2abc-2")
    with pytest.raises(NotFoundError, match="was pruned"):
        store.thread("t").find("twig~2^2")
    assert store.thread("t").find("twig~3").id == "draft-0"  # past one that is gone
    assert store.thread("t").find("gold~2").id == "1abc-1"


def test_a_parent_of_a_merge_that_is_not_there(store: Store) -> None:
    merged = store.thread("t").merge("main", "draft", strategy="ours")
    theirs = run(store._engine.lines.find(store._handle.thread_line("t"), merged.merged))
    backend, key = store._engine.context.backend, ("", "t", theirs.branch, theirs.seq)
    other = theirs._replace(hash=b"another".ljust(32))
    for change in (Put(STEPS, other.row(store._handle.thread_line("t"), b"")), Delete(STEPS, key)):
        run(backend.apply([change]))
        with pytest.raises(NotFoundError, match=r"the checkpoint that 'draft\^2' names was pruned"):
            store.thread("t").find("draft^2")


def test_few_rows_are_read_however_long_the_line() -> None:
    class Watched(CountingBackend):
        rows = 0

        async def read(self, queries: Any) -> list[list[Row]]:
            found = await super().read(queries)
            self.rows += sum(map(len, found))
            return found

    backend = Watched(MemoryBackend())
    store = Store(Engine(EngineContext(backend, MemoryCache(1 << 20))), "")
    ids = [store.thread("t").put({"n": n}).id for n in range(1000)]
    store.thread("t").fork("late")
    for text in ("HEAD~999", "#3", "late#4", ids[500], f"{ids[500]}~400", "@{now}", "late@{now}"):
        before = backend.rows
        run(find_step(store._engine, store._handle.thread_line("t"), text))
        assert backend.rows - before < 8, text


# Arithmetic over branches against walking -----------------------------------------------------------------------


@st.composite
def layouts(draw: st.DrawFn) -> tuple[list[Branch], list[int]]:
    """Branches of some lengths, each starting from a step of one before it, or before the first."""
    lengths = [draw(st.integers(0, 5)) for _ in range(draw(st.integers(1, 6)))]
    branches = []
    for number in range(1, len(lengths)):
        places = [(base, seq) for base in range(number) for seq in range(lengths[base])]
        base = draw(st.sampled_from([(0, -1), *places]))
        branches.append(Branch(number, base[0], base[1] + 1, 0, ""))
    return branches, lengths


def way(branches: list[Branch], place: Position) -> list[Position]:
    """A place and all before it, the first first."""
    starts = {each.branch: Position(each.base_branch, each.base_length - 1) for each in branches}
    steps = [Position(place.branch, seq) for seq in range(place.seq + 1)]
    base = starts.get(place.branch, Position(0, -1))
    return (way(branches, base) if base.seq >= 0 else []) + steps


@settings(max_examples=examples(80))
@given(layouts(), st.data())
def test_layouts(found: tuple[list[Branch], list[int]], data: st.DataObject) -> None:
    branches, lengths = found
    layout = BranchGraph(branches)
    places = [Position(branch, seq) for branch, length in enumerate(lengths) for seq in range(length)]
    if not places:
        return
    one, other = data.draw(st.sampled_from(places)), data.draw(st.sampled_from(places))
    mine, yours = way(branches, one), way(branches, other)
    assert layout.depth(one) == len(mine) - 1
    assert [layout.along(one.branch, depth) for depth in range(len(mine))] == mine
    shared = [place for place in mine if place in yours]
    assert layout.common(one, other) == (shared[-1] if shared else None)


def test_a_thousand_branches_upon_each_other() -> None:
    layout = BranchGraph(Branch(n, n - 1, 1, 0, "") for n in range(1, 3000))
    assert layout.depth(Position(2999, 0)) == 2999
    assert layout.along(2999, 7) == Position(7, 0)


@pytest.mark.parametrize("base", [1, 2])
def test_branches_in_a_circle(base: int) -> None:
    """Rows that somebody altered do not make a walk go on for ever."""
    with pytest.raises(CorruptError, match="is recorded as starting from"):
        BranchGraph([Branch(1, base, 3, 0, "a"), Branch(2, 1, 3, 0, "b")])
