"""The objects that scripts have, and which functions of the Python API: the table that all the rest is made of.

What scripts do not have is in `excluded`, with the reason: a public method that is in neither fails a test.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from holdfast.interfaces.scripting.replay import Replay

Adapter = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Declaration:
    """The members of a type of objects that scripts may use."""

    python: str
    """The package that exports the class, and its name."""
    functions: str = ""
    members: Mapping[str, str] = field(default_factory=dict)
    """Types of objects inside it, by name; with parentheses, if a function returns it."""
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


_FILES = "It reads or writes files of the host."
_OWN = "It is for Python programs only: "
_LISTING = "threads search changes scopes transact"
_SCOPED = {
    "thread()": "Thread",
    "state()": "State",
    "sessions": "Sessions",
    "artifacts": "Artifacts",
    "agents": "Agents",
    "sharing": "Sharing",
    "timeline": "Timeline",
}
_ENDLESS = "It calls a function for as long as there is work; call {} in a loop."
_BLOCK = f"{_OWN}a block; `transact` calls a function instead."


def _async_state(name: str) -> Callable[[], Any]:
    def load() -> Any:
        from holdfast.state import AsyncState

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
_STATE = "set patch change increment append add_to_set max delete expire list_keys"

DECLARATIONS: dict[str, Declaration] = {
    "Store": Declaration(
        "store Store",
        f"put get update log delete {_LISTING} stats status",
        {
            **_SCOPED,
            "hooks": "Hooks",
            "jobs": "Jobs",
            "as_identity()": "IdentityView",
            "access": "Access",
            "audit": "Audit",
            "maintenance": "Maintenance",
            "backups()": "Backups",
        },
        excluded={
            "transaction": _BLOCK,
            "copy_to": _FILES,
            "export": _FILES,
            "import_": _FILES,
            "close": "The store belongs to the host.",
            "keys": f"{_OWN}keys are the host's.",
            "erasure": f"{_OWN}the host decides who is erased.",
            "metrics": f"{_OWN}the host exports them.",
            "alerts": f"{_OWN}a job evaluates them.",
            "schemas": f"{_OWN}schemas are classes of the program.",
            "sensitive": "For the program that runs the script: it decides what is protected.",
            "capabilities": f"{_OWN}it describes the backend.",
            "tenant": f"{_OWN}it is the host's choice.",
        },
        omitted={"get": "lazy", "backups": "keys options"},
    ),
    "IdentityView": Declaration(
        "store IdentityView",
        f"{_LISTING} grant revoke grants granted",
        _SCOPED,
        "identity mode",
        excluded={
            "transaction": _BLOCK,
            "erasure": "For the program that runs the script: it decides what is erased.",
            "sensitive": "For the program that runs the script: it decides what is protected.",
        },
    ),
    "Thread": Declaration(
        "store Thread",
        "put update restore get resolve info log diff blame history fork branches rename_branch delete_branch switch "
        "merge owner delete tag untag tags label unlabel labels pin unpin pins hold release holds expire expires "
        "pending_writes",
        omitted={"get": "lazy"},
    ),
    "State": Declaration(
        "state State",
        f"item list_items {_STATE} batch clear copy_to move_to history at get_at diff rollback watch pop setdefault",
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
    "Watch": Declaration(
        "state Watch", "poll close", properties="cursor scope", excluded={"start": "`watch` starts it."}
    ),
    "Transaction": Declaration(
        "store Transaction",
        "get put update",
        {"state()": "TransactionState"},
    ),
    "StateTransaction": Declaration("state StateTransaction", "", {"state()": "TransactionState"}),
    "TransactionState": Declaration(
        "state TransactionState",
        f"get has {_STATE}",
        excluded=dict.fromkeys(_MAPPING, "`list_keys`, `get` and `set` do it."),
    ),
    "Sessions": Declaration("state Sessions", "start get resume touch update end archived list collect delete"),
    "Session": Declaration("state Session", "touch end", {"state": "State"}),
    "Artifacts": Declaration(
        "state Artifacts",
        "register delete get read verify changes of list",
        excluded={
            "register_many": "`register` takes the content of one.",
            "open": "`read` returns the content.",
            "save": _FILES,
            "using": _BLOCK,
        },
        omitted={"register": "keep"},
    ),
    "Agents": Declaration(
        "agents Agents",
        "create restore load exists messages history diff export import_ delete transitions rollback resolve transfer "
        "transfer_many transfers metrics list signal machine unsaved save_state record_transition",
        {"steps()": "Steps", "timers()": "Timers"},
        excluded={
            "prune_steps": f"{_OWN}retention is the host's.",
            "attach": f"{_OWN}it takes an object.",
        },
        omitted={"restore": "kind"},
    ),
    "Agent": Declaration(
        "agents AgentOperations",
        "update_field mark_changed flush save reload transition start pause resume stop fail recover rollback transfer "
        "once wait_for",
        {
            "conversation": "Conversation",
            "tools": "Tools",
            "workflow": "Workflow",
            "steps": "Steps",
            "timers": "Timers",
        },
        "id version status state configuration context metadata metrics recoveries",
        "configuration context metadata",
        excluded={
            **dict.fromkeys(("sleep", "sleep_until"), "A script has seconds. `timers.set` signals the agent later."),
            "persister": f"{_OWN}it is internal.",
            "change_block": _BLOCK,
            "autosave_error": f"{_OWN}it is an exception.",
        },
        omitted={"once": "final", "wait_for": "key"},
    ),
    "Steps": Declaration(
        "agents Steps",
        "get list once resolve signals version",
        omitted={"once": "final"},
    ),
    "Timers": Declaration("agents Timers", "set cancel list"),
    "Conversation": Declaration(
        "agents Conversation",
        "append extend say replace clear get slice all last window search",
        properties="tokens",
        adapters={"count": (_count_messages, len)},
        excluded={"summarize": f"{_OWN}it calls a model."},
    ),
    "Tools": Declaration(
        "agents Tools",
        "declare forget allow deny may call",
        properties="permissions",
        excluded={"use": _BLOCK, "of": f"{_OWN}it takes a record."},
    ),
    "Workflow": Declaration(
        "agents Workflow",
        "plan begin complete fail get",
        properties="steps current done_count step_count percent",
        excluded=dict.fromkeys(_MAPPING, "An agent changes its own entries."),
    ),
    "Hooks": Declaration(
        "hooks Hooks",
        "remove list drain history get statistics",
        {"before()": "HookRegistration", "after()": "HookRegistration"},
        excluded={
            "add": f"{_OWN}it takes an object of Python.",
            "record_as": f"{_OWN}the host decides what is recorded.",
            **dict.fromkeys(
                ("recover", "undelivered", "retry", "retry_failed", "discard"), f"{_OWN}durable hooks are the host's."
            ),
        },
    ),
    "HookRegistration": Declaration("", is_callable=True),
    "HookContext": Declaration("hooks HookContext", "note"),
    "Jobs": Declaration("jobs Jobs", "add get remove pause resume due run list"),
    "Sharing": Declaration(
        "state Sharing",
        "",
        {"topic()": "Topic", "requests()": "Requests", "pipeline()": "Pipeline", "document()": "Document"},
    ),
    "Topic": Declaration(
        "state Topic", "publish read count subscribe subscribers unsubscribe trim delete", properties="scope"
    ),
    "Subscription": Declaration(
        "state Subscription",
        "receive receive_many ack rewind lag",
        properties="cursor",
        excluded={"deliver": _ENDLESS.format("`receive` and `ack`")},
    ),
    "Requests": Declaration(
        "state Requests",
        "call ask wait cancel take answer fail extend pending trim",
        properties="scope",
        excluded={"serve": _ENDLESS.format("`take` and `answer`")},
    ),
    "Request": Declaration(
        "state Request", properties="id value actor correlation tries", excluded={"causing": f"{_OWN}a block."}
    ),
    "Pipeline": Declaration(
        "state Pipeline",
        "put put_many take done fail extend results dead requeue forget stats trim",
        properties="scope stages",
        excluded={"work": _ENDLESS.format("`take` and `done`")},
    ),
    "PipelineTask": Declaration(
        "state PipelineTask", properties="id stage value correlation tries", excluded={"causing": f"{_OWN}a block."}
    ),
    "Document": Declaration("state Document", "read edit save patch wait history delete", properties="scope"),
    "Access": Declaration(
        "state StoreAccess",
        "grant revoke grants may join leave groups assign unassign assignments roles drop_role freeze unfreeze frozen "
        "cut_off allow_children forbid_children parents set_owner",
        excluded={
            "define_role": f"{_OWN}it takes a policy.",
            **dict.fromkeys(
                ("issue_token", "find_token", "revoke_token", "tokens"), "Tokens are secrets, which the host gives out."
            ),
        },
    ),
    "Audit": Declaration(
        "store Audit",
        "query verify",
        omitted={"verify": "heads"},
        excluded={"archive": _FILES, "export": _FILES},
    ),
    "Timeline": Declaration("store Timeline", "query causes effects"),
    "Maintenance": Declaration(
        "store Maintenance",
        "verify compact prune delete delete_stale doctor heads hold release holds quota set_quota quarantine "
        "sweep_orphans build_index drop_index",
        omitted={"verify": "heads", "prune": "policy"},
        excluded={
            "archive_hooks": _FILES,
            "load_heads": _FILES,
            "repair": f"{_OWN}it takes other stores; a job repairs.",
            "project": f"{_OWN}the host chooses readable rows.",
        },
    ),
    "Backups": Declaration(
        "store Backups",
        "create list covered show diff verify repair restore drill prune pin unpin freeze unfreeze schedule",
        omitted={"prune": "policy"},
        excluded={
            "follow": "It runs without end; `schedule` adds a job that does it.",
            "open": f"{_OWN}it returns another store.",
            **dict.fromkeys(("keys", "add_key", "remove_key"), f"{_OWN}keys are the host's."),
        },
    ),
    "Diff": Declaration(
        "history Diff",
        "patch apply text stat",
        excluded=dict.fromkeys(("lines", "to_json", "without_internal"), "`changes` and `summary` have it."),
    ),
    "Replay": Declaration(
        "scripting Replay",
        adapters={name: _replay(name) for name in ("run", "run_agent", "run_hooks", "compare")},
        omitted=dict.fromkeys(("run", "run_agent", "run_hooks"), "env"),
        excluded={
            "record": _FILES,
            "export": _FILES,
            "run_open": "Call `run` with `only_open` for each of `store.threads`.",
            **dict.fromkeys(("hook_replay_job", "replay_job"), f"{_OWN}it names code of the host."),
            **dict.fromkeys(
                ("now", "random", "uuid4", "recorded"), "It is for code that is recorded, which is Python."
            ),
        },
        module="replay",
    ),
    "ReplayReport": Declaration(
        "replay ReplayReport", "check", excluded=dict.fromkeys(("to_json", "of_json"), "Its fields have it.")
    ),
    "HookReplay": Declaration("replay HookReplay", "check"),
}
