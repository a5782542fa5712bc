"""Arguments and results of the API as JSON, for a store that is served to other processes.

They have the form of `Codec.to_json`, so a tuple stays a tuple, and the classes of an application pass through a server
that does not have them. Results that are no plain data (pages, differences, sessions) are registered here, in a
registry of their own: nothing of it is ever stored.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import cache
from typing import Any

import msgspec

from holdfast._lazy import imported_names, load
from holdfast.codec import Codec
from holdfast.codec.class_lookup import find_loaded
from holdfast.codec.registry import Registration, Registry
from holdfast.engine.model.json_diff import NOTHING, Absent, Edit
from holdfast.engine.model.missing import MISSING
from holdfast.engine.model.operators import AddToSet, Append, Increment, Max
from holdfast.engine.pages import Page
from holdfast.errors import CorruptError, HoldfastError, InvalidError
from holdfast.history.diff_result import Diff, DiffSide
from holdfast.history.search import SearchPage
from holdfast.hooks.execution_log import HookStatisticsList
from holdfast.state.sessions.api import Session
from holdfast.state.sessions.records import SessionRecord
from holdfast.store.catalogue import store_parts
from holdfast.store.timeline.api import TimelinePage

ARGUMENTS = frozenset(
    {
        "holdfast.engine.model.operators:AddToSet",
        "holdfast.engine.model.operators:Append",
        "holdfast.engine.model.operators:Increment",
        "holdfast.engine.model.operators:Max",
        "holdfast.engine.types:Checkpoint",
        "holdfast.engine.model.scopes:Scope",
        "holdfast.engine.model.scopes:ScopePart",
        "holdfast.maintenance.retention:Retention",
        "holdfast.maintenance.verify.heads:BranchHead",
        "holdfast.maintenance.verify.heads:StoreHeads",
        "holdfast.maintenance.verify.heads:ThreadHead",
        "holdfast.security.access.identity:Identity",
        "holdfast.security.access.policy:Policy",
        "holdfast.security.access.policy:Rule",
        "holdfast.state.access_api:Grant",
        "holdfast.state.access_api:Token",
    }
)
"""The classes that an argument may have. All others reach the store as they are, and are not rebuilt in the server:
some of them name files and keys, which a caller elsewhere must not choose."""

_INSIDE = {
    ("holdfast.engine.branch_graph", "Position"),
    ("holdfast.engine.model.json_diff", "Edit"),
    ("holdfast.engine.model.json_diff", "UnloadedValue"),
    ("holdfast.history.log_walk", "StepNames"),
    ("holdfast.state.sessions.records", "SessionRecord"),
}
"""Classes that are parts of results, and that no operation names."""


class CallCodec:
    """Converts arguments and results of calls. `codec` is that of the application; `session` builds a session."""

    def __init__(
        self,
        codec: Codec,
        classes: Collection[str] | None = None,
        session: Callable[[str, SessionRecord, Any], Session] | None = None,
    ) -> None:
        """`classes`: those that are rebuilt; by default, all that a result may have, and those of the application."""
        self._values = Codec(
            _CallRegistry(codec, session, may_revive := _revives_result if classes is None else classes.__contains__),
            max_bytes=codec.max_bytes,
            may_revive=may_revive,
        )

    def to_json(self, value: Any) -> Any:
        """Convert a value."""
        return self._values.to_json(value)

    def from_json(self, tree: Any) -> Any:
        """Convert it back. Raises `InvalidError` for what `to_json` does not return."""
        try:
            return self._values.from_json(tree)
        except (CorruptError, ValueError, TypeError, KeyError) as error:
            reason = error.what if isinstance(error, HoldfastError) else str(error)
            raise InvalidError(f"the values of a call are not as Codec.to_json has them: {reason}"[:500]) from None


def _revives_result(name: str) -> bool:
    """Import what a result of ours needs, from what operations import. Classes of the application are revived as
    always."""
    module, _, kind = name.partition(":")
    if (module, kind) in _result_classes():
        load(module, kind)
    return True


@cache
def _result_classes() -> frozenset[tuple[str, str]]:
    """Return the names that the modules of operations import: what their results are made of."""
    modules = {kind.__module__ for part in store_parts().values() for kind in part.owner.__mro__}
    ours = [each for each in modules if each.startswith("holdfast.")]
    return frozenset({name for module in ours for name in imported_names(module).values()} | _INSIDE)


class _CallRegistry(Registry):
    """The registry of an application, and the results that are no plain data."""

    def __init__(
        self,
        codec: Codec,
        session: Callable[[str, SessionRecord, Any], Session] | None,
        may_revive: Callable[[str], bool],
    ) -> None:
        super().__init__()
        self._application = codec.registry
        self._may_revive = may_revive
        self.register(Page, lambda page: [list(page), page.next], lambda parts: Page(parts[0], parts[1]))
        self.register(SearchPage, _dump_search, _load_search)
        self.register(
            TimelinePage,
            lambda page: [list(page), page.next, page.examined, page.stopped],
            lambda parts: TimelinePage(parts[0], parts[1], None, parts[2], stopped=parts[3]),
        )
        self.register(HookStatisticsList, list, HookStatisticsList)
        self.register(Diff, _dump_diff, lambda parts: _load_diff(codec, parts))
        self.register(Absent, lambda _: None, lambda _: NOTHING)
        self.register(type(MISSING), lambda _: None, lambda _: MISSING)
        self.register(Increment, lambda operator: operator.operand, Increment)
        self.register(Append, lambda operator: operator.operand, lambda items: Append(*items))
        self.register(AddToSet, lambda operator: operator.operand, lambda items: AddToSet(*items))
        self.register(Max, lambda operator: operator.operand, Max)
        self.register(
            Session,
            lambda found: [found.id, found._record, found.status],
            lambda parts: _load_session(session, parts),
        )

    def _record(self, kind: type[Any] | None) -> Registration | None:
        """Register a record of this package."""
        if kind is None or not kind.__module__.startswith("holdfast.") or not issubclass(kind, msgspec.Struct):
            return None
        self.register(kind, _dump_record, lambda fields: kind(**fields))
        return super().registration(kind)

    def registration(self, type: type) -> Registration | None:
        return super().registration(type) or self._application.registration(type) or self._record(type)

    def registration_named(self, name: str) -> Registration | None:
        found = super().registration_named(name) or self._application.registration_named(name)
        return found or (self._record(find_loaded(name)) if self._may_revive(name) else None)

    def name_of(self, target: Any) -> str:
        return self._application.name_of(target)

    def named(self, name: str) -> Any:
        return self._application.named(name)


def _dump_record(record: msgspec.Struct) -> dict[str, Any]:
    """Return the fields, with a dict for what is only like one."""
    fields = msgspec.structs.asdict(record)
    return {
        name: {**each} if isinstance(each, Mapping) and not isinstance(each, dict) else each
        for name, each in fields.items()
    }


def _dump_search(page: SearchPage) -> Any:
    return [list(page), page.next, page.how, page.examined, page.unreadable, page.stopped]


def _load_search(parts: Any) -> SearchPage:
    page = SearchPage.__new__(SearchPage)
    Page.__init__(page, parts[0], parts[1])
    page.how, page.examined, page.unreadable, page.stopped = parts[2:]
    return page


def _dump_diff(diff: Diff) -> Any:
    return [tuple(diff.old), tuple(diff.new), list(diff._edits)]


def _load_diff(codec: Codec, parts: Any) -> Diff:
    old, new, edits = parts
    if not all(isinstance(each, Edit) for each in edits):
        raise InvalidError("a difference consists of edits")
    return Diff(codec, DiffSide(*old), DiffSide(*new), edits)


def _load_session(build: Callable[[str, SessionRecord, Any], Session] | None, parts: Any) -> Session:
    if build is None:
        raise InvalidError("a session must be given by its id")
    return build(*parts)
