"""Hints for mistakes that many make: names of other libraries, values that are no state, extras that are missing."""

from __future__ import annotations

_SAVE = "put(state)"
_LOAD = "get().state"

STORE_WORDS = {
    **dict.fromkeys(("put", "save", "save_state", "set", "checkpoint"), f"store.thread(name).{_SAVE}"),
    **dict.fromkeys(("get", "load", "load_state", "get_state"), f"store.thread(name).{_LOAD}"),
    **dict.fromkeys(("delete", "delete_state", "delete_thread"), "store.thread(name).delete()"),
    **dict.fromkeys(("list", "list_threads", "list_states", "keys"), "store.threads()"),
    **dict.fromkeys(("backup", "restore"), "store.backups(url)"),
    **{name: f"store.maintenance.{name}(…)" for name in ("prune", "verify", "repair", "copy_to")},
    **dict.fromkeys(("log", "history"), "store.thread(name).log()"),
    "commit": "nothing: a save is durable when it returns",
}
"""What people look for on a store, by the names that other libraries have."""

THREAD_WORDS = {
    **dict.fromkeys(("save", "save_state", "set", "checkpoint", "commit", "write"), f"thread.{_SAVE}"),
    **dict.fromkeys(("load", "load_state", "get_state", "state", "values", "read"), f"thread.{_LOAD}"),
    **dict.fromkeys(("checkpoints", "list", "get_state_history", "versions"), "thread.log()"),
    **dict.fromkeys(("rollback", "revert", "reset", "undo"), "thread.restore(at=…)"),
    **dict.fromkeys(("update_state", "patch"), "thread.update({path: value})"),
    **dict.fromkeys(("add_message", "add_messages", "extend"), 'thread.append("messages", message)'),
    "checkout": "thread.switch(branch)",
    "branch": "thread.fork(name, at=…)",
    "close": "store.close(): a thread is a handle, and holds nothing",
}
"""What people look for on a thread."""

CHECKPOINT_WORDS = dict.fromkeys(
    ("values", "value", "channel_values", "content", "data", "messages"), "checkpoint.state"
)
"""What people look for on a checkpoint."""

OPENING_WORDS = dict.fromkeys(
    ("thread", "threads", "state", "close", "sessions", "agents", "maintenance", "access", "transaction"),
    "after `await`: store = await holdfast.aopen(url)",
)
"""What people look for on what `aopen` returns, which is to be awaited."""

_NOT_SAVED = {
    "builtins:coroutine": "Await it, and save what it returns",
    "builtins:module": "Save its name",
    "builtins:function": "Save its name",
    "_thread:lock": "Keep it beside the state: a lock belongs to one process",
    "_thread:RLock": "Keep it beside the state: a lock belongs to one process",
}
_ITERATORS = frozenset(
    {"generator", "async_generator", "map", "filter", "zip", "dict_keys", "dict_values", "dict_items"}
)


def instead_of_saving(reference: str) -> str:
    """Return what to save in place of an object of a class that has no data of its own; empty for other classes."""
    module, _, name = reference.partition(":")
    if module == "builtins" and name in _ITERATORS:
        return "Save a list of it"
    if module == "_io":
        return "Save the path of the file, or its content"
    return _NOT_SAVED.get(reference, "")


def as_dict(value: object) -> str:
    """Return how an object becomes a dict, for the hint where one is needed: `model_dump()` of a model."""
    if isinstance(value, type):
        return ""
    if callable(getattr(value, "model_dump", None)):
        return "Give state.model_dump(), and read it with the model's model_validate"
    if hasattr(value, "__dataclass_fields__"):
        return "Give dataclasses.asdict(state), or put the object into a dict: {'state': state}"
    if isinstance(value, list):
        return "Put it into a dict: {'messages': […]}"
    if isinstance(value, str | bytes):
        return "Put it into a dict, such as {'text': …}; JSON is to be parsed first"
    return ""


def install(extra: str) -> str:
    """Return how an extra is installed. There is no release yet: from a clone."""
    return f'Install it, in a clone of Holdfast, with: pip install ".[{extra}]"'
