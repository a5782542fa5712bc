"""Heads: the end of every thread, in a small file that is stored elsewhere.

Hashes prove that nothing in a history was altered, but not that its end is still there: a thread without its newest
checkpoints is a valid thread. A comparison with exported heads shows that. Heads also cover what no hash does: names of
branches, tags, labels, and the revisions of a checkpoint. The file of an encrypted store is encrypted, too: it has
names, and digests of small values.

A row of a step is changed only together with the row of its line. So while the version in that is the same, so must be
a digest of all rows of steps. Another version means more than appends: the thread was pruned, forked or renamed.
Whoever sets a tag, label, pin or hold changes the version as well, unless it comes with a new checkpoint. So with the
same version, none of an earlier checkpoint is new: one that is was put back, or forged.
"""

from __future__ import annotations

import hashlib
import io
import json
from base64 import b64decode, b64encode
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import astuple, replace

from holdfast._fields import Internal
from holdfast._structs import convert
from holdfast.backends.interface import Backend, Get, Row, Scan
from holdfast.backends.paging import UNREADABLE, scan_rows
from holdfast.backends.tables import BRANCHES, LINES, REFS, STEPS, WRITES, Key, Table
from holdfast.codec.compression import Compression, compress, decompress
from holdfast.codec.envelope import Sealer
from holdfast.engine.context import EngineContext
from holdfast.engine.copy.short_lines import GROUP, read_stored_lines
from holdfast.engine.engine import Engine
from holdfast.engine.integrity.check import LineRows
from holdfast.engine.integrity.findings import Finding, FindingCode
from holdfast.engine.line_head import end_query
from holdfast.engine.line_walk import each_of, lines_of_kinds, pages_of
from holdfast.engine.lines import LABEL, TAG
from holdfast.engine.namespaces import ALL_KINDS, LineKind, is_thread
from holdfast.engine.optimistic import Attempts
from holdfast.engine.row_format import HOLD, LEASE, PIN, Branch, Line, LineInfo, StepRef, info_of
from holdfast.errors import CorruptError, DeniedError, InvalidError
from holdfast.security.audit.verify import removed_lines
from holdfast.security.handle import StoreHandle
from holdfast.state.artifacts.content import CONTENT_PREFIX
from holdfast.state.artifacts.records import ArtifactRecords

_MARK = "holdfast heads"
_FORMAT = 1
_START = f'{{"kind": {json.dumps(_MARK)}, "format": {_FORMAT}, '
_OPENING = ', "threads": {'
_PART = 256
"""How many heads are packed together."""
_encode = json.JSONEncoder(sort_keys=True).encode
_NOTHING = hashlib.sha256().hexdigest()
"""The digest of no rows, which most threads have twice."""


class BranchHead(msgspec.Struct, frozen=True):
    """The head of a branch: its length, the hash of its last step, and where it starts."""

    branch: int
    name: str
    base_branch: int
    base_length: int
    created: int
    length: int
    hash: str


class ThreadHead(msgspec.Struct, frozen=True):
    """The head of a thread: those of its branches, and digests of what no hash covers."""

    created: int
    version: int
    form: int
    branches: tuple[BranchHead, ...]
    steps: str
    names: str
    writes: str
    refs: tuple[str, ...] = ()
    """A digest of each tag, label, pin and hold."""


class PackedHeads(Mapping[str, ThreadHead]):
    """Heads by the names of lines, in their order. Most are packed, since a store may have millions of lines."""

    def __init__(self) -> None:
        self._first: list[str] = []
        """The first name of each part."""
        self._parts: list[tuple[int, bytes]] = []
        """Their packed sizes, and what they are compressed to."""
        self._last: dict[str, ThreadHead] = {}
        self._size = 0
        self._read: tuple[int, dict[str, ThreadHead]] = -1, {}
        """The part that was read last: those who look for names go through them in order."""

    def add(self, name: str, head: ThreadHead) -> None:
        """Add the head of a line that comes after all others."""
        if len(self._last) == _PART:
            self._first.append(next(iter(self._last)))
            packed = msgspec.msgpack.encode(self._last)
            self._parts.append((len(packed), compress(packed, Compression.ZSTD)[1]))
            self._last = {}
        self._last[name] = head
        self._size += 1

    def _part(self, number: int) -> dict[str, ThreadHead]:
        if number == len(self._parts):
            return self._last
        read, heads = self._read
        if read != number:
            size, stored = self._parts[number]
            packed = decompress(Compression.ZSTD, stored, size, size)
            heads = convert(msgspec.msgpack.decode(packed), dict[str, ThreadHead])  # type: ignore[stored-bytes]  # its own
            self._read = number, heads
        return heads

    def __getitem__(self, name: str) -> ThreadHead:
        if name in self._last:
            return self._last[name]
        return self._part(max(0, bisect_right(self._first, name) - 1))[name]

    def __iter__(self) -> Iterator[str]:
        for number in range(len(self._parts) + 1):
            yield from self._part(number)

    def __len__(self) -> int:
        return self._size


class StoreHeads(msgspec.Struct, frozen=True):
    """The heads of the threads of a store. `save` writes them to a file, `load` reads them."""

    tenant: str
    store: str
    time: str
    threads: Mapping[str, ThreadHead] = {}
    sealer: Internal[Sealer | None] = None
    """The key that the file is encrypted with: that of the store, if it is encrypted."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, StoreHeads) and astuple(self)[:-1] == astuple(other)[:-1]

    def __hash__(self) -> int:
        return hash((self.tenant, self.store, self.time))

    def __repr__(self) -> str:
        return f"<StoreHeads of {self.store}, {self.time}, {len(self.threads)} threads>"

    def save(self, path: str | Path) -> None:
        """Write the heads to a file: encrypted, if the store is."""
        temporary, digest = Path(f"{path}.new"), hashlib.sha256(b"{")
        with temporary.open("w", encoding="utf-8") if self.sealer is None else io.StringIO() as file:
            file.write(_START)
            for part in self._parts():
                digest.update(part.encode())
                file.write(f"{part}\n")
            digest.update(b"}")
            file.write(f', "digest": "{digest.hexdigest()}"}}\n')
            if isinstance(file, io.StringIO):
                assert self.sealer is not None  # noqa: S101 - see above
                sealed = self.sealer.seal(file.getvalue().encode(), _associated(self.tenant))
                whole = f'{_START}"tenant": {json.dumps(self.tenant)}, "sealed": "{b64encode(sealed).decode()}"}}\n'
                temporary.write_text(whole, encoding="utf-8")
        temporary.replace(path)

    def _parts(self) -> Iterator[str]:
        """Yield the content as `_digest_of` has it in JSON, without the braces around it, a thread at a time."""
        yield f'"store": {json.dumps(self.store)}, "tenant": {json.dumps(self.tenant)}, "threads": {{'
        in_order = self.threads if isinstance(self.threads, PackedHeads) else sorted(self.threads)
        for number, name in enumerate(in_order):
            head = _encode(msgspec.to_builtins(self.threads[name]))
            yield f"{', ' if number else ''}{json.dumps(name)}: {head}"
        yield f'}}, "time": {json.dumps(self.time)}'

    @classmethod
    def load(cls, path: str | Path, sealer: Sealer | None = None) -> StoreHeads:
        """Read heads from a file. `CorruptError` if it was altered, `InvalidError` if it is another file.

        That of an encrypted store is read with the key of the store: see `store.maintenance.load_heads`. `DeniedError`
        if it is not given; and `CorruptError` for a file that is not encrypted, if it is.
        """
        read = _read_lines(Path(path)) if sealer is None else None
        if read is not None:
            return read
        try:
            found: Any = json.loads(Path(path).read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise InvalidError(f"heads cannot be read: {error}", where=str(path)) from error
        if not isinstance(found, dict) or found.get("kind") != _MARK or found.get("format") != _FORMAT:
            raise InvalidError("the file contains no heads", where=str(path), hint="Write one with `holdfast heads`")
        found = _opened(found, sealer, str(path))
        content = {name: found.get(name) for name in ("tenant", "store", "time", "threads")}
        if found.get("digest") != _digest_of(content):
            raise CorruptError(
                "the file of heads differs from what was written", where=str(path), hint="Use another copy of it"
            )
        heads = convert(found["threads"], dict[str, ThreadHead])
        return cls(found["tenant"], found["store"], found["time"], heads, sealer)

    def audited(self) -> dict[str, tuple[int, str]]:
        """Return the heads of the lines with the audit, as `audit.verify` and `check_audit` take them: the number of
        steps of each, and the hash of the last."""
        return {
            name: (branch.length, branch.hash)
            for name, head in self.threads.items()
            if not is_thread(name)
            for branch in head.branches
            if not branch.branch and branch.length
        }


def _read_lines(path: Path) -> StoreHeads | None:
    """Read a file of heads as `save` writes it, line by line. Returns None for any other."""
    start, digest, heads = _START, hashlib.sha256(b"{"), PackedHeads()
    try:
        with path.open(encoding="utf-8") as file:
            first = file.readline().removesuffix("\n")
            if not first.startswith(start) or not first.endswith(_OPENING):
                return None
            digest.update(first.removeprefix(start).encode())
            about = json.loads("{" + first.removeprefix(start).removesuffix(_OPENING) + "}")
            last = text = ""
            for line in file:
                text = line.removesuffix("\n")
                digest.update(text.encode())
                if text.startswith("}, "):
                    break
                ((name, head),) = json.loads("{" + text.removeprefix(", ") + "}").items()
                if last >= name and len(heads):
                    return None
                heads.add(last := name, convert(head, ThreadHead))
            about |= json.loads("{" + text.removeprefix("}, ") + "}")
            digest.update(b"}")
            end = file.readline() + file.read(1)
    except (OSError, ValueError, msgspec.ValidationError):
        return None
    if end != f', "digest": "{digest.hexdigest()}"}}\n' or about.keys() != {"store", "tenant", "time"}:
        return None
    return StoreHeads(about["tenant"], about["store"], about["time"], heads)


def _associated(tenant: str) -> bytes:
    return json.dumps([_MARK, _FORMAT, tenant]).encode()


def _opened(found: dict[str, Any], sealer: Sealer | None, where: str) -> dict[str, Any]:
    """Return the content of a file of heads, decrypted if it is encrypted."""
    sealed: Any = found.get("sealed")
    if sealed is None and sealer is None:
        return found
    if sealer is None:
        raise DeniedError(
            "the file of heads is encrypted",
            where=where,
            hint="Read it with the store that it is about: store.maintenance.load_heads",
            code="key-missing",
        )
    try:
        opened: dict[str, Any] = json.loads(sealer.unseal(b64decode(sealed), _associated(found["tenant"])))
    except (CorruptError, ValueError, TypeError, KeyError):
        raise CorruptError(
            "the file of heads was not written by this store, or was altered",
            where=where,
            hint="Use another copy of it",
            code="tampered",
        ) from None
    return opened


async def load_heads(engine: Engine, tenant: str, path: str | Path) -> StoreHeads:
    """Read the heads of a store from a file."""
    return StoreHeads.load(path, await engine.context.rows.file_sealer(tenant))


def _digest_of(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


async def export_heads(
    engine: Engine, tenant: str, threads: Sequence[str] | None = None, kinds: frozenset[LineKind] = ALL_KINDS
) -> StoreHeads:
    """Return the current heads of lines, by name, or of those of some kinds."""
    context, found, others = engine.context, PackedHeads(), dict[str, ThreadHead]()
    last = ""
    named = each_of([Line(tenant, name) for name in threads or ()])
    async for page in pages_of(lines_of_kinds(context.backend, tenant, kinds) if threads is None else named, GROUP):
        while page:
            short = await _short_heads(context, page)
            for line in short or page[:1]:
                head = short[line] if short else await _head(context.backend, line)
                if head is not None and (line.name > last or not found) and not others:
                    found.add(last := line.name, head)
                elif head is not None:  # names of an encrypted store, or of a caller, are in another order
                    others[line.name] = head
            del page[: len(short) or 1]
    now = datetime.fromtimestamp(engine.context.clock() / 1e9, UTC).isoformat(timespec="seconds")
    heads = {**found, **others} if others else found
    return StoreHeads(tenant, engine.context.backend.url, now, heads, await engine.context.rows.file_sealer(tenant))


class _Outline(NamedTuple):
    """The rows of a line, its branches and their last steps."""

    info: LineInfo | None
    branches: dict[int, Branch]
    ends: dict[int, StepRef]


async def _outline(backend: Backend, line: Line) -> _Outline:
    attempts = Attempts("reading a thread", line)
    while True:
        await attempts.begin()
        lines, found = await backend.read([Get(LINES, [tuple(line)]), Scan(BRANCHES, tuple(line))])
        branches = {each.branch: each for each in map(Branch.of, found)}
        numbers = [0, *branches]
        again, *heads = await backend.read(
            [
                Get(LINES, [tuple(line)]),
                *(end_query(line, number) for number in numbers),
            ]
        )
        if again == lines:
            ends = {number: StepRef.of(rows[0]) for number, rows in zip(numbers, heads, strict=True) if rows}
            return _Outline(info_of(lines[0]) if lines else None, branches, ends)


async def _head(backend: Backend, line: Line) -> ThreadHead | None:
    attempts = Attempts("reading a thread", line)
    while True:
        await attempts.begin()
        outline = await _outline(backend, line)
        if outline.info is None:
            return None
        branches = _branch_heads(outline)
        head = ThreadHead(
            outline.info.created,
            outline.info.version,
            outline.info.form,
            branches,
            await _steps(backend, line, {each.branch: each.length for each in branches}),
            await _digest(backend, REFS, line),
            await _digest(backend, WRITES, line),
            tuple(sorted([_ref_digest(row) async for row in scan_rows(backend, REFS, tuple(line)) if _is_name(row)])),
        )
        (now,) = await backend.read([Get(LINES, [tuple(line)])])
        if now and info_of(now[0]) == outline.info:
            return head


async def _short_heads(context: EngineContext, lines: Sequence[Line]) -> dict[Line, ThreadHead | None]:
    """Return the heads of the first of some lines, as many as are short."""
    heads: dict[Line, ThreadHead | None] = {}
    for line, rows in (await read_stored_lines(context, lines)).items():
        try:
            heads[line] = _head_of(context, rows)
        except UNREADABLE:
            break
    return heads


def _head_of(context: EngineContext, rows: LineRows) -> ThreadHead | None:
    """Return the head of a line of which all rows are given, as they are stored."""
    lines, branches, refs, writes = [
        [context.rows.decode(table, row) for row in rows.get(table, ())] for table in (LINES, BRANCHES, REFS, WRITES)
    ]
    if not lines:
        return None
    info, steps = info_of(lines[0]), rows.get(STEPS, ())
    ends = {point.branch: point for point in map(StepRef.of, steps)}
    return ThreadHead(
        info.created,
        info.version,
        info.form,
        _branch_heads(_Outline(info, {each.branch: each for each in map(Branch.of, branches)}, ends)),
        _digest_of_rows([row._replace(body=b"") for row in steps]),
        _digest_of_rows(sorted(row for row in refs if row.key[2] != LEASE)),
        _digest_of_rows(writes),
        tuple(sorted(_ref_digest(row) for row in refs if _is_name(row))),
    )


def _branch_heads(outline: _Outline) -> tuple[BranchHead, ...]:
    return tuple(_branch_head(outline, number) for number in (0, *outline.branches))


def _branch_head(outline: _Outline, number: int) -> BranchHead:
    branch = outline.branches.get(number, Branch(0, 0, 0, 0, ""))
    end = outline.ends.get(number)
    length, commit = (0, "") if end is None else (end.seq + 1, end.hash.hex())
    return BranchHead(number, branch.name, branch.base_branch, branch.base_length, branch.created, length, commit)


async def _steps(backend: Backend, line: Line, lengths: Mapping[int, int]) -> str:
    """Return a digest of the rows of steps, up to the given lengths."""
    digest = hashlib.sha256()
    async for row in scan_rows(backend, STEPS, tuple(line), bodies=False):
        if int(row.key[3]) < lengths.get(int(row.key[2]), 0):
            digest.update(_row_digest(row._replace(body=b"")))  # some stores return bodies anyway
    return digest.hexdigest()


async def _digest(backend: Backend, table: Table, line: Line) -> str:
    digest, refs = hashlib.sha256(), list[Row]()
    async for row in scan_rows(backend, table, tuple(line)):
        if table is not REFS:
            digest.update(_row_digest(row))
        elif row.key[2] != LEASE:
            refs.append(row)
    # An encrypted store has them in another order.
    return _digest_of_rows(sorted(refs)) if table is REFS else digest.hexdigest()


def _digest_of_rows(rows: Sequence[Row]) -> str:
    if not rows:
        return _NOTHING
    digest = hashlib.sha256()
    for row in rows:
        digest.update(_row_digest(row))
    return digest.hexdigest()


def _is_name(ref: Row) -> bool:
    return ref.key[2] in (TAG, LABEL, PIN, HOLD)


def _ref_digest(row: Row) -> str:
    return _row_digest(row)[:16].hex()


def _row_digest(row: Row) -> bytes:
    return hashlib.sha256(repr((row.key, row.columns, row.body)).encode("utf-8", "surrogatepass")).digest()


# Comparing ----------------------------------------------------------------------------------------------------


async def compare_head(engine: Engine, heads: StoreHeads, name: str, removed: dict[str, int]) -> list[Finding]:
    """Return findings where a thread differs from its head by more than appends. `ConflictError` if it keeps changing
    so.

    `removed` is for the lines that were removed according to the audit, which is read only if one is gone.
    """
    backend, line = engine.context.backend, Line(heads.tenant, name)
    found: list[Finding] = []
    try:
        attempts = Attempts("comparing a thread", line, engine.context.metrics)
        while True:
            await attempts.begin()
            found = []
            comparison = _Comparison(backend, line, heads, await _outline(backend, line), found)
            await comparison.run()
            if not found or await comparison.is_current():
                return [
                    await _told_apart(engine, heads, each, removed) if each.code is FindingCode.GONE_THREAD else each
                    for each in found
                ]
    except UNREADABLE:
        return found  # some rows cannot be read, which verifying them reports


async def _told_apart(engine: Engine, heads: StoreHeads, gone: Finding, removed: dict[str, int]) -> Finding:
    """Return the finding of a line that is gone; another one if nobody removed it. Of threads, nothing shows that."""
    line = Line(heads.tenant, gone.thread)
    if is_thread(line.name):
        return gone
    if line.name.startswith(CONTENT_PREFIX):
        lost = await ArtifactRecords(StoreHandle(engine, line.tenant)).is_used(line)
    else:
        length = heads.threads[line.name].branches[0].length
        if removed.get(line.name, 0) < length:  # it may have been removed since they were read
            removed.update(await removed_lines(engine, line.tenant))
        lost = removed.get(line.name, 0) < length
    what = f"{gone.message}, and no record says that it was removed"
    return replace(gone, code=FindingCode.LOST_LINE, message=what) if lost else gone


class _Comparison:
    """The comparison of a thread with its exported head."""

    def __init__(
        self, backend: Backend, line: Line, heads: StoreHeads, outline: _Outline, found: list[Finding]
    ) -> None:
        self._backend = backend
        self._line = line
        self._head = heads.threads[line.name]
        self._since = int(datetime.fromisoformat(heads.time).timestamp()) * 10**9
        """The earliest time at which the heads were exported."""
        self._noun = "thread" if is_thread(line.name) else "line"
        self._outline = outline
        self._found = found

    def _add(self, code: FindingCode, what: str, position: tuple[int, int] | None = None, table: Table = STEPS) -> None:
        key: Key = (*self._line, *(position or ()))
        self._found.append(Finding(code, what, *self._line, place=position, space=table.name, key=key))

    async def is_current(self) -> bool:
        """Return whether only appends changed the thread since its outline was read."""
        (now,) = await self._backend.read([Get(LINES, [tuple(self._line)])])
        return (info_of(now[0]) if now else None) == self._outline.info

    async def run(self) -> None:
        """Compare everything."""
        head, outline = self._head, self._outline
        if outline.info is None:
            self._add(FindingCode.GONE_THREAD, f"the {self._noun} is gone", table=LINES)
        elif outline.info.created != head.created:
            self._add(
                FindingCode.GONE_THREAD, f"the {self._noun} was deleted, and another has its name now", table=LINES
            )
        elif outline.info.version < head.version:
            self._add(FindingCode.ROLLED_BACK, "the thread is older than when heads were exported", table=LINES)
        else:
            same = outline.info.version == head.version
            for branch in head.branches:
                await self._branch(branch, outline, same=same)
            if same:
                await self._unchanged(outline)
            if head.names != await _digest(self._backend, REFS, self._line):
                self._add(FindingCode.CHANGED_NAMES, "tags, labels, pins or holds have changed", table=REFS)

    async def _unchanged(self, outline: _Outline) -> None:
        """Check what appends do not change."""
        head = self._head
        if not outline.branches.keys() <= {each.branch for each in head.branches}:
            what = "there are new branches, although the version of the thread is the same"
            self._add(FindingCode.OTHER_HISTORY, what, table=BRANCHES)
        if self._found:
            return
        if head.steps != await _steps(self._backend, self._line, {each.branch: each.length for each in head.branches}):
            self._add(FindingCode.OTHER_HISTORY, "the rows of checkpoints have changed")
        if is_thread(self._line.name):
            await self._names()
        ended = all(
            each.length == (outline.ends[each.branch].seq + 1 if each.branch in outline.ends else 0)
            for each in head.branches
        )
        if ended and head.writes != await _digest(self._backend, WRITES, self._line):
            self._add(FindingCode.CHANGED_WRITES, "pending writes have changed", table=WRITES)

    async def _names(self) -> None:
        """Check that no name of an earlier checkpoint is new."""
        known = set(self._head.refs)
        refs = [row async for row in scan_rows(self._backend, REFS, tuple(self._line)) if _is_name(row)]
        unknown = [row for row in refs if _ref_digest(row) not in known]
        if not unknown:
            return
        lengths = {each.branch: each.length for each in self._head.branches}
        steps = scan_rows(self._backend, STEPS, tuple(self._line), bodies=False)
        new = {StepRef.of(row).id async for row in steps if int(row.key[3]) >= lengths.get(int(row.key[2]), 0)}
        for row in unknown:
            if row.columns[0] not in new:
                what = f"a {row.key[2]!s} was put back or forged: {row.key[3]!s}"
                self._found.append(Finding(FindingCode.REPLAYED_NAME, what, *self._line, space=REFS.name, key=row.key))

    async def _branch(self, head: BranchHead, outline: _Outline, *, same: bool) -> None:
        position = (head.branch, max(head.length - 1, 0))
        now = outline.branches.get(head.branch, Branch(0, 0, 0, 0, "") if not head.branch else None)
        if now is None or now.created != head.created:
            change = "is gone" if now is None else "is gone, and another has its number"
            code = FindingCode.OTHER_HISTORY if same else FindingCode.GONE_BRANCH
            self._add(code, f"branch {head.name or head.branch} {change}", position, BRANCHES)
            return
        if (now.base_branch, now.base_length) != (head.base_branch, head.base_length):
            what = f"branch {head.name or head.branch} starts elsewhere"
            self._add(FindingCode.OTHER_HISTORY, what, position, BRANCHES)
        if now.name != head.name:
            what = f"branch {head.name or head.branch} is now called {now.name!r}"
            self._add(FindingCode.OTHER_HISTORY if same else FindingCode.RENAMED_BRANCH, what, position, BRANCHES)
        end = outline.ends.get(head.branch)
        length = 0 if end is None else end.seq + 1
        assert outline.info is not None  # noqa: S101 - else there is nothing to compare
        rewritten = outline.info.form != self._head.form
        if length < head.length:
            what = f"branch {head.name or head.branch} had {head.length} checkpoints, and has {length}"
            self._add(FindingCode.PRUNED_SINCE if rewritten else FindingCode.CUT_OFF, what, position)
            return
        step = await self._step(position) if head.length else None
        if step is not None and step.hash.hex() != head.hash:
            what = f"where branch {head.name or head.branch} ended, there is another checkpoint"
            # A pruned end leaves nothing, and new checkpoints take its position.
            later = rewritten and step.time >= self._since
            self._add(FindingCode.PRUNED_SINCE if later else FindingCode.OTHER_HISTORY, what, position)

    async def _step(self, position: tuple[int, int]) -> StepRef | None:
        """Return the step at a position; None if it is missing, which verifying steps reports."""
        scan = Scan(STEPS, (*self._line, position[0]), (position[1],), (position[1] + 1,), bodies=False)
        (found,) = await self._backend.read([scan])
        return StepRef.of(found[0]) if found else None
