"""Writes `docs/operations.md`, the list of all operations, from their declarations.

`python -m tools.operation_reference`; `tests/store/test_catalogue.py` fails while the page says something else.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator
from pathlib import Path

from holdfast.backends.runtime.drivers import declaration_of
from holdfast.interfaces.http.forwards import FORWARDS, first_sentence
from holdfast.store.catalogue import CataloguedOperation, StorePart, store_parts

PAGE = Path(__file__).resolve().parent.parent / "docs" / "operations.md"

_INTRODUCTION = """\
# Operations

All operations of a store, by the part that has them, with who may call each. This page is made by \
`tools/operation_reference.py` from the declarations at the methods; [the reference](reference.md) describes \
parameters and results.

- *Changes*: whether it changes something; with `dry_run`, it then says what it would do.
- *Rights*: what [an identity](guides/access.md) needs; or only the store's owner can call it.
- *HTTP*: its own route below `/api/v1`, if it has one. [A served store](guides/http.md) can call all others, too, but \
for those with a reason why not.
- *Scripts*: [scripts](guides/scripts.md) have all others, but for those with a reason why not.
"""

_ACCESS = {
    "store": "store",
    "thread": "store.thread(name)",
    "lazy_state": "store.thread(name).get(lazy=True).state",
    "state": "store.state(scope)",
    "steps": "store.agents.steps(id)",
    "timers": "store.agents.timers(id)",
}


def reference() -> str:
    """Return the page."""
    parts = [part for part in store_parts().values() if any(part.operations())]
    return "\n".join([_INTRODUCTION, *(line for part in parts for line in _part(part))])


def _part(part: StorePart) -> Iterator[str]:
    found = list(part.operations())
    of_identity = [each for each in found if declaration_of(part.owner, each.name) is None]
    yield from _table(_ACCESS.get(part.name, f"store.{part.name}"), [each for each in found if each not in of_identity])
    if of_identity:
        yield from _table("store.as_identity(…)", of_identity)


def _table(access: str, operations: Iterable[CataloguedOperation]) -> Iterator[str]:
    yield from (f"## {access}", "")
    yield from ("| operation | | changes | rights | HTTP | scripts |", "|---|---|---|---|---|---|")
    yield from map(_row, operations)
    yield ""


def _row(operation: CataloguedOperation) -> str:
    declared = operation.declaration
    names = [name for name in inspect.signature(operation.function).parameters if name != "self"]
    changes = "yes" if declared.changes else ""
    rights = "owner" if operation.owner_only else ", ".join(operation.rights)
    place = f"{operation.part.name}.{operation.name}"
    address = next((f"`{each.address}`" for each in FORWARDS if each.operation == place), declared.not_remote)
    call = f"`{operation.name}({', '.join(names)})`"
    cells = (call, first_sentence(operation.function), changes, rights, address, declared.not_in_scripts)
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


if __name__ == "__main__":
    PAGE.write_text(reference(), encoding="utf-8")
