"""A transaction that changes keys and saves checkpoints together, all or none."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Unpack

from holdfast.backends.runtime.drivers import arun, run
from holdfast.engine.guard import OWNER, acting
from holdfast.engine.line_errors import missing_line_error
from holdfast.engine.paths import Path
from holdfast.engine.types import Checkpoint
from holdfast.errors import InvalidError
from holdfast.security.handle import StoreHandle
from holdfast.state.api import StateTransaction
from holdfast.store.checkpoint_fields import CheckpointFields
from holdfast.store.thread import ThreadOperations
from holdfast.store.thread_access import refresh_known

if TYPE_CHECKING:
    from holdfast.engine.append import AppendRequest
    from holdfast.state.writer import WrittenKey


class Transaction(StateTransaction):
    """Changes keys and saves checkpoints together when it ends. See `Store.transaction`."""

    written: list[WrittenKey]

    def __init__(self, handle: StoreHandle, owner: object) -> None:
        super().__init__(handle, owner)
        self._handle = handle
        self._requests: list[AppendRequest] = []
        self.checkpoints: list[Checkpoint] = []
        """The saved checkpoints, in the order of the calls; empty until the transaction ends."""

    def get(self, thread: str) -> Any:
        """Return the latest checkpoint of a thread with its state; on an `AsyncStore`, awaited. Raises `NotFoundError`.

        If others save to the thread before the transaction ends, it raises `ConflictError` and saves nothing. A thread
        is read before it is saved in the same transaction.
        """
        reading = self._get(thread)
        return run(reading) if self._is_sync else arun(reading)

    async def _get(self, thread: str) -> Checkpoint:
        handle = ThreadOperations[Any](self._handle, thread)
        line = handle._line
        if any(request.line == line for request in self._requests):
            raise InvalidError(
                "the thread was saved in this transaction, and has that checkpoint only after it",
                where=f"thread {line}",
                hint="Read it first",
            )
        point = await self._pending.read_thread(line)
        if point is None:
            raise missing_line_error(line)
        return await handle._read(point)

    def put(
        self, thread: str, state: Mapping[str, Any], *, if_changed: bool = False, **fields: Unpack[CheckpointFields]
    ) -> None:
        """Save the state of a thread, as `Thread.put` does. The state is packed now: later changes of the object are
        not saved."""
        self._pending.check_open()
        handle = ThreadOperations[Any](self._handle, thread)
        self._requests.append(
            handle._put_request(state, if_changed, handle._append_fields("Transaction.put", _checked(fields)))
        )

    def update(
        self,
        thread: str,
        changes: Mapping[Path, Any],
        *,
        remove: Iterable[Path] = (),
        **fields: Unpack[CheckpointFields],
    ) -> None:
        """Change parts of a thread's state, as `Thread.update` does."""
        self._pending.check_open()
        handle = ThreadOperations[Any](self._handle, thread)
        edit = handle._edit(changes, remove)
        self._requests.append(handle._edit_request("Transaction.update", edit, _checked(fields)))

    async def _commit(self) -> None:
        requests, self._requests = self._requests, []
        with acting(OWNER):  # also inside of an operation of an identity, as in a function that resolves conflicts
            self.written, heads = await self._pending.commit(requests)
        self.checkpoints = [
            Checkpoint.from_step(request.line, head, self._handle.codec)
            for request, head in zip(requests, heads, strict=True)
        ]
        for line in dict.fromkeys(request.line for request in requests):
            await refresh_known(self._handle.engine, line)


def _checked(fields: CheckpointFields) -> CheckpointFields:
    how = fields.get("on_conflict")
    if how == "merge" or callable(how):
        raise InvalidError("a transaction cannot merge: on_conflict is 'raise', 'branch' or 'overwrite' in one")
    return fields
