"""Artifacts are registered with their hash, kept once, read back checked, and linked with changes made with them."""

from __future__ import annotations

import asyncio
import hashlib
import io
import random
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from holdfast.backends.interface import Batch, Delete, Put, Row, Scan
from holdfast.backends.memory import MemoryBackend
from holdfast.backends.runtime.drivers import run
from holdfast.backends.tables import LINKS, OBJECTS
from holdfast.engine.model.scopes import MARK
from holdfast.engine.system_line import LineChange, SystemLineEntries
from holdfast.errors import ConflictError, CorruptError, InvalidError, NotFoundError, TransientError, UnsupportedError
from holdfast.state.artifacts.api import ArtifactSource
from holdfast.state.artifacts.content import CHUNK
from holdfast.state.artifacts.records import ArtifactRecords
from holdfast.store.store import Store
from tests.maintenance.kit import DAY, Clock, awaited, timed

LARGE = random.Random(1).randbytes(3_200_000)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store(clock: Clock) -> Store:
    return timed(clock)


def content_lines(store: Store) -> list[str]:
    return [line.name for line in run(store._engine.lines.names("", f"{MARK}content:"))]


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


class Pipe:
    """A file that can be read once, and gives less than it is asked for."""

    def __init__(self, content: bytes) -> None:
        self._file = io.BytesIO(content)

    def read(self, size: int) -> bytes:
        return self._file.read(min(size, 300_000))


@pytest.mark.parametrize("content", [b"", b"hello", LARGE[:4097], LARGE[:CHUNK], LARGE], ids=len)
@pytest.mark.parametrize("how", ["bytes", "path", "file", "pipe"])
def test_what_is_registered_is_read_back(store: Store, tmp_path: Path, content: bytes, how: str) -> None:
    (tmp_path / "report.bin").write_bytes(content)
    path = tmp_path / "report.bin"
    with path.open("rb") as file:
        source: Any = {"bytes": content, "path": path, "file": file, "pipe": Pipe(content)}[how]
        made = store.artifacts.register(source, type="report", producer="writer", metadata={"pages": 3})
    assert (made.sha256, made.size, made.type, made.producer) == (sha256(content), len(content), "report", "writer")
    assert (made.metadata, made.stored, made.uri, made.by, made.same_as) == ({"pages": 3}, True, "", "", "")
    assert made.name == ("report.bin" if how == "path" else "")
    assert store.artifacts.get(made.id) == store.artifacts.verify(made.id) == made
    assert store.artifacts.read(made.id) == content
    with store.artifacts.open(made.id) as kept:
        assert b"".join(iter(lambda: kept.read(70_000), b"")) == content
        assert kept.read() == b""
    store.artifacts.save(made.id, tmp_path / "copy.bin")
    assert (tmp_path / "copy.bin").read_bytes() == content
    assert sorted(path.name for path in tmp_path.iterdir()) == ["copy.bin", "report.bin"]
    assert len(content_lines(store)) == (len(content) > CHUNK)


def test_large_content_is_never_in_memory_as_a_whole(store: Store) -> None:
    class Endless:
        """Gives zeros, and notes the most it was asked for."""

        def __init__(self, size: int) -> None:
            self.left, self.most = size, 0

        def read(self, size: int) -> bytes:
            self.most = max(self.most, size)
            given, self.left = min(size, self.left), self.left - min(size, self.left)
            return bytes(given)

    source = Endless(20 << 20)
    made = store.artifacts.register(source, id="zeros")
    assert source.most <= CHUNK + 1
    assert made.size == 20 << 20
    (rows,) = run(store._engine.context.backend.read([Scan(OBJECTS, ("",), bodies=True)]))
    assert max(len(row.body) for row in rows) <= 1 << 20
    with store.artifacts.open("zeros") as file:
        assert not any(file.read(1 << 20))


@pytest.mark.parametrize("content", [b"small", LARGE[:100_000], LARGE], ids=["small", "medium", "large"])
@pytest.mark.parametrize("pipe", [False, True], ids=["bytes", "pipe"])
def test_equal_content_is_kept_once_and_as_long_as_one_has_it(store: Store, content: bytes, pipe: bool) -> None:
    for id in ("a", "b", "c"):
        made = store.artifacts.register(Pipe(content) if pipe else content, id=id)
        assert made.same_as == ("" if id == "a" else "a")
    assert len(content_lines(store)) <= 1
    store.artifacts.delete("a")
    assert store.artifacts.read("b") == store.artifacts.read("c") == content
    assert store.artifacts.register(content, id="d").same_as == "b"
    for id in ("b", "c", "d"):
        assert store.artifacts.read(id) == content
        store.artifacts.delete(id)
    assert content_lines(store) == []
    assert store.artifacts.list() == []
    (left,) = run(store._engine.context.backend.read([Scan(LINKS, ("",))]))
    assert left == []
    with pytest.raises(NotFoundError, match="no such artifact"):
        store.artifacts.delete("a")
    assert store.artifacts.register(content, id="a").same_as == ""
    assert store.artifacts.read("a") == content


def test_an_id_stands_for_one_content(store: Store) -> None:
    first = store.artifacts.register(b"one", id="a", type="text")
    assert store.artifacts.register(b"one", id="a", type="other") == first
    with pytest.raises(ConflictError, match="with other content"):
        store.artifacts.register(b"two", id="a")
    with pytest.raises(ConflictError):
        store.artifacts.register(LARGE, id="a")
    assert content_lines(store) == []
    large = store.artifacts.register(LARGE, id="b")
    assert store.artifacts.register(Pipe(LARGE), id="b") == large
    assert len(content_lines(store)) == 1


def test_what_is_not_kept_is_checked_where_it_is(store: Store, tmp_path: Path) -> None:
    path = tmp_path / "a file.csv"
    path.write_bytes(b"1,2")
    made = store.artifacts.register(path, id="a", keep=False)
    assert (made.stored, made.uri, made.sha256, made.size) == (False, path.as_uri(), sha256(b"1,2"), 3)
    assert store.artifacts.register(path.as_uri(), id="uri", keep=False).uri == made.uri
    assert store.artifacts.read("a") == store.artifacts.read("uri") == b"1,2"
    assert store.artifacts.register(path.as_uri(), id="kept").same_as == ""
    for changed in (b"1,3", b"1,2,", b"1"):
        path.write_bytes(changed)
        with pytest.raises(CorruptError, match="not what was registered"):
            store.artifacts.verify("a")
        with pytest.raises(CorruptError), store.artifacts.open("a") as file:
            file.read(3)
        with pytest.raises(CorruptError):
            store.artifacts.save("a", tmp_path / "copy")
        assert not (tmp_path / "copy").exists()
    path.unlink()
    with pytest.raises(NotFoundError, match="no such file"):
        store.artifacts.read("a")
    store.artifacts.delete("a")
    far = store.artifacts.register("s3://bucket/x", id="far", keep=False, sha256=sha256(b"x"), size=1)
    assert (far.uri, far.name) == ("s3://bucket/x", "x")
    with pytest.raises(UnsupportedError, match="only files of this machine"):
        store.artifacts.verify("far")


def test_damage_is_found_before_the_last_piece_is_handed_out(store: Store, tmp_path: Path) -> None:
    store.artifacts.register(LARGE, id="large")
    other = store.artifacts.register(LARGE[::-1], id="other")
    kept = ArtifactRecords(store._handle)
    records = run(kept.get_many(["large", "other"]))
    swapped = asdict(records["large"]) | {"token": records["other"].token}

    async def swap(_: SystemLineEntries) -> LineChange:
        return LineChange(kept.system_line.pack({"large": swapped}))

    run(kept.system_line.change("swap", swap))
    with pytest.raises(CorruptError, match="not what was registered"):
        store.artifacts.read("large")
    with store.artifacts.open("large") as file:
        assert len(file.read(CHUNK)) == CHUNK
        with pytest.raises(CorruptError):
            file.read(len(LARGE))
    with pytest.raises(CorruptError):
        store.artifacts.save("large", tmp_path / "copy")
    assert list(tmp_path.iterdir()) == []
    assert store.artifacts.verify("other") == other
    run(store._engine.context.backend.apply([Delete(OBJECTS, ("", line)) for line in content_lines(store)]))
    store._engine.context.cache.clear()
    with pytest.raises(CorruptError):
        store.artifacts.read("other")


def test_lists_are_paged_and_filtered(store: Store) -> None:
    made = store.artifacts.register_many(
        ArtifactSource(f"{number}".encode(), f"a{number:03}", f"t{number % 2}", f"p{number % 3}")
        for number in range(300)
    )
    assert [artifact.id for artifact in made] == [f"a{number:03}" for number in range(300)]
    listed = store.artifacts.list
    assert [artifact.id for artifact in listed(limit=2)] == ["a000", "a001"]
    assert [artifact.id for artifact in listed(cursor="a001", limit=2)] == ["a002", "a003"]
    assert listed(limit=1000) == list(listed(limit=7).all()) == made
    assert list(listed(type="t1", limit=7).all()) == listed(type="t1", limit=1000)
    assert [artifact.id for artifact in listed(type="t1", producer="p2", limit=2)] == ["a005", "a011"]
    assert [artifact.id for artifact in listed(type="t1", limit=2)] == ["a001", "a003"]
    assert [artifact.id for artifact in listed(sha256=sha256(b"7"))] == ["a007"]
    assert listed(sha256=sha256(b"7"), type="t0") == listed(type="none") == listed(limit=0) == []
    assert store.artifacts.register_many([]) == []


def test_several_are_registered_all_or_none(store: Store) -> None:
    store.artifacts.register(b"x", id="taken")
    for wrong in (
        [ArtifactSource(b"1", "one"), ArtifactSource(LARGE, "large"), ArtifactSource(b"y", "taken")],
        [ArtifactSource(b"1", "one"), ArtifactSource(b"2", "one")],
        [ArtifactSource(b"1", "one"), ArtifactSource("/nowhere/at/all")],
    ):
        with pytest.raises((ConflictError, InvalidError, NotFoundError)):
            store.artifacts.register_many(wrong)
        assert [artifact.id for artifact in store.artifacts.list()] == ["taken"]
        assert content_lines(store) == []
    both = store.artifacts.register_many(
        [
            ArtifactSource(LARGE, "l1"),
            ArtifactSource(LARGE, "l2"),
            ArtifactSource(b"s", "s1"),
            ArtifactSource(b"s", "s2"),
        ]
    )
    assert [artifact.same_as for artifact in both] == ["", "l1", "", "s1"]
    store.artifacts.delete("l1")
    assert store.artifacts.read("l2") == LARGE


def test_changes_are_linked_both_ways(store: Store, clock: Clock) -> None:
    for id in ("data", "model"):
        store.artifacts.register(id.encode(), id=id)
    state = store.state(agent="a")
    state["before"] = 0
    with store.artifacts.using("data"):
        state["plan"] = 1
        with store.artifacts.using("model", "data"):
            store.state(user="u", session="s/1")["plan"] = 2
            state.batch({"plan": 2, "more": 1}, delete=["before"])
        state.delete("more")
    state["after"] = 0

    def told(linked: Any) -> list[tuple[Any, ...]]:
        return [(each.artifact, str(each.scope), each.key, each.version) for each in linked]

    changes = store.artifacts.changes("data")
    assert sorted(told(changes)) == [
        ("data", "agent:a", "before", 3),
        ("data", "agent:a", "more", 3),
        ("data", "agent:a", "more", 4),
        ("data", "agent:a", "plan", 2),
        ("data", "agent:a", "plan", 3),
        ("data", "user:u/session:s%2F1", "plan", 1),
    ]
    assert {each.id for each in changes} >= {past.id for past in state.history("plan")}
    assert all(each.time.timestamp() * 1e9 == clock.now for each in changes)
    assert list(store.artifacts.changes("data", limit=1).all()) == changes
    assert len(store.artifacts.changes("model")) == 4
    found = store.artifacts.of(state)
    assert found == store.artifacts.of("agent:a")
    assert told(found) == [
        ("data", "agent:a", "before", 3),
        ("model", "agent:a", "before", 3),
        ("data", "agent:a", "more", 3),
        ("model", "agent:a", "more", 3),
        ("data", "agent:a", "more", 4),
        ("data", "agent:a", "plan", 2),
        ("data", "agent:a", "plan", 3),
        ("model", "agent:a", "plan", 3),
    ]
    assert list(store.artifacts.of("agent:a", limit=3).all()) == found
    assert told(store.artifacts.of("agent:a", "plan", limit=1).all()) == told(found[5:])
    assert told(store.artifacts.of("agent:a", "plan", cursor=found[5].cursor)) == told(found[6:])
    assert told(store.artifacts.of("agent:a", "plan", version=2)) == [("data", "agent:a", "plan", 2)]
    assert len(store.artifacts.of("agent:a", version=3)) == 6
    assert store.artifacts.of("agent:a", "after") == store.artifacts.of("agent:b") == []
    store.artifacts.delete("data")
    with pytest.raises(NotFoundError):
        store.artifacts.changes("data")
    assert len(store.artifacts.of("agent:a", "plan")) == 3


def test_a_change_that_is_not_made_leaves_no_link(store: Store) -> None:
    store.artifacts.register(b"1", id="a")
    with store.artifacts.using("a"):
        with pytest.raises(ConflictError):
            store.state(agent="a").set("k", 1, expected=7)
        store.transaction(lambda together: together.state(agent="b").set("k", 1))
    assert [str(each.scope) for each in store.artifacts.changes("a")] == ["agent:b"]


def test_content_that_a_dead_process_left_is_swept(store: Store, clock: Clock) -> None:
    class Broken(Pipe):
        def read(self, size: int) -> bytes:
            raise OSError("the cable was pulled")

    class Halfway(Pipe):
        def read(self, size: int) -> bytes:
            if self._file.tell() > 2_000_000:
                raise OSError("the cable was pulled")
            return super().read(size)

    store.artifacts.register(LARGE, id="whole")
    for source in (Broken(LARGE), Halfway(LARGE[::-1])):
        with pytest.raises(OSError, match="cable"):
            store.artifacts.register(source)
    assert len(content_lines(store)) == 2
    assert run(ArtifactRecords(store._handle).sweep(DAY)) == 0
    clock.now += 2 * DAY
    assert run(ArtifactRecords(store._handle).sweep(DAY)) == 1
    assert run(ArtifactRecords(store._handle).sweep(DAY)) == 0
    assert store.artifacts.read("whole") == LARGE


def test_content_stays_where_it_is_not_known_whether_it_was_registered() -> None:
    class Flaky(MemoryBackend):
        """Says that it does not know, once, after it has made a change."""

        lost = False

        async def apply(self, batch: Batch) -> int | None:
            done = await super().apply(batch)
            if not self.lost and any(isinstance(each, Put) and each.space is LINKS for each in batch):
                self.lost = True
                raise TransientError("no answer was received", code="uncertain")
            return done

    store = timed(Clock(), Flaky())
    with pytest.raises(TransientError):
        store.artifacts.register(LARGE, id="a")
    assert store.artifacts.read("a") == LARGE


def test_wrong_use_is_said(store: Store, tmp_path: Path) -> None:
    store.artifacts.register(b"1", id="a")
    for wrong in (
        lambda: store.artifacts.register(7),  # type: ignore[arg-type]
        lambda: store.artifacts.register(io.StringIO("text")),  # type: ignore[arg-type]
        lambda: store.artifacts.register(b"1", id="é" * 256, type="x" * 257),
        lambda: store.artifacts.register(b"1", id="日" * 256 + "é"),
        lambda: store.artifacts.register(b"1", id="😀" * 250),
        lambda: store.artifacts.register(b"1", keep=False),
        lambda: store.artifacts.register("s3://b/x", keep=False),
        lambda: store.artifacts.register("s3://b/x", keep=False, sha256="ab", size=1),
        lambda: store.artifacts.register(tmp_path),
        lambda: store.artifacts.register(""),
        lambda: store.artifacts.register_many([b"1"]),  # type: ignore[list-item]
        lambda: store.artifacts.using(),
        lambda: store.artifacts.of("agent:a", cursor="x"),
        lambda: store.artifacts.save("a", tmp_path / "no" / "where"),
    ):
        with pytest.raises(InvalidError):
            wrong()
    with pytest.raises(UnsupportedError):
        store.artifacts.register("s3://b/x")
    with pytest.raises(CorruptError, match="does not match the given"):
        store.artifacts.register(b"1", sha256=sha256(b"2"))
    with pytest.raises(CorruptError, match="does not match the given"):
        store.artifacts.register(__file__, keep=False, size=1)
    with pytest.raises(NotFoundError), store.artifacts.using("nothing"):
        pytest.fail("the block is not entered")
    with pytest.raises(InvalidError):
        asyncio.run(store.artifacts.using("a").__aenter__())
    with pytest.raises(InvalidError):
        awaited(store).artifacts.using("a").__enter__()


def test_the_same_awaited(store: Store, tmp_path: Path) -> None:
    async def scenario() -> None:
        other = awaited(store)
        made = await other.artifacts.register(LARGE, id="a", type="t")
        assert [each async for each in await other.artifacts.open("a")] == [
            LARGE[start : start + CHUNK] for start in range(0, len(LARGE), CHUNK)
        ]
        async with await other.artifacts.open("a") as content:
            assert await content.read() == LARGE
        await other.artifacts.save("a", tmp_path / "copy")
        async with other.artifacts.using("a"):
            await other.state(agent="x").set("k", 1)
        assert [each.key for each in await other.artifacts.changes("a")] == ["k"]
        assert [each.artifact for each in await other.artifacts.of(other.state(agent="x"))] == ["a"]
        assert await other.artifacts.list() == [made]

    asyncio.run(scenario())
    assert (tmp_path / "copy").read_bytes() == LARGE


def test_registering_is_in_the_audit(store: Store) -> None:
    store.artifacts.register(b"1", id="a")
    store.artifacts.delete("a")
    assert sorted((row.action, row.key) for row in store.audit.query(kind="artifact")) == [
        ("delete", "a"),
        ("register", "a"),
    ]
    assert store.audit.verify().ok


def test_a_row_without_its_record_is_no_artifact(store: Store) -> None:
    """Whoever reads a page while others delete sees what is there."""
    store.artifacts.register(b"1", id="a")
    row = Row(("", f"{MARK}artifacts", "all", "", "b"), (0, ""))
    run(store._engine.context.backend.apply([Put(LINKS, row)]))
    assert [artifact.id for artifact in store.artifacts.list()] == ["a"]


@pytest.mark.parametrize("size", [100_000, len(LARGE)])
def test_one_that_is_deleted_while_it_is_read_is_not_called_damaged(store: Store, tmp_path: Path, size: int) -> None:
    store.artifacts.register(LARGE[:size], id="a")
    found = run(ArtifactRecords(store._handle).get("a"))
    reading = ArtifactRecords(store._handle).pieces("a", found)
    if size == len(LARGE):
        assert run(reading.next()) == LARGE[:CHUNK]
    store.artifacts.delete("a")
    with pytest.raises(NotFoundError):
        run(reading.read_all())
    with pytest.raises(NotFoundError):
        run(ArtifactRecords(store._handle).pieces("a", found).save(tmp_path / "a"))
    assert list(tmp_path.iterdir()) == []


def test_what_takes_long_to_come_in_is_not_swept(store: Store, clock: Clock) -> None:
    records = ArtifactRecords(store._handle)

    class Slow(Pipe):
        def read(self, size: int) -> bytes:
            clock.now += DAY // 5
            run(records.sweep(DAY))
            return super().read(size)

    store.artifacts.register(Slow(LARGE), id="a")
    assert store.artifacts.read("a") == LARGE


def test_content_that_is_removed_while_it_comes_in_is_not_registered(store: Store) -> None:
    class Swept(Pipe):
        def read(self, size: int) -> bytes:
            run(ArtifactRecords(store._handle).sweep(-1))
            return super().read(size)

    with pytest.raises(ConflictError):
        store.artifacts.register(Swept(LARGE), id="a")
    with pytest.raises(NotFoundError):
        store.artifacts.get("a")


def test_content_that_is_removed_by_others_is_taken_in_again_if_it_can_be(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_bytes(LARGE)
    known = ArtifactRecords.has_content

    async def then_removed(self: ArtifactRecords, sha256: str) -> bool:
        found = await known(self, sha256)
        if found:
            await self.delete("a")
        return found

    monkeypatch.setattr(ArtifactRecords, "has_content", then_removed)
    store.artifacts.register(LARGE, id="a")
    store.artifacts.register(tmp_path / "file", id="b")
    assert store.artifacts.read("b") == LARGE
    assert len(content_lines(store)) == 1
    store.artifacts.delete("b")
    store.artifacts.register(LARGE, id="a")
    with pytest.raises(ConflictError):
        store.artifacts.register(Pipe(LARGE), id="b")
    assert content_lines(store) == []
