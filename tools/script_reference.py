"""Writes `docs/scripting-reference.md`, the reference of scripts, from the table of their functions.

`python tools/script_reference.py`; `tests/interfaces/scripting/test_functions.py` fails while the page says something
else.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from pathlib import Path

from holdfast.interfaces.scripting.functions import ScriptType, excluded_names, script_type
from holdfast.interfaces.scripting.object_types import OBJECT_TYPES
from holdfast.interfaces.scripting.values import error_classes

PAGE = Path(__file__).resolve().parent.parent / "docs" / "scripting-reference.md"

_INTRODUCTION = """\
# Script reference

What scripts in Lua and JavaScript have. Names, parameters, results and errors are those of Python, whose descriptions \
these are; [the guide](guides/scripts.md) says how scripts are run, and how values are converted. This page is made by \
`tools/script_reference.py` from the classes of the Python API.

- In Lua, functions are called with a colon: `store:thread("chat-1"):get()`. In JavaScript, calls return promises: \
`await store.thread("chat-1").get()`.
- Parameters after `*` are options: a table or object as the last argument, as in `log({limit = 10})` or \
`log({limit: 10})`. Other parameters that have a default may be given there, too.
- A parameter that is left out, or nil or undefined, has its default.
- A record, such as a `Checkpoint`, is a table or object of its fields, which [the reference](reference.md) lists. \
Where Python takes a record or its id, so do scripts.
- Where Python takes a function, give one of the script. In JavaScript it may be async.
"""

_ACCESS = {
    "Store": "The global `store`, if the host runs the script as the store's owner.",
    "IdentityView": "`store.as_identity(…)`; or the global `store`, if the host runs the script as an identity.",
    "Thread": "`store.thread(name)`",
    "State": "`store.state(scope)`, `session.state`",
    "Watch": "`state.watch(…)`",
    "Transaction": "The argument of the function of `store.transaction`.",
    "StateTransaction": "The argument of the function of `transaction`, for an identity.",
    "TransactionState": "`transaction.state(scope)`",
    "Sessions": "`store.sessions`",
    "Session": "`store.sessions.start(…)`, `get`, `resume`; its fields are read when it is.",
    "Artifacts": "`store.artifacts`",
    "Agents": "`store.agents`",
    "Agent": "`store.agents.create(…)`, `restore`",
    "Conversation": "`agent.conversation`",
    "Tools": "`agent.tools`",
    "Workflow": "`agent.workflow`",
    "Hooks": "`store.hooks`",
    "HookRegistration": "`store.hooks.before(…)`, `after`",
    "HookContext": "The argument of the function of a hook; its fields are those of Python.",
    "Jobs": "`store.jobs`. A script adds no jobs that name files or addresses of the host, such as `archive-audit`.",
    "Steps": "`agent.steps`, `store.agents.steps(id)`",
    "Timers": "`agent.timers`, `store.agents.timers(id)`",
    "Sharing": "`store.sharing`",
    "Topic": "`store.sharing.topic(name)`",
    "Subscription": "`topic.subscribe(…)`",
    "Requests": "`store.sharing.requests(name)`",
    "Request": "`requests.take(…)`",
    "Pipeline": "`store.sharing.pipeline(name, stages)`",
    "PipelineTask": "`pipeline.take(…)`",
    "Document": "`store.sharing.document(name)`",
    "Access": "`store.access`",
    "Audit": "`store.audit`",
    "Timeline": "`store.timeline`",
    "Maintenance": "`store.maintenance`",
    "Backups": "`store.backups(name)`, for each repository that the host names: in Python by the option `backups` of "
    "`Sandbox`, at the command line by `--backups name=repository`.",
    "Replay": "`holdfast.replay`: functions of a module, as in Python, called with a dot also in Lua. The `graph`, "
    "`kind` or `register` is a name that the host gave: in Python by the option `code` of `Sandbox`, at the command "
    "line by `--code name=module:name`. A recording is `store` with the name of a `thread`, or the name of a file that "
    "the host gave, by `recordings` or `--recording name=file`.",
    "ReplayReport": "`holdfast.replay.run(…)`, `run_agent`, `compare`; its fields are those of Python.",
    "HookReplay": "`holdfast.replay.run_hooks(…)`; its fields are `calls`, `differing`, `skipped` and `summary`.",
    "Diff": "`thread.diff(…)`, `state.diff`, `agents.diff`; its fields are `old`, `new`, `changes` and `summary`.",
}
_REFERENCES = re.compile(r"::\n\n(?: {4}.*\n|\n)+")


def reference() -> str:
    """Return the page."""
    return "\n".join([_INTRODUCTION, *(line for name in OBJECT_TYPES for line in _type(script_type(name))), *_errors()])


def _type(known: ScriptType) -> Iterator[str]:
    yield from (f"## {known.name}", "", _ACCESS[known.name], "")
    if known.is_callable:
        yield from ("Call it with the function of the hook.", "")
    for name, (type_name, function) in known.members.items():
        text = "" if function is None else function.text.partition(" -> ")[0]
        yield f"- `{name}{text}`: [{type_name}](#{type_name.lower()})"
    for name in known.properties:
        described = inspect.getdoc(inspect.getattr_static(known.python, name, None))
        yield f"- `{name}`: {_first(described or 'read each time')}"
    if known.members or known.properties:
        yield ""
    for function in known.functions.values():
        yield from (f"### {known.name}.{function.name}", "", "```text")
        is_session = known.name == "Sessions" and function.signature.return_annotation == "S"
        text = function.text.replace("-> dict", "-> Session") if is_session else function.text
        yield from (f"{function.name}{text}", "```", "", _prose(function.doc), "")
    excluded = excluded_names(known.name)
    if excluded:
        yield from ("Not in scripts:", "")
        yield from (f"- `{name}`: {reason}" for name, reason in sorted(excluded.items()))
        yield ""


def _prose(doc: str) -> str:
    """Return a description without examples in Python."""
    return re.sub(r"\n{3,}", "\n\n", _REFERENCES.sub("", doc)).strip()


def _first(doc: str) -> str:
    return " ".join(doc.split("\n\n")[0].split())


def _errors() -> Iterator[str]:
    yield from (
        "## Errors",
        "",
        "The classes in `holdfast.errors`, each with its code and what it derives from. In Lua, ",
    )
    yield from ("`error:is(name)` says whether an error is of a class. [Their meaning](guides/troubleshooting.md).", "")
    yield from ("| class | code | derived from |", "|---|---|---|")
    yield from (f"| `{name}` | `{code}` | {f'`{base}`' if base else ''} |" for name, base, code in error_classes())
    yield ""


__all__ = ["PAGE", "reference"]

if __name__ == "__main__":
    PAGE.write_text(reference(), encoding="utf-8")
