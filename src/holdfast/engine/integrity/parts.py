"""Checks the parts of states besides steps: folded states, nodes, large values; and pending writes and names.

Of nodes only the ids are kept in memory.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from holdfast._fields import fill
from holdfast.backends.interface import Row, Scan
from holdfast.backends.paging import UNREADABLE
from holdfast.backends.tables import EVENTS, FOLDS, LINKS, NODES, OBJECTS, QUARANTINE, REFS, STEPS, WRITES, Table
from holdfast.engine.generations import RESTORED
from holdfast.engine.integrity.check import TOGETHER, LineCheck, Where
from holdfast.engine.integrity.findings import Finding, FindingCode
from holdfast.engine.lines import LABEL, TAG
from holdfast.engine.model.large_pointers import PIECE, is_pointer, parse_pointer
from holdfast.engine.model.nodes import ChildRef, LeafNode, NodeId, SegmentNode, Slot, check_node, decode_node
from holdfast.engine.row_format import LEASE, PIN, is_about_step, open_body, open_fold, open_node
from holdfast.errors import CorruptError, HoldfastError


class PartCheck:
    """Checks all that belongs to steps."""

    def __init__(self, check: LineCheck) -> None:
        self.check = check
        self._roots: dict[Where, ChildRef | None] = {}
        self._below: dict[NodeId, list[NodeId]] = {}
        self._bad_nodes: dict[NodeId, Finding] = {}
        self._pointers: dict[NodeId, list[bytes]] = {}
        """Nodes with pointers to large values, and these."""
        self._objects: dict[bytes, int] = {}
        """Large values that are complete, and their sizes."""

    async def run(self) -> None:
        """Check all of them."""
        await self._check_folds()
        await self._check_nodes()
        await self._check_objects()
        await self._check_writes()
        await self._check_events()
        await self._check_refs()
        await self._check_others()

    # Folded states --------------------------------------------------------------------------------------------

    async def _check_folds(self) -> None:
        missing = dict(self.check.folded)
        async for row, damage in self.check.rows(FOLDS, bodies=self.check.deep):
            branch, seq = int(row.key[2]), int(row.key[3])
            place = (branch, seq)
            if seq >= self.check.lengths.get(branch, 0):
                if branch not in self.check.lengths or self._is_old(row):
                    what = "a folded state belongs to no checkpoint"
                    self.check.add(FindingCode.STRAY_FOLD, what, space=FOLDS.name, key=row.key, place=place)
                continue
            commit = missing.pop(place, None)
            if commit is None:
                what = "a folded state is at a checkpoint that does not count on it"
                self.check.add(FindingCode.STRAY_FOLD, what, space=FOLDS.name, key=row.key, place=place)
            else:
                self._fold(row, place, commit, damage)
        for place in missing:
            key = (*self.check.line, *place)
            finding = self.check.lost(FOLDS, key) or self.check.add(
                FindingCode.MISSING_FOLD, "a folded state is missing", space=FOLDS.name, key=key, place=place
            )
            self.check.marks.folds.setdefault(place, []).append(finding)

    def _is_old(self, row: Row) -> bool:
        """Return whether a folded state is of another form than the line's."""
        return self.check.info is not None and row.columns[0] != self.check.info.form

    def _fold(self, row: Row, place: Where, commit: bytes, damage: HoldfastError | None) -> None:
        problem = ""
        form, claim = row.columns
        if claim != commit:
            problem = "a folded state belongs to another checkpoint"
        elif self.check.info is not None and form != self.check.info.form:
            problem = f"a folded state has its nodes in set {int(form)}, and the thread in set {self.check.info.form}"
        elif damage is not None:
            problem = damage.what
        elif self.check.deep:
            try:
                self._roots[place] = open_fold(row, commit).child
            except HoldfastError as error:
                problem = error.what
        if problem:
            finding = self.check.add(FindingCode.DAMAGED_FOLD, problem, space=FOLDS.name, key=row.key, place=place)
            self.check.marks.folds.setdefault(place, []).append(finding)

    async def _check_nodes(self) -> None:
        others = 0
        was_leased = await self._is_leased()  # a rewrite that ends meanwhile removes them before it releases its lease
        async for row, damage in self.check.rows(NODES, bodies=self.check.deep):
            self.check.found.nodes += 1
            if self.check.info is not None and row.key[2] != self.check.info.form:
                others += 1  # of a rewrite that is in progress, or failed
            elif self.check.deep:
                self._node(row, damage)
        if others and not was_leased and not await self._is_leased():
            what = f"{others} nodes are of another set than the thread's"
            self.check.add(FindingCode.ORPHAN, what, space=NODES.name, key=tuple(self.check.line))
        if self.check.deep:
            self._reach()

    async def _is_leased(self) -> bool:
        """Return whether another process works on the line."""
        try:
            (rows,) = await self.check.backend.read([Scan(REFS, (*self.check.line, LEASE), limit=2)])
        except UNREADABLE:
            return False
        return any(row.key[3] != RESTORED for row in rows)

    def _node(self, row: Row, damage: HoldfastError | None) -> None:
        id = bytes(row.key[3])  # type: ignore[arg-type]
        try:
            if damage is not None:
                raise damage
            found, data = open_node(row)
            node = decode_node(found, data)
            if self.check.salt:
                check_node(found, data, self.check.salt)
        except HoldfastError as error:
            self._bad_nodes[id] = self.check.add(FindingCode.DAMAGED_NODE, error.what, space=NODES.name, key=row.key)
            return
        below: list[NodeId] = []
        values: Sequence[Slot] = ()
        if isinstance(node, SegmentNode):
            values = node.values
        elif isinstance(node, LeafNode):
            values = [entry.slot for entry in node.entries]
        else:
            below = [child.id for child in node.children]
        for value in values:
            if not isinstance(value, bytes):
                below += [] if value.child is None else [value.child.id]
            elif is_pointer(value):
                self._pointers.setdefault(id, []).append(value)
        self._below[id] = below

    def _reach(self) -> None:
        """Check that every folded state has its nodes, and every node a folded state."""
        visited: set[NodeId] = set()
        bad = {id: [finding] for id, finding in self._bad_nodes.items()}
        """The findings at or below a node, if there are any."""
        for place, root in self._roots.items():
            if root is not None:
                found = self._findings_below(root.id, visited, bad)
                if found:
                    self.check.marks.folds.setdefault(place, []).extend(found)
        self.check.needed.update(pointer for id in visited for pointer in self._pointers.get(id, ()))
        for id in self._bad_nodes.keys() - visited:
            finding = self._bad_nodes[id]
            fill(finding, message=f"{finding.message}; no folded state needs it")
        unused = len(self._below.keys() - visited)
        if unused:
            what = f"{unused} nodes are part of no folded state"
            self.check.add(FindingCode.ORPHAN, what, space=NODES.name, key=tuple(self.check.line))

    def _findings_below(self, top: NodeId, visited: set[NodeId], bad: dict[NodeId, list[Finding]]) -> list[Finding]:
        """Return the findings at or below a node."""
        todo = [(top, False)]
        while todo:
            id, done = todo.pop()
            if done:
                found = [each for below in self._below[id] for each in bad.get(below, ())]
                if found:
                    bad[id] = _distinct([*found, *bad.get(id, ())])
            elif id not in visited:
                visited.add(id)
                if id in self._below:
                    todo.append((id, True))
                    todo += ((below, False) for below in self._below[id])
                elif id not in bad:
                    bad[id] = [self._no_node(id)]
        return bad.get(top, [])

    def _no_node(self, id: NodeId) -> Finding:
        key = (*self.check.line, 0 if self.check.info is None else self.check.info.form, id)
        what = "a part of a folded state is missing"
        return self.check.lost(NODES, key) or self.check.add(FindingCode.MISSING_NODE, what, space=NODES.name, key=key)

    # Large values ---------------------------------------------------------------------------------------------

    async def _check_objects(self) -> None:
        value = _LargeValue(b"", self.check.salt)
        async for row, damage in self.check.rows(OBJECTS, bodies=self.check.deep):
            self.check.found.objects += 1
            digest, piece = bytes(row.key[2]), int(row.key[3])  # type: ignore[arg-type]
            if digest != value.digest:
                self._object(value)
                value = _LargeValue(digest, self.check.salt)
            if not self.check.deep:
                value.pieces += 1
            else:
                try:
                    if damage is not None:
                        raise damage
                    content = open_body(row, PIECE)
                except HoldfastError as error:
                    what = f"a piece of a large value is damaged: {error.what}"
                    finding = self.check.add(FindingCode.DAMAGED_OBJECT, what, space=OBJECTS.name, key=row.key)
                    self.check.marks.objects.setdefault(digest, []).append(finding)
                    value.damaged = True
                else:
                    value.take(piece, content)
        self._object(value)
        if not self.check.deep:
            return
        used: set[bytes] = set()
        for pointer in self.check.needed:
            size, _, digest = parse_pointer(pointer)
            used.add(digest)
            if digest not in self.check.marks.objects and self._objects.get(digest) != size:
                key = (*self.check.line, digest)
                what = f"a large value of {size} bytes is missing, or a piece of it"
                finding = self.check.lost(OBJECTS, key) or self.check.add(
                    FindingCode.MISSING_OBJECT, what, space=OBJECTS.name, key=key
                )
                self.check.marks.objects.setdefault(digest, []).append(finding)
        self._spoil_values()
        unused = len(self._objects.keys() - used)
        if unused:
            what = f"{unused} large values are part of no checkpoint"
            self.check.add(FindingCode.ORPHAN, what, space=OBJECTS.name, key=tuple(self.check.line))

    def _spoil_values(self) -> None:
        """Record folded states with a large value that is missing."""
        lost = self.check.marks.objects
        bad = {
            id: [finding for pointer in there for finding in lost.get(parse_pointer(pointer).digest, ())]
            for id, there in self._pointers.items()
            if any(parse_pointer(pointer).digest in lost for pointer in there)
        }
        visited: set[NodeId] = set()
        for place, root in self._roots.items() if bad else ():
            found = self._findings_below(root.id, visited, bad) if root is not None else []
            if found:
                self.check.marks.values.setdefault(place, []).extend(found)

    def _object(self, value: _LargeValue) -> None:
        if not value.digest or value.damaged:
            return
        if not self.check.deep:
            return
        if value.sha.digest() == value.digest or not self.check.salt:
            self._objects[value.digest] = value.size
        elif value.in_order and not value.size % PIECE and value.size:
            return  # perhaps only its end is missing, which is reported where it is needed
        elif value.in_order:
            what = "the pieces of a large value do not make up what they are named for"
            key = (*self.check.line, value.digest)
            finding = self.check.add(FindingCode.DAMAGED_OBJECT, what, space=OBJECTS.name, key=key)
            self.check.marks.objects.setdefault(value.digest, []).append(finding)

    # Pending writes, names ------------------------------------------------------------------------------------

    async def _check_writes(self) -> None:
        async for row, damage in self.check.rows(WRITES, bodies=self.check.deep):
            self.check.found.writes += 1
            if self.check.deep:
                self._record(WRITES, row, FindingCode.DAMAGED_WRITE, damage)

    async def _check_events(self) -> None:
        async for row, damage in self.check.rows(EVENTS, bodies=self.check.deep):
            if row.body or damage is not None:  # most have no details
                self._record(EVENTS, row, FindingCode.DAMAGED_EVENT, damage)

    def _record(self, space: Table, row: Row, damaged: FindingCode, damage: HoldfastError | None) -> None:
        """Check the record of a row that belongs to a step by its id."""
        try:
            if damage is not None:
                raise damage
            open_body(row, self.check.max_bytes)
        except HoldfastError as error:
            code = damaged if isinstance(error, CorruptError) else FindingCode.UNKNOWN_FORMAT
            self.check.add(code, error.what, checkpoint=str(row.key[2]), space=space.name, key=row.key)

    async def _check_refs(self) -> None:
        some: list[Row] = []
        async for row, damage in self.check.rows(REFS):
            if damage is not None:
                self.check.damaged(REFS, row, damage)
            elif is_about_step(row):
                some.append(row)
            elif row.key[2] in (TAG, LABEL, PIN):
                self._dangling(row, "points to no checkpoint")
            if len(some) == TOGETHER:
                await self._refs(some)
                some = []
        await self._refs(some)

    async def _check_others(self) -> None:
        for table in (LINKS, QUARANTINE):
            async for row, damage in self.check.rows(table):
                if damage is not None:
                    self.check.damaged(table, row, damage)

    async def _refs(self, refs: Sequence[Row]) -> None:
        scans = [Scan(STEPS, (*self.check.line, ref.columns[0]), limit=1, by="id", bodies=False) for ref in refs]
        try:
            found = await self.check.backend.read(scans) if scans else []
        except UNREADABLE:
            return  # reported already, as rows that cannot be read
        for ref, steps in zip(refs, found, strict=True):
            id = str(ref.columns[0])
            if not steps:
                self._dangling(ref, f"points to checkpoint {id}, which is not there")
            elif ref.key[4] != ("" if ref.key[2] == TAG else id):
                self._dangling(ref, f"is said to be of another checkpoint than {id}, to which it points")

    def _dangling(self, ref: Row, what: str) -> None:
        text = f"the {ref.key[2]!s} {ref.key[3]!r} {what}"
        id = str(ref.columns[0])
        self.check.add(FindingCode.DANGLING_REF, text, checkpoint=id, space=REFS.name, key=ref.key)


class _LargeValue:
    """A large value whose pieces are read."""

    def __init__(self, digest: bytes, salt: bytes) -> None:
        self.digest = digest
        self.sha = hashlib.sha256(salt)
        self.size = 0
        self.pieces = 0
        self.in_order = True
        self.damaged = False

    def take(self, piece: int, content: bytes) -> None:
        self.in_order = self.in_order and piece == self.pieces
        self.sha.update(content)
        self.size += len(content)
        self.pieces += 1


def _distinct(findings: Sequence[Finding]) -> list[Finding]:
    """Return each finding once; two with the same text are two."""
    return list({id(each): each for each in findings}.values())
