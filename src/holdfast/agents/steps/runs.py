"""The steps that are being run: a row for each, beside the line of an agent's steps.

The row is put before the function is called, and removed in the batch that records the outcome. It is the lease of the
step and says that an attempt began, both at once. So a row that nobody renews is that of an attempt whose process died:
the function may have been called, or not.

The token of the attempt decides what may be recorded: a process that was presumed dead still records its result, while
the row is that of its attempt. Whoever decides what became of an attempt holds the row meanwhile, under another token.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b

import msgspec

from holdfast._structs import decode_json
from holdfast.agents.steps.records import RecordedStep, StepLine, StepRecord, StoredStep
from holdfast.backends.interface import Change, Delete, Expect, Get, Put, Row, Scan
from holdfast.backends.runtime.drivers import complete
from holdfast.backends.tables import LINKS, Key
from holdfast.engine.leases import has_lapsed, new_token
from holdfast.engine.row_format import RUNNING
from holdfast.errors import ConflictError, CorruptError


class _Target(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the row of a run says."""

    key: str
    step: StoredStep
    token: str
    """That of the attempt."""
    holder: str = ""
    """The token of who has the lease; empty for nobody."""


class StepRun:
    """An attempt at a step that has not ended."""

    def __init__(self, line: StepLine, row: Row, target: _Target) -> None:
        self._line = line
        self._row = row
        self._target = target
        self._context = line.agent.handle.engine.context
        self.is_over = False
        """Whether its outcome was recorded here."""
        self.is_called = True
        """Whether the function may have been called."""
        self._before: StepRun | None = None

    @classmethod
    def begin(cls, line: StepLine, key: str, step: StoredStep, before: StepRun | None) -> StepRun:
        """Return a new attempt of this process, in place of one before. The function was not called yet."""
        token = new_token()
        begun = cls._made(line, _Target(key, step, token, token))
        begun.is_called, begun._before = False, before
        return begun

    @classmethod
    def _made(cls, line: StepLine, target: _Target) -> StepRun:
        text = msgspec.json.encode(target).decode()
        return cls(line, Row(_row_key(line, target.key), (line.agent.handle.now(), text)), target)

    @classmethod
    def of(cls, line: StepLine, row: Row) -> StepRun:
        """Return the attempt in a row."""
        try:
            return cls(line, row, decode_json(str(row.columns[1]), _Target))
        except msgspec.MsgspecError as error:
            raise CorruptError(f"a durable step cannot be decoded: {error}", where=line.where) from error

    @property
    def key(self) -> str:
        """The key of the step."""
        return self._target.key

    @property
    def step(self) -> StoredStep:
        """The step as it is stored."""
        return self._target.step

    @property
    def record(self) -> StepRecord:
        """The public form."""
        return StepRecord.of(self.key, self.step)

    def has_ended(self, recorded: RecordedStep | None) -> bool:
        """Return whether the end of this attempt is recorded: a copy of the line may have the row all the same."""
        if recorded is None:
            return False
        step = recorded.step
        return step.idempotency_key == self.step.idempotency_key and step.attempts >= self.step.attempts

    def is_same(self, other: StepRun | None) -> bool:
        """Return whether another has the same row."""
        return other is not None and other._row == self._row

    def condition(self) -> Change:
        """Return the condition that the row is as it was."""
        return Expect(LINKS, self._row.key, self._row.columns)

    def put_over(self, before: StepRun | None) -> list[Change]:
        """Return the changes that put the row in place of another, or of none."""
        expected = run_absent(self._line, self.key) if before is None else [before.condition()]
        return [*expected, Put(LINKS, self._row)]

    def removal(self) -> list[Change]:
        """Return the changes that remove the row, if it is as it was."""
        return [self.condition(), Delete(LINKS, self._row.key)]

    async def reload(self, *, held: bool = False) -> bool:
        """Read the row again: it was renewed and the answer was lost, or somebody is deciding about it. Returns False
        if it is not that of this attempt any more; or, with `held`, if another has the lease."""
        stored = await read_run(self._line, self.key)
        if stored is None or stored._target.token != self._target.token or (held and stored._target != self._target):
            return False
        self._row = stored._row
        return True

    async def has_lapsed(self, observe: float = 0) -> bool:
        """Return whether nobody has the lease, or its process is presumed dead; see `leases.has_lapsed`."""
        if not self._target.holder:
            return True
        life = int(self.step.lease * 1e9)
        time, clock = int(self._row.columns[0]), self._context.clock
        return await has_lapsed(self._target.holder, time, life, clock, observe, self._is_unchanged)

    async def _is_unchanged(self) -> bool:
        return self.is_same(await read_run(self._line, self.key))

    async def take(self) -> StepRun | None:
        """Take the lease, to decide what became of the attempt. None if another was first."""
        taken = self._made(self._line, msgspec.structs.replace(self._target, holder=new_token()))
        return None if await self._context.backend.apply(taken.put_over(self)) is not None else taken

    async def renew(self) -> None:
        """Renew the lease. `ConflictError` if another process has it."""
        for _ in range(2):
            renewed = self._row._replace(columns=(self._context.clock(), self._row.columns[1]))
            if await self._context.backend.apply([self.condition(), Put(LINKS, renewed)]) is None:
                self._row = renewed
                return
            if not await self.reload(held=True):
                break
        raise ConflictError("another process has the step", where=f"step {self.key!r} of {self._line.where}")

    async def release(self) -> None:
        """Give up the lease without an outcome, which is then unknown; if the function was not called, put back what
        was before.

        Done even if the task is cancelled or Ctrl-C is pressed just now: others would have to wait until it expires.
        """
        backend = self._context.backend

        def changes() -> list[Change]:
            if self.is_called:
                return self._made(self._line, msgspec.structs.replace(self._target, holder="")).put_over(self)
            return self.removal() if self._before is None else self._before.put_over(self)

        async def give_up() -> None:
            if await backend.apply(changes()) is not None:
                await backend.apply([])  # it was being put or renewed when that was interrupted, perhaps
                if await self.reload(held=True):
                    await backend.apply(changes())

        await complete(give_up)


async def read_run(line: StepLine, key: str) -> StepRun | None:
    """Return the attempt at a step that has not ended, if there is one."""
    (rows,) = await line.agent.handle.engine.context.backend.read([Get(LINKS, [_row_key(line, key)])])
    return StepRun.of(line, rows[0]) if rows else None


async def list_runs(line: StepLine) -> Sequence[StepRun]:
    """Return the attempts that have not ended."""
    (rows,) = await line.agent.handle.engine.context.backend.read([Scan(LINKS, (*line.line, RUNNING))])
    return [StepRun.of(line, row) for row in rows]


def run_absent(line: StepLine, key: str) -> list[Change]:
    """Return the condition that there is no attempt at a step that has not ended."""
    return [Expect(LINKS, _row_key(line, key), None)]


def _row_key(line: StepLine, key: str) -> Key:
    """Return the key of a row. The digest keeps it as private as the step."""
    return (*line.line, RUNNING, blake2b(key.encode(), digest_size=16).hexdigest(), "")
