"""States that come in from elsewhere, by an import or a restore: those that say which version they have must fit it."""

from __future__ import annotations

from typing import Any

from holdfast.engine.engine import Engine
from holdfast.engine.patterns import matcher
from holdfast.errors import NotFoundError
from holdfast.schemas.attached_version import AttachedVersion, report_problems
from holdfast.schemas.registry import SchemaRegistry
from holdfast.schemas.version import parse_reference


class ExternalStates:
    """Checks states against the versions that a store has registered."""

    def __init__(self, engine: Engine, tenant: str, actor: str = "") -> None:
        self._registry = SchemaRegistry(engine, tenant, actor)
        self._used: set[str] = set()

    async def check(
        self, reference: str, value: Any, where: str, attached: object = None, *, partial: bool = False
    ) -> None:
        """Check a state that says it has a version. Raises `InvalidError` if it does not fit, and `NotFoundError` if
        the store knows the schema and not the version; or as the schema that this program attached to it says, warns
        of it or does not check it. Of a schema that the store does not know, nothing is checked."""
        registered = await self._registry.load()
        mode = attached.declaration.validate if isinstance(attached, AttachedVersion) else "refuse"
        name, version = parse_reference(reference)
        if name not in registered.records:
            return
        if version not in [each.version for each in registered.schemas if each.name == name]:
            raise NotFoundError(
                f"the state is of {reference}, a version that this store does not know",
                where=where,
                hint="Attach a program with that version first, or migrate the states before they are exported",
                code="schema-version-unknown",
            )
        self._used.add(reference)
        if mode != "off":
            report_problems(reference, registered.schemas.check(reference, value, partial=partial), where, mode)

    async def add_unversioned(self, thread: str) -> None:
        """Note a state of a thread that does not say which version it has."""
        for name, record in (await self._registry.load()).records.items():
            if any(matcher(pattern)(thread) for pattern in record.patterns):
                self._used.add(f"{name}@{record.unversioned}")

    async def register(self) -> None:
        """Record that there are states of these versions again, if the last ones had been migrated."""
        unused = sorted(self._used & (await self._registry.load(refresh=True)).unused)
        if unused:
            await self._registry.register([], used=unused)
