"""Versions of stored states that come back: a branch starts from an old checkpoint, or an old state is restored."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from holdfast.backends.interface import Batch, Change
from holdfast.engine.context import Apply
from holdfast.engine.engine import Engine
from holdfast.engine.guard import Preconditions
from holdfast.engine.namespaces import root_of
from holdfast.engine.patterns import matcher
from holdfast.engine.row_format import Line, StepRef
from holdfast.errors import UnsupportedError
from holdfast.schemas.registry import RegisteredSchemas, SchemaRegistry
from holdfast.schemas.version import parse_reference


class VersionUse:
    """Registers that there are states of some versions again, so that programs reckon with them."""

    def __init__(self, engine: Engine, tenant: str, actor: str = "") -> None:
        self._engine = engine
        self._registry = SchemaRegistry(engine, tenant, actor)

    async def reference(self, line: Line, point: StepRef) -> str:
        """Return the reference of a state of a thread; empty if it has no schema. One that was saved without a
        reference has the version that such states have."""
        reference = (await self._engine.step_info.head(line, point)).header.schema
        if reference or line != root_of(line):
            return reference
        for name, record in (await self._registry.load()).records.items():
            if any(matcher(pattern)(line.name) for pattern in record.patterns):
                return f"{name}@{record.unversioned}"
        return ""

    async def conditions_at(self, line: Line, point: StepRef) -> tuple[str, Preconditions | None]:
        """Return the reference of an old state, and the conditions on which it is stored again; where a schema is
        attached, that has its own."""
        reference, schemas = await self.reference(line, point), self._engine.schemas
        is_attached = schemas is not None and schemas.find(line) is not None
        return reference, None if is_attached or not reference else self.conditions([reference], f"thread {line}")

    def conditions(self, references: Iterable[str], where: str) -> Preconditions:
        """Return the conditions on which states of some versions are stored: nobody retires the versions meanwhile.
        Raises `UnsupportedError` of a version that states were downgraded from."""
        stored = sorted(set(references) - {""})

        async def register(again: bool) -> Sequence[Change]:
            registered = await self._registry.load(refresh=again)
            unused = [each for each in stored if each in registered.unused]
            if unused:
                for each in unused:
                    _refuse_newer(each, registered, where)
                await self._registry.register([], used=unused)
            return self._registry.unchanged() if stored else ()

        return register

    def applied(self, references: Iterable[str], where: str, apply: Apply) -> Apply:
        """Return how to apply changes on these conditions."""
        conditions, attempts = self.conditions(references, where), 0

        async def apply_on_conditions(changes: Batch) -> int | None:
            nonlocal attempts
            attempts += 1
            return await apply([*await conditions(attempts > 1), *changes])

        return apply_on_conditions


def _refuse_newer(reference: str, registered: RegisteredSchemas, where: str) -> None:
    name, version = parse_reference(reference)
    record = registered.records.get(name)
    if record is not None and version is not None and version > record.current:
        raise UnsupportedError(
            f"the state is of {reference}, and those of {name} were downgraded to {record.current}",
            where=where,
            hint=f"Take a state of {record.current}, or upgrade again: holdfast migrate up {name}",
            code="schema-newer",
        )
