"""Many threads in a store, made in bulk: rows as saves make them, thousands in a batch.

    python -m benchmarks.bulk_threads sqlite:////tmp/threads.db --threads 1000000

Threads of chats of 200 users in five teams, with two checkpoints each unless `--steps` says otherwise, saved over the
last `--days`. What makes them is the engine below the paths of saves, so that every operation and `verify` accept the
store; hooks, schemas, readable rows and the text index are not served.
"""

from __future__ import annotations

import argparse
import gc
import random
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import holdfast
from holdfast.backends.interface import Change, Create
from holdfast.backends.runtime.drivers import run
from holdfast.backends.tables import LINES, STEPS
from holdfast.codec import default_codec
from holdfast.engine.fields import FieldValue, added_rows, metadata_entries, name_entry, named_values
from holdfast.engine.ids import new_id
from holdfast.engine.model.diff import diff_maps
from holdfast.engine.model.line_salt import SALT_SIZE
from holdfast.engine.model.operations import EditMap
from holdfast.engine.model.packed_state import PackedMap, pack_state
from holdfast.engine.model.steps import Step, StepHeader, StepParent
from holdfast.engine.row_format import AT_HEAD, Line, LineInfo, StepRef, info_row, readable, step_body

USERS, TEAMS = 200, 5
DAY = 86400 * 10**9
_BATCH = 1000
"""How many threads are in a batch."""
_CHATS = 97
"""How many different chats there are: their content is packed once."""
_MAX_STEPS = 31
"""Fewer than from one folded state to the next: folds are made by saves alone."""


def thread_of(number: int) -> str:
    """Return the name of a thread."""
    return f"chat-{number:07}"


def metadata_of(number: int) -> dict[str, object]:
    """Return the metadata of the checkpoints of a thread."""
    return {"user": f"u{number % USERS}", "team": f"t{number % TEAMS}"}


def fill(store: holdfast.Store, threads: int, *, steps: int = 2, days: float = 100, first: int = 0) -> None:
    """Make threads. The last of them are the last that were saved, at about this time; `first` is their number."""
    if not 1 <= steps <= _MAX_STEPS:
        raise ValueError(f"a thread that is made in bulk has 1 to {_MAX_STEPS} checkpoints, not {steps}")
    engine, tenant = store._engine, store.tenant
    chats = [list(_edits(number, steps)) for number in range(_CHATS)]
    described = [_Described.of(number) for number in range(USERS)]
    now, random_bytes = time.time_ns(), random.Random(first)
    gc.disable()  # there are many rows, and no circles
    try:
        for start in range(0, threads, _BATCH):
            batch: list[Change] = []
            for number in range(start, min(start + _BATCH, threads)):
                saved = now - round((threads - number) / threads * days * DAY)
                salt = random_bytes.randbytes(SALT_SIZE)
                info = LineInfo(saved, random_bytes.getrandbits(61), 1, salt=salt)
                line = Line(tenant, thread_of(first + number))
                about = described[(first + number) % USERS]
                batch += _thread(line, info, about, chats[number % _CHATS], engine.context.max_bytes)
            if run(engine.context.backend.apply(batch)) is not None:
                raise ValueError(f"a thread from {thread_of(first + start)} on exists already")
    finally:
        gc.enable()


def _edits(number: int, steps: int) -> Iterator[EditMap]:
    """Yield the changes of the steps of a chat."""
    state: PackedMap = {}
    messages: list[dict[str, Any]] = []
    for step in range(steps):
        role = "assistant" if step % 2 else "user"
        messages.append({"role": role, "content": f"word{number} and word{number + step}, said in turn {step}. " * 3})
        new = pack_state(default_codec, {"messages": messages, "step": step})
        yield diff_maps(state, new)
        state = new


class _Described(NamedTuple):
    """The metadata of a thread: packed, as JSON, and its values in the index of fields."""

    packed: bytes
    text: str
    values: set[FieldValue]

    @classmethod
    def of(cls, number: int) -> _Described:
        metadata = metadata_of(number)
        text = readable(default_codec, metadata)
        return cls(default_codec.pack(metadata), text, named_values(name_entry, metadata_entries(text)).added)


def _thread(line: Line, info: LineInfo, about: _Described, edits: list[EditMap], max_bytes: int) -> Iterator[Change]:
    """Yield the rows of a thread."""
    yield Create(LINES, info_row(line, info))
    parent: StepRef | None = None
    for seq, edit in enumerate(edits):
        moment = info.created + seq * 10**9
        id = new_id(moment, parent.id if parent else "")
        parents = (StepParent(0, seq - 1, parent.hash),) if parent else ()
        step = Step(StepHeader(id, parents, moment, "", "save", "", about.packed), edit)
        body = step_body(line, step, max_bytes, (), info.salt)
        size = len(body) + (parent.size if parent else 0)
        parent = StepRef(0, seq, id, 0, seq, step.commit(info.salt), moment, "save", about.text, seq + 1, size, AT_HEAD)
        yield Create(STEPS, parent.row(line, body))
    yield from added_rows(line, about.values)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url")
    parser.add_argument("--threads", type=int, default=1_000_000)
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--days", type=float, default=100)
    options = parser.parse_args()
    start = time.process_time()
    with holdfast.open(options.url) as store:
        fill(store, options.threads, steps=options.steps, days=options.days)
    print(f"{options.threads:,} threads in {time.process_time() - start:.1f} s of CPU")


if __name__ == "__main__":
    main()
