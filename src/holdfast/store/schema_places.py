"""Places that schemas are attached to: threads, scopes, keys of scopes, and the metadata of artifacts and sessions."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, cast

from holdfast.engine.model.scopes import GLOBAL, KINDS, MARK, Scope
from holdfast.engine.namespaces import is_thread, line_kind
from holdfast.engine.patterns import matcher
from holdfast.engine.row_format import Line
from holdfast.engine.value_schemas import ValueKind
from holdfast.errors import InvalidError
from holdfast.schemas.attached_version import AttachedVersion
from holdfast.schemas.attachment import Attachment
from holdfast.schemas.registration import attach
from holdfast.schemas.schema_declaration import Declaration
from holdfast.schemas.scope_attachment import ScopeAttachment
from holdfast.schemas.value_attachment import ValueAttachment
from holdfast.security.handle import StoreHandle

_ALL = "**"
"""The pattern of all threads."""

_KINDS: dict[str, ValueKind] = {"keys": "key", "artifacts": "artifact", "sessions": "session"}
"""The kinds of values, as the engine calls them."""


class SchemaPlace(NamedTuple):
    """The states that a program attaches a schema to: of which kind, and which of them."""

    kind: str
    """`threads`, `scopes`, `keys`, `artifacts` or `sessions`."""
    pattern: str
    key: str = ""

    @classmethod
    def of(
        cls, threads: str | None, scopes: str | None, key: str | None, artifacts: str | None, sessions: str | None
    ) -> SchemaPlace:
        """Return the place that a caller names; by default it is all threads. Raises `InvalidError`."""
        if key is not None and scopes is None:
            raise InvalidError("a key is one of scopes", where=f"key={key!r}"[:80], hint='Give scopes="user:*" with it')
        named = {"threads": threads, "scopes": scopes, "artifacts": artifacts, "sessions": sessions}
        given = {kind: pattern for kind, pattern in named.items() if pattern is not None}
        if len(given) > 1:
            raise InvalidError(
                f"a schema is attached to {' or '.join(given)}, and not to both at once", hint="Attach it twice"
            )
        kind, pattern = next(iter(given.items()), ("threads", _ALL))
        matcher(pattern)
        if kind == "scopes":
            _require_scopes(pattern)
        if key is None:
            return cls(kind, pattern)
        matcher(key)
        return cls("keys", pattern, key)

    def __str__(self) -> str:
        return f"{self.kind} {self.pattern}\t{self.key}" if self.key else f"{self.kind} {self.pattern}"

    def bound(self, handle: StoreHandle) -> AttachedVersion | None:
        """Return what is attached there."""
        engine = handle.engine
        if self.kind in _KINDS:
            values = engine.value_schemas
            return None if values is None else cast(AttachedVersion | None, values.get(str(self), handle.tenant))
        lines = engine.schemas
        return None if lines is None else cast(AttachedVersion | None, lines.get(self._name(handle)))

    async def attach(self, handle: StoreHandle, declaration: Declaration) -> AttachedVersion:
        """Check a version against what the store has, register it, and bind what matches to it."""
        engine, tenant, actor = handle.engine, handle.tenant, handle.guard.actor
        matches = matcher(self.pattern)
        if self.kind in _KINDS:
            bindings = engine.bind_value_schemas()
            value = await attach(declaration, engine, tenant, actor, places=(str(self),), kind=ValueAttachment)
            bindings.bind(str(self), tenant, _KINDS[self.kind], self._value_matcher(), value)
            return value
        lines = engine.bind_schemas()
        if self.kind == "scopes":
            scope = await attach(declaration, engine, tenant, actor, places=(str(self),), kind=ScopeAttachment)

            def has_scope(line: Line) -> bool:
                return line.tenant == tenant and _is_scope(line.name) and matches(line.name.removeprefix(MARK))

            lines.bind(self._name(handle), has_scope, scope)
            return scope
        takes_unversioned = self.pattern != _ALL or declaration.unversioned is not None
        thread = await attach(
            declaration, engine, tenant, actor, (self.pattern,), kind=Attachment, takes_unversioned=takes_unversioned
        )

        def has_thread(line: Line) -> bool:
            return line.tenant == tenant and is_thread(line.name) and matches(line.name)

        lines.bind(self._name(handle), has_thread, thread)
        return thread

    def detach(self, handle: StoreHandle) -> bool:
        """Remove what is attached there from this program. False if nothing is."""
        engine = handle.engine
        if self.kind in _KINDS:
            return engine.value_schemas is not None and engine.value_schemas.unbind(str(self), handle.tenant)
        return engine.schemas is not None and engine.schemas.unbind(self._name(handle))

    def _name(self, handle: StoreHandle) -> str:
        return f"{handle.tenant} {self}" if handle.tenant else str(self)

    def _value_matcher(self) -> Callable[[str, str], bool]:
        owners, keys = matcher(self.pattern), matcher(self.key or _ALL)
        if self.kind == "keys":
            return lambda owner, key: _is_scope(MARK + owner) and owners(owner) and keys(key)
        return lambda owner, _: owners(owner)


def _require_scopes(pattern: str) -> None:
    """Require a pattern that may match a scope: its parts are of known kinds, as far as it names them."""
    for part in pattern.split("/"):
        kind, colon, _ = part.partition(":")
        if not (set("*?") & set(kind) or (colon and kind in KINDS) or pattern == GLOBAL):
            raise InvalidError(
                f"no scope has a part {part!r}",
                where=f"scopes={pattern!r}"[:80],
                hint=f"A part is a kind and a name, such as user:*; the kinds are {', '.join(KINDS)}",
            )


def _is_scope(name: str) -> bool:
    return line_kind(name) in ("scope", "session") and Scope.of_line(name) is not None
