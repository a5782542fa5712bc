"""Heads: where every thread ends, in a small file that is kept elsewhere.

Hashes show that nothing was altered in a history, but not that its end is still there: a thread without its newest
checkpoints is a whole thread. Against heads that were exported before, it is seen. They also cover what no hash does:
names of branches, names and tags, and what tells revisions of a checkpoint apart.

A row of a step is changed together with its line's own row only. So as long as the version in that is the same, a
digest of all step rows must be, too. Where the version is another, somebody did more than append: pruned, forked,
renamed.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from holdfast.backends.interface import Backend, Get, Row, Scan
from holdfast.backends.paging import UNREADABLE, scan_rows
from holdfast.backends.tables import BRANCHES, LINES, REFS, STEPS, WRITES, Key, Table
from holdfast.engine.engine import Engine
from holdfast.engine.integrity.findings import Finding, FindingCode
from holdfast.engine.row_format import LEASE, Branch, Line, LineInfo, StepRef, info_of
from holdfast.errors import ConflictError, CorruptError, InvalidError

_MARK = "holdfast heads"
_FORMAT = 1
_LOOKS = 20
"""How often a thread is looked at that changes all the time."""


@dataclass(frozen=True)
class BranchHead:
    """Where a branch ends: how many steps it has, and the hash of the last of them; and where it starts."""

    branch: int
    name: str
    base_branch: int
    base_length: int
    created: int
    length: int
    hash: str


@dataclass(frozen=True)
class ThreadHead:
    """Where a thread ends, and digests of what no hash covers."""

    created: int
    version: int
    form: int
    branches: tuple[BranchHead, ...]
    steps: str
    names: str
    writes: str


@dataclass(frozen=True)
class StoreHeads:
    """Where the threads of a store end. `save` writes them to a file, `load` reads them from one."""

    tenant: str
    store: str
    time: str
    threads: Mapping[str, ThreadHead] = field(default_factory=dict)

    def save(self, path: str | Path) -> None:
        """Write them to a file."""
        content = asdict(self)
        text = json.dumps({"kind": _MARK, "format": _FORMAT, **content, "digest": _digest_of(content)}, indent=1)
        temporary = Path(f"{path}.new")
        temporary.write_text(text + "\n", encoding="utf-8")
        temporary.replace(path)

    @classmethod
    def load(cls, path: str | Path) -> StoreHeads:
        """Read them from a file. `CorruptError` if it is not as it was written, `InvalidError` if it is something
        else."""
        try:
            found: Any = json.loads(Path(path).read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise InvalidError(f"heads cannot be read: {error}", where=str(path)) from error
        if not isinstance(found, dict) or found.get("kind") != _MARK or found.get("format") != _FORMAT:
            raise InvalidError("the file holds no heads", where=str(path), hint="Write one with `holdfast heads`")
        content = {name: found.get(name) for name in ("tenant", "store", "time", "threads")}
        if found.get("digest") != _digest_of(content):
            raise CorruptError(
                "the file of heads is not as it was written", where=str(path), hint="Use another copy of it"
            )
        threads: dict[str, Any] = found["threads"]
        heads = {
            name: ThreadHead(**{**each, "branches": tuple(BranchHead(**branch) for branch in each["branches"])})
            for name, each in threads.items()
        }
        return cls(found["tenant"], found["store"], found["time"], heads)


def _digest_of(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


async def export_heads(engine: Engine, tenant: str, threads: Sequence[str] | None = None) -> StoreHeads:
    """Where threads end now."""
    names = [line.name for line in await engine.lines.names(tenant)] if threads is None else threads
    found: dict[str, ThreadHead] = {}
    for name in names:
        head = await _head(engine.context.backend, Line(tenant, name))
        if head is not None:
            found[name] = head
    now = datetime.fromtimestamp(engine.context.clock() / 1e9, UTC).isoformat(timespec="seconds")
    return StoreHeads(tenant, engine.context.backend.url, now, found)


class _Outline(NamedTuple):
    """A line in a few rows."""

    info: LineInfo | None
    branches: dict[int, Branch]
    ends: dict[int, StepRef]


async def _outline(backend: Backend, line: Line) -> _Outline:
    for _ in range(_LOOKS):
        lines, found = await backend.read([Get(LINES, [tuple(line)]), Scan(BRANCHES, tuple(line))])
        branches = {each.branch: each for each in map(Branch.of, found)}
        numbers = [0, *branches]
        again, *heads = await backend.read(
            [
                Get(LINES, [tuple(line)]),
                *(Scan(STEPS, (*line, number), reverse=True, limit=1, bodies=False) for number in numbers),
            ]
        )
        if again == lines:
            ends = {number: StepRef.of(rows[0]) for number, rows in zip(numbers, heads, strict=True) if rows}
            return _Outline(info_of(lines[0]) if lines else None, branches, ends)
    raise _kept_changing(line)


async def _head(backend: Backend, line: Line) -> ThreadHead | None:
    for _ in range(_LOOKS):
        outline = await _outline(backend, line)
        if outline.info is None:
            return None
        numbers = [0, *outline.branches]
        branches = tuple(_branch_head(outline, number) for number in numbers)
        steps = await _steps(backend, line, {each.branch: each.length for each in branches})
        head = ThreadHead(
            outline.info.created,
            outline.info.version,
            outline.info.form,
            branches,
            steps,
            await _digest(backend, REFS, line),
            await _digest(backend, WRITES, line),
        )
        (now,) = await backend.read([Get(LINES, [tuple(line)])])
        if now and info_of(now[0]) == outline.info:
            return head
    raise _kept_changing(line)


def _kept_changing(line: Line) -> ConflictError:
    return ConflictError("the thread keeps changing", where=f"thread {line}", hint="Try again")


def _branch_head(outline: _Outline, number: int) -> BranchHead:
    branch = outline.branches.get(number, Branch(0, 0, 0, 0, ""))
    end = outline.ends.get(number)
    length, commit = (0, "") if end is None else (end.seq + 1, end.hash.hex())
    return BranchHead(number, branch.name, branch.base_branch, branch.base_length, branch.created, length, commit)


async def _steps(backend: Backend, line: Line, lengths: Mapping[int, int]) -> str:
    """A digest of the rows of steps, up to the given lengths."""
    digest = hashlib.sha256()
    async for row in scan_rows(backend, STEPS, tuple(line), bodies=False):
        if int(row.key[3]) < lengths.get(int(row.key[2]), 0):
            digest.update(_row_digest(row._replace(body=b"")))  # some stores give bodies unasked
    return digest.hexdigest()


async def _digest(backend: Backend, space: Table, line: Line) -> str:
    digest = hashlib.sha256()
    async for row in scan_rows(backend, space, tuple(line)):
        if space is not REFS or row.key[2] != LEASE:
            digest.update(_row_digest(row))
    return digest.hexdigest()


def _row_digest(row: Row) -> bytes:
    return hashlib.sha256(repr((row.key, row.columns, row.body)).encode("utf-8", "surrogatepass")).digest()


# Comparing ----------------------------------------------------------------------------------------------------


async def compare_head(backend: Backend, heads: StoreHeads, name: str) -> list[Finding]:
    """What of a thread is not as its head says, and not what an honest append would make of it. `ConflictError` if it
    keeps changing by more than appends."""
    line = Line(heads.tenant, name)
    found: list[Finding] = []
    try:
        for _ in range(_LOOKS):
            found = []
            comparison = _Comparison(backend, line, heads, await _outline(backend, line), found)
            await comparison.run()
            if not found or await comparison.still_holds():
                return found
    except UNREADABLE:
        return found  # some rows cannot be read, which is told where they are verified
    raise _kept_changing(line)


class _Comparison:
    """A thread and the head that it had."""

    def __init__(
        self, backend: Backend, line: Line, heads: StoreHeads, outline: _Outline, found: list[Finding]
    ) -> None:
        self._backend = backend
        self._line = line
        self._head = heads.threads[line.name]
        self._since = int(datetime.fromisoformat(heads.time).timestamp()) * 10**9
        """When the heads were exported, at the earliest."""
        self._outline = outline
        self._found = found

    def _add(self, code: FindingCode, what: str, place: tuple[int, int] | None = None, space: Table = STEPS) -> None:
        key: Key = (*self._line, *(place or ()))
        self._found.append(Finding(code, what, *self._line, place=place, space=space.name, key=key))

    async def still_holds(self) -> bool:
        """Whether the thread was changed by nothing but appends since its outline was read."""
        (now,) = await self._backend.read([Get(LINES, [tuple(self._line)])])
        return (info_of(now[0]) if now else None) == self._outline.info

    async def run(self) -> None:
        """Compare all of it."""
        head, outline = self._head, self._outline
        if outline.info is None:
            self._add(FindingCode.GONE_THREAD, "the thread is not there any more", space=LINES)
        elif outline.info.created != head.created:
            self._add(FindingCode.GONE_THREAD, "the thread was deleted, and another has its name now", space=LINES)
        elif outline.info.version < head.version:
            self._add(
                FindingCode.ROLLED_BACK, "the thread is in an older state than when heads were exported", space=LINES
            )
        else:
            same = outline.info.version == head.version
            for branch in head.branches:
                await self._branch(branch, outline, same=same)
            if same:
                await self._unchanged(outline)
            if head.names != await _digest(self._backend, REFS, self._line):
                self._add(FindingCode.CHANGED_NAMES, "names, tags or pins are not what they were", space=REFS)

    async def _unchanged(self, outline: _Outline) -> None:
        """Nothing but appends happened since: all else must be as it was."""
        head = self._head
        if not outline.branches.keys() <= {each.branch for each in head.branches}:
            what = "there are branches that were not there, though the thread is said to be unchanged"
            self._add(FindingCode.OTHER_HISTORY, what, space=BRANCHES)
        if self._found:
            return
        if head.steps != await _steps(self._backend, self._line, {each.branch: each.length for each in head.branches}):
            self._add(FindingCode.OTHER_HISTORY, "what the rows of checkpoints say is not what they said")
        ended = all(
            each.length == (outline.ends[each.branch].seq + 1 if each.branch in outline.ends else 0)
            for each in head.branches
        )
        if ended and head.writes != await _digest(self._backend, WRITES, self._line):
            self._add(FindingCode.CHANGED_WRITES, "pending writes are not what they were", space=WRITES)

    async def _branch(self, was: BranchHead, outline: _Outline, *, same: bool) -> None:
        place = (was.branch, max(was.length - 1, 0))
        now = outline.branches.get(was.branch, Branch(0, 0, 0, 0, "") if not was.branch else None)
        if now is None or now.created != was.created:
            told = "is gone" if now is None else "is gone, and another has its number"
            code = FindingCode.OTHER_HISTORY if same else FindingCode.GONE_BRANCH
            self._add(code, f"branch {was.name or was.branch} {told}", place, BRANCHES)
            return
        if (now.base_branch, now.base_length) != (was.base_branch, was.base_length):
            what = f"branch {was.name or was.branch} starts elsewhere"
            self._add(FindingCode.OTHER_HISTORY, what, place, BRANCHES)
        if now.name != was.name:
            what = f"branch {was.name or was.branch} is now called {now.name!r}"
            self._add(FindingCode.OTHER_HISTORY if same else FindingCode.RENAMED_BRANCH, what, place, BRANCHES)
        end = outline.ends.get(was.branch)
        length = 0 if end is None else end.seq + 1
        assert outline.info is not None  # noqa: S101 - else there is nothing to compare
        rewritten = outline.info.form != self._head.form
        if length < was.length:
            what = f"branch {was.name or was.branch} had {was.length} checkpoints, and has {length}"
            self._add(FindingCode.PRUNED_SINCE if rewritten else FindingCode.CUT_OFF, what, place)
            return
        there = await self._point(place) if was.length else None
        if there is not None and there.hash.hex() != was.hash:
            what = f"where branch {was.name or was.branch} ended, another checkpoint stands"
            # A pruned end leaves nothing, and what is saved then takes its place.
            since = rewritten and there.time >= self._since
            self._add(FindingCode.PRUNED_SINCE if since else FindingCode.OTHER_HISTORY, what, place)

    async def _point(self, place: tuple[int, int]) -> StepRef | None:
        """The step at a place. None if it is missing, which is told where steps are verified."""
        scan = Scan(STEPS, (*self._line, place[0]), (place[1],), (place[1] + 1,), bodies=False)
        (found,) = await self._backend.read([scan])
        return StepRef.of(found[0]) if found else None
