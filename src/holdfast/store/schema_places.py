"""Places that schemas are attached to: threads, scopes, keys of scopes, and the metadata of artifacts and sessions."""

from __future__ import annotations

from typing import Any, NamedTuple, cast

from holdfast.engine.model.scopes import GLOBAL, KINDS, MARK, Scope
from holdfast.engine.namespaces import is_thread, line_kind
from holdfast.engine.patterns import matcher
from holdfast.engine.row_format import Line
from holdfast.engine.schema_bindings import Bindings
from holdfast.engine.value_schemas import ValueKind, ValuePlace
from holdfast.errors import InvalidError
from holdfast.schemas.attached_version import AttachedVersion, LineAttachment, attach
from holdfast.schemas.attachment import Attachment, ScopeAttachment, ValueAttachment
from holdfast.schemas.schema_declaration import Declaration
from holdfast.security.handle import StoreHandle

_ALL = "**"
"""The pattern of all threads."""

_KINDS: dict[str, ValueKind] = {"keys": "key", "artifacts": "artifact", "sessions": "session"}
"""The kinds of values, as the engine calls them."""

_CLASSES: dict[str, type[LineAttachment]] = {"threads": Attachment, "scopes": ScopeAttachment}


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
            raise InvalidError(
                "a key can only be given with scopes", where=f"key={key!r}"[:80], hint='Give scopes="user:*" with it'
            )
        named = {"threads": threads, "scopes": scopes, "artifacts": artifacts, "sessions": sessions}
        given = {kind: pattern for kind, pattern in named.items() if pattern is not None}
        if len(given) > 1:
            raise InvalidError(
                f"a schema can be attached to {' or '.join(given)}, not to both at once", hint="Attach it twice"
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
        """Return the schema that is attached there."""
        bindings = self._bindings(handle)
        return None if bindings is None else cast(AttachedVersion | None, bindings.get(self._name(handle)))

    async def attach(self, handle: StoreHandle, declaration: Declaration) -> AttachedVersion:
        """Check a version against what the store has, register it, and bind what matches to it."""
        engine, tenant, matches, keys = handle.engine, handle.tenant, matcher(self.pattern), matcher(self.key or _ALL)
        is_thread_place = self.kind == "threads"
        attached: AttachedVersion = await attach(
            declaration,
            engine,
            tenant,
            handle.guard.actor,
            (self.pattern,) if is_thread_place else (),
            () if is_thread_place else (str(self),),
            kind=_CLASSES.get(self.kind, ValueAttachment),
            takes_unversioned=not is_thread_place or self.pattern != _ALL or declaration.unversioned is not None,
        )

        def has_line(line: Line) -> bool:
            is_one = is_thread(line.name) if is_thread_place else _is_scope(line.name)
            return line.tenant == tenant and is_one and matches(line.name.removeprefix(MARK))

        def has_value(value: ValuePlace) -> bool:
            if value[:2] != (tenant, _KINDS[self.kind]) or not matches(value.owner) or not keys(value.key):
                return False
            return self.kind != "keys" or _is_scope(MARK + value.owner)

        if isinstance(attached, ValueAttachment):
            engine.bind_value_schemas().bind(self._name(handle), has_value, attached)
        elif isinstance(attached, LineAttachment):
            engine.bind_schemas().bind(self._name(handle), has_line, attached)
        return attached

    def detach(self, handle: StoreHandle) -> bool:
        """Remove the schema that is attached there from this program. False if there is none."""
        bindings = self._bindings(handle)
        return bindings is not None and bindings.unbind(self._name(handle))

    def _bindings(self, handle: StoreHandle) -> Bindings[Any, Any] | None:
        return handle.engine.value_schemas if self.kind in _KINDS else handle.engine.schemas

    def _name(self, handle: StoreHandle) -> str:
        return f"{handle.tenant} {self}"


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
