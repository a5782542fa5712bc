"""What stands between a caller and a key: the check of rights, and the hooks that come along."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

import holdfast
from benchmarks.measure import Figure, Job, in_turns
from holdfast.backends.runtime.drivers import run
from holdfast.engine.model.scopes import Scope
from holdfast.hooks import AddAuditFields, CountChanges, InvalidateCache, Validate
from holdfast.security.access.identity_guard import IdentityGuard

_CALLS = 200
_GRANTS = 50
_VALUE = {"status": "working", "plan": ["search", "read", "answer"], "budget": 12.5}
_SCHEMA = {
    "type": "object",
    "properties": {"status": {"type": "string"}, "plan": {"type": "array"}, "budget": {"type": "number"}},
    "required": ["status"],
}


def isolation_check() -> list[Figure]:
    """Whether an identity may read a key: one of its own scopes, and one of 50 that it was granted."""
    with holdfast.open("memory://") as store:
        for number in range(_GRANTS):
            store.state(agent=f"other {number}")["plan"] = number
            store.access.grant("agent:researcher", "read", agent=f"other {number}", until="8h")
        acting = store.as_identity(agent="researcher")
        guard = acting._handle.guard
        own, granted = Scope.of(agent="researcher", tool="search"), Scope.of(agent="other 25")
        run(guard.allow("read", granted, ("plan",)))
        assert isinstance(guard, IdentityGuard)
        rights = guard._cached_rights[1]
        jobs: dict[str, Job] = {
            "own": lambda: [run(guard.allow("read", own, ("plan",))) for _ in range(_CALLS)],
            "granted": lambda: [guard.decide(rights, "read", granted, ("plan",)) for _ in range(_CALLS)],
        }
        best = in_turns(jobs)
    each = {name: milliseconds * 1000 / _CALLS for name, milliseconds in best.items()}
    return [
        Figure("isolation check: a scope of one's own", each["own"], "µs", ceiling=20),
        Figure("isolation check: one of 50 grants, as remembered", each["granted"], "µs", ceiling=20),
    ]


def built_in_hooks() -> list[Figure]:
    """What each built-in hook adds to setting a key, in memory, where nothing else takes long."""
    hooks: dict[str, Sequence[Any]] = {
        "none": (),
        "validation by JSON Schema": (Validate(_SCHEMA),),
        "validation of the size": (Validate(max_bytes=10_000),),
        "audit": (AddAuditFields({"team": "search"}),),
        "cache": (InvalidateCache({}),),
        "metrics": (CountChanges(),),
    }
    with ExitStack() as stack:
        jobs: dict[str, Job] = {}
        for name, some in hooks.items():
            store = stack.enter_context(holdfast.open("memory://"))
            for hook in some:
                store.hooks.add(hook, "state.*")
            state = store.state(agent="researcher")
            state.batch({f"key {number}": _VALUE for number in range(100)})
            jobs[name] = partial(_set_some, state)
        best = in_turns(jobs, rounds=20)
    bare = best.pop("none")
    return [
        Figure(f"hook: {name}, added to a set", (taken - bare) * 1000 / _CALLS, "µs", ceiling=150, goal=25)
        for name, taken in best.items()
    ]


def _set_some(state: Any) -> None:
    for number in range(_CALLS):
        state.set(f"key {number % 100}", _VALUE)


CASES = (isolation_check, built_in_hooks)
