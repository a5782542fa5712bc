"""The types of objects that scripts have.

Their operations are those of the Python classes, which declare what scripts do not have. Here is the rest: functions
that are no operations, properties, and objects inside others. What scripts do not have of these is in `excluded`, with
the reason: a public member that is in neither fails a test.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from holdfast.backends.runtime.drivers import FILES
from holdfast.interfaces.scripting.replay import Replay

Adapter = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class ObjectType:
    """A type of objects that scripts may use."""

    python: str
    """The module of the class, and its name."""
    functions: str = ""
    """Functions that are no operations."""
    members: Mapping[str, str] = field(default_factory=dict)
    """Types of objects inside it that are no parts, by name; with parentheses, if a function returns it."""
    properties: str = ""
    live: str = ""
    """Properties whose entries a script may change, as it may those of the fields of an agent."""
    excluded: Mapping[str, str] = field(default_factory=dict)
    adapters: Mapping[str, tuple[Callable[[], Any], Adapter]] = field(default_factory=dict)
    """Functions under a name that the Python object does not have: where the description is, and how to call it."""
    omitted: Mapping[str, str] = field(default_factory=dict)
    """Parameters that scripts cannot give, by function."""
    is_callable: bool = False
    module: str = ""
    """The module of functions that these are: scripts have them as `holdfast.<module>`."""


_OWN = "It is for Python programs only: "
_SCOPED = {"thread()": "Thread", "state()": "State"}
_BLOCK = f"{_OWN}a block; `transaction` calls a function instead."


def _async_state(name: str) -> Callable[[], Any]:
    def load() -> Any:
        from holdfast.state.scope_state import AsyncState

        return getattr(AsyncState, name)

    return load


def _has(state: Any, key: Any) -> bool:
    state.scope  # noqa: B018 - the objects with this function have one
    try:
        state.item(key)
    except LookupError:
        return False
    return True


def _get(state: Any, key: Any, default: Any = None) -> Any:
    try:
        return state.item(key).value
    except LookupError:
        return default


def _set(state: Any, key: Any, value: Any, **options: Any) -> Any:
    return state.set(key, value, **options)


def _count_messages() -> Any:
    def count(self: Any) -> int:
        """Return the number of messages."""
        return len(self)

    return count


def _replay(name: str) -> tuple[Callable[[], Any], Adapter]:
    def load() -> Any:
        from holdfast import replay

        return getattr(replay, name)

    return load, getattr(Replay, name)


_MAPPING = ("keys", "items", "values", "pop", "popitem", "clear", "update", "setdefault")

OBJECT_TYPES: dict[str, ObjectType] = {
    "Store": ObjectType(
        "store.store Store",
        "transaction",
        {**_SCOPED, "as_identity()": "IdentityView", "backups()": "Backups"},
        excluded={
            "tenant": f"{_OWN}it is the host's choice.",
            "worker": f"{_OWN}workers are processes of the host.",
        },
        omitted={"backups": "keys options"},
    ),
    "IdentityView": ObjectType("store.identity_view IdentityView", "transaction", _SCOPED, "identity mode"),
    "Thread": ObjectType(
        "store.thread Thread", properties="name", omitted={"get": "lazy"}, excluded={"running": _BLOCK}
    ),
    "State": ObjectType(
        "state.scope_state State",
        "watch pop setdefault",
        properties="scope",
        excluded={
            "keys": "`list_keys` lists them.",
            "items": "`list_items` lists them.",
            "values": "`list_items` lists them.",
            "popitem": "`pop` takes a key.",
            "update": "`batch` sets several keys.",
        },
        adapters={
            "get": (_async_state("get"), _get),
            "load": (_async_state("get"), _get),
            "save": (_async_state("set"), _set),
            "has": (_async_state("has"), _has),
            "count": (_async_state("count"), len),
        },
    ),
    "Watch": ObjectType("state.watcher Watch", properties="cursor scope"),
    "Transaction": ObjectType("store.store Transaction", "get put update", {"state()": "TransactionState"}),
    "StateTransaction": ObjectType("state.api StateTransaction", "", {"state()": "TransactionState"}),
    "TransactionState": ObjectType(
        "state.transactions TransactionState",
        "set delete",
        excluded=dict.fromkeys(_MAPPING, "`list_keys`, `get` and `set` do it."),
    ),
    "Sessions": ObjectType("state.sessions.api Sessions"),
    "Session": ObjectType("state.sessions.api Session", "", {"state": "State"}),
    "Artifacts": ObjectType(
        "state.artifacts.api Artifacts",
        excluded={"using": _BLOCK, "Source": f"{_OWN}a class of `register_many`."},
        omitted={"register": "keep"},
    ),
    "Agents": ObjectType(
        "agents.api.agents Agents",
        "create restore metrics",
        {"steps()": "Steps", "timers()": "Timers"},
        excluded={"attach": f"{_OWN}it takes an object."},
        omitted={"restore": "kind"},
    ),
    "Agent": ObjectType(
        "agents.api.handle AgentOperations",
        "update_field mark_changed once",
        {"workflow": "Workflow"},
        "id version status state configuration context metadata metrics recoveries",
        "configuration context metadata",
        excluded={
            "persister": f"{_OWN}it is internal.",
            "change_block": _BLOCK,
            "autosave_error": f"{_OWN}it is an exception.",
        },
        omitted={"once": "final", "wait_for": "key"},
    ),
    "Steps": ObjectType("agents.steps.api Steps", "once", omitted={"once": "final"}),
    "Timers": ObjectType("agents.steps.api Timers"),
    "Conversation": ObjectType(
        "agents.api.conversation Conversation",
        "append extend replace clear",
        properties="tokens",
        adapters={"count": (_count_messages, len)},
    ),
    "Tools": ObjectType(
        "agents.api.tools Tools",
        "declare forget allow deny may",
        properties="permissions",
        excluded={"use": _BLOCK, "of": f"{_OWN}it takes a record."},
    ),
    "Workflow": ObjectType(
        "agents.api.workflow Workflow",
        "plan begin complete fail get",
        properties="steps current done_count step_count percent",
        excluded=dict.fromkeys(_MAPPING, "An agent changes its own entries."),
    ),
    "Hooks": ObjectType(
        "hooks.api Hooks",
        "remove list",
        {"before()": "HookRegistration", "after()": "HookRegistration"},
        excluded={
            "add": f"{_OWN}it takes an object of Python.",
            "record_as": f"{_OWN}the host decides what is recorded.",
        },
    ),
    "HookRegistration": ObjectType("", is_callable=True),
    "HookContext": ObjectType("hooks.context HookContext", "note"),
    "Jobs": ObjectType("maintenance.jobs.api Jobs"),
    "Sharing": ObjectType(
        "state.sharing.api Sharing",
        "",
        {"topic()": "Topic", "requests()": "Requests", "pipeline()": "Pipeline", "document()": "Document"},
    ),
    "Topic": ObjectType("state.sharing.topic Topic", "subscribe", properties="scope"),
    "Subscription": ObjectType("state.sharing.topic Subscription", "rewind", properties="cursor"),
    "Requests": ObjectType("state.sharing.requests Requests", properties="scope"),
    "Request": ObjectType(
        "state.sharing.requests Request",
        properties="id value actor correlation tries",
        excluded={"causing": f"{_OWN}a block."},
    ),
    "Pipeline": ObjectType("state.sharing.pipeline Pipeline", properties="scope stages"),
    "PipelineTask": ObjectType(
        "state.sharing.pipeline PipelineTask",
        properties="id stage value correlation tries",
        excluded={"causing": f"{_OWN}a block."},
    ),
    "Document": ObjectType("state.sharing.documents Document", properties="scope"),
    "Access": ObjectType("state.access_api StoreAccess"),
    "Audit": ObjectType("store.audit Audit", omitted={"verify": "heads"}),
    "Timeline": ObjectType("store.timeline.api Timeline"),
    "Maintenance": ObjectType("store.maintenance Maintenance", omitted={"verify": "heads", "prune": "policy"}),
    "Backups": ObjectType(
        "store.backups Backups", omitted={"prune": "policy"}, excluded={"open": f"{_OWN}it returns another store."}
    ),
    "Diff": ObjectType(
        "history.diff_result Diff",
        "patch apply text stat",
        excluded=dict.fromkeys(("lines", "to_json", "without_internal"), "`changes` and `summary` have it."),
    ),
    "Replay": ObjectType(
        "scripting Replay",
        adapters={name: _replay(name) for name in ("run", "run_agent", "run_hooks", "compare")},
        omitted=dict.fromkeys(("run", "run_agent", "run_hooks"), "env"),
        excluded={
            **dict.fromkeys(("record", "export"), FILES),
            "run_open": "Call `run` with `only_open` for each of `store.threads`.",
            **dict.fromkeys(
                ("now", "random", "uuid4", "recorded"), "It is for code that is recorded, which is Python."
            ),
        },
        module="replay",
    ),
    "ReplayReport": ObjectType(
        "store.replay.report ReplayReport",
        "check",
        excluded=dict.fromkeys(("to_json", "of_json"), "Its fields have it."),
    ),
    "HookReplay": ObjectType("store.replay.threads HookReplay", "check"),
}
