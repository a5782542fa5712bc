"""What is in a snapshot: an object taken apart into a tree of JSON, and made again from one."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any, NamedTuple

from holdfast.agents.snapshots.header import Kind
from holdfast.agents.snapshots.secret_scan import SecretScan
from holdfast.backends.interface import BlockingCall
from holdfast.errors import ConfigError, SnapshotCorruptError, SnapshotInvalidError, SnapshotUnsupportedError

if TYPE_CHECKING:
    from holdfast.agents.storage.agent_line import AgentLine

_PACKAGES = ("holdfast", "langchain", "langchain-core", "langgraph", "langgraph-checkpoint")


class SnapshotContent(NamedTuple):
    """An object as a tree, and what the header tells of it."""

    kind: Kind
    type: str
    name: str
    tree: Any
    tools: tuple[str, ...] = ()
    middleware: tuple[str, ...] = ()


class RestoreOptions(NamedTuple):
    """What whoever restores gives, and allows."""

    store: Any
    agent_id: str | None
    live: bool
    secrets: Mapping[str, Any] | None
    secrets_from_env: bool
    allow: Any
    code: Any
    thread: str | None
    settings: Mapping[str, Any]


def versions() -> dict[str, str]:
    """Of Holdfast and Python, and of what there is of LangChain."""
    found = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


async def freeze(value: Any, config: Any, gathering: SecretScan) -> SnapshotContent:
    """Take a value apart. Raises `SnapshotUnsupportedError` for what cannot be kept."""
    if (line := await _line(value)) is not None:
        if config is not None:
            raise SnapshotInvalidError("an agent of Holdfast's has no threads", hint="Leave the config out")
        from holdfast.agents.snapshots import holdfast_agents

        version = value.version if isinstance(value, holdfast_agents.StoredAgent) else None
        held, record = await holdfast_agents.freeze(line, version, gathering)
        return SnapshotContent("persistent", record.kind, record.id, held)
    _need("langchain_core")
    graph = _graph(value)
    if graph:
        from holdfast.agents.snapshots import langchain_agents

        tree: dict[str, Any] = {"agent": langchain_agents.freeze(value, gathering), "thread": None}
        if config is not None:
            from holdfast.agents.snapshots import thread_state

            tree["thread"] = await BlockingCall(lambda: thread_state.freeze(value, config, gathering))
        name = tree["agent"]["name"] or ""
        return SnapshotContent("agent", type(value).__name__, name, tree, *langchain_agents.needed(tree["agent"]))
    if config is not None:
        raise SnapshotInvalidError("only an agent with a checkpointer has threads", hint="Leave the config out")
    from langchain_core.chat_history import BaseChatMessageHistory, InMemoryChatMessageHistory

    from holdfast.agents.snapshots.langchain_serde import dump

    if isinstance(value, BaseChatMessageHistory):
        if type(value) is not InMemoryChatMessageHistory:
            raise SnapshotUnsupportedError(
                f"a {type(value).__name__} keeps its messages elsewhere", hint="Take a snapshot of its messages"
            )
        return SnapshotContent(
            "history", "InMemoryChatMessageHistory", "", dump(list(value.messages), "messages", gathering)
        )
    if not _is_langchain(value):
        raise SnapshotUnsupportedError(
            f"a {type(value).__name__} is nothing of which snapshots are taken",
            hint="They are taken of runnables, prompts, messages, chat histories, agents of create_agent, and "
            "PersistentAgents",
        )
    called = getattr(value, "name", None)
    label = called if isinstance(called, str) else ""
    return SnapshotContent("langchain", type(value).__name__, label, dump(value, "value", gathering))


async def thaw(kind: Kind, tree: Any, names: tuple[str, ...], wanted: RestoreOptions, where: str) -> Any:
    """The object of a tree. `names` are the secrets that the header asks for."""
    if kind == "persistent":
        return await _persistent(tree, wanted, where)
    if wanted.agent_id is not None or not wanted.live:
        raise SnapshotInvalidError("agent_id and live are about agents of Holdfast's, and this is none", where=where)
    _need("langchain_core")
    from holdfast.agents.snapshots.langchain_serde import revive, rules

    ruled = rules(wanted.allow, wanted.secrets, from_env=wanted.secrets_from_env, names=names)
    if kind == "agent":
        return await _agent(tree, ruled, wanted, where)
    _nothing_of_agents(wanted, where)
    if wanted.store is not None:
        raise SnapshotInvalidError("a store belongs to agents, and this is none", where=where)
    making: BlockingCall[Any] = BlockingCall(
        lambda: revive(tree, "value" if kind == "langchain" else "messages", ruled)
    )
    value = await making  # a long history takes seconds
    if kind == "langchain":
        if not _is_langchain(value):
            raise SnapshotCorruptError("the content is no object of LangChain's", where=where)
        return value
    from langchain_core.chat_history import InMemoryChatMessageHistory
    from langchain_core.messages import BaseMessage

    if type(value) is not list or not all(isinstance(each, BaseMessage) for each in value):
        raise SnapshotCorruptError("a history of something else than messages", where=where)
    return _quiet_history(InMemoryChatMessageHistory, value)


def _nothing_of_agents(wanted: RestoreOptions, where: str) -> None:
    if wanted.code or wanted.settings or wanted.thread is not None:
        raise SnapshotInvalidError(
            "tools, middleware, formats, schemas, checkpointers and threads belong to agents of create_agent, and this "
            "is none",
            where=where,
        )


async def _line(value: Any) -> AgentLine | None:
    """Where an agent of Holdfast's is kept; what has changed of one that lives is saved first."""
    from holdfast.agents.api.agent import AgentOperations
    from holdfast.agents.snapshots.holdfast_agents import StoredAgent, line_of

    if isinstance(value, StoredAgent):
        return line_of(value.store, value.id)
    if not isinstance(value, AgentOperations):
        return None
    await value.keeper.save(if_changed=True)
    return value.keeper.line


async def _persistent(tree: Any, wanted: RestoreOptions, where: str) -> Any:
    from holdfast.agents.api.agents import AgentsOperations
    from holdfast.agents.definition.spec import registry
    from holdfast.agents.snapshots import holdfast_agents

    _nothing_of_agents(wanted, where)
    if wanted.store is None:
        raise SnapshotInvalidError(
            "an agent of Holdfast's is restored into a store", where=where, hint="restore(…, store=holdfast.open(…))"
        )
    name = holdfast_agents.class_of(tree, where)
    if wanted.live:
        registry.get(name)  # says what to import, before anything is written
    line = holdfast_agents.line_of(wanted.store, tree["id"] if wanted.agent_id is None else wanted.agent_id)
    record = await holdfast_agents.thaw(tree, line, where)
    return await AgentsOperations.restore(wanted.store.agents, line.id) if wanted.live else record


async def _agent(tree: Any, rules: Any, wanted: RestoreOptions, where: str) -> Any:
    _need("langchain")
    from holdfast.agents.snapshots import langchain_agents, thread_state

    if type(tree) is not dict or tree.keys() != {"agent", "thread"}:
        raise SnapshotCorruptError("the content is not what its kind has", where=where)
    settings = dict(wanted.settings)
    if wanted.store is not None:
        settings["store"] = wanted.store
    if tree["thread"] is not None and settings.get("checkpointer") is None:
        from langgraph.checkpoint.memory import InMemorySaver

        settings["checkpointer"] = InMemorySaver()
    agent = langchain_agents.thaw(tree["agent"], rules, wanted.code or langchain_agents.AgentCode(), settings, where)
    if tree["thread"] is None:
        if wanted.thread is not None:
            raise SnapshotInvalidError("the snapshot holds no thread", where=where)
        return agent
    call: BlockingCall[None] = BlockingCall(
        lambda: thread_state.thaw(tree["thread"], settings["checkpointer"], wanted.thread, where)
    )
    await call
    return agent


def _quiet_history(cls: Any, messages: list[Any]) -> Any:
    """LangChain advises against this class when one is made. Whoever froze one has been told."""
    import warnings

    from langchain_core._api import LangChainDeprecationWarning

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LangChainDeprecationWarning)
        return cls(messages=messages)


def _is_langchain(value: Any) -> bool:
    from langchain_core.load.serializable import Serializable
    from langchain_core.runnables import Runnable

    if isinstance(value, list):
        return all(isinstance(each, Serializable) for each in value)
    return isinstance(value, Serializable | Runnable)


def _graph(value: Any) -> bool:
    """Whether it is a graph of LangGraph's; asked without loading LangGraph for those who have none."""
    import sys

    module = sys.modules.get("langgraph.graph.state")
    if module is None or not isinstance(value, module.CompiledStateGraph):
        return False
    _need("langchain")
    return True


def _need(module: str) -> None:
    from importlib.util import find_spec

    if find_spec(module) is None:
        raise ConfigError(
            f"snapshots of this kind need {module}, which is not installed",
            hint="Install it with: pip install 'holdfast[snapshots]'",
            code="not-installed",
        )
