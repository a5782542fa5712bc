"""The content of a snapshot: convert an object to a tree of JSON, and back."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any, NamedTuple

from holdfast._hints import install
from holdfast.agents.snapshots.header import Kind
from holdfast.agents.snapshots.secret_scan import SecretScan
from holdfast.backends.interface import BlockingCall
from holdfast.errors import ConfigError, SnapshotCorruptError, SnapshotInvalidError, SnapshotUnsupportedError

if TYPE_CHECKING:
    from holdfast.agents.storage.agent_line import AgentLine
    from holdfast.security.encryption.file_key import FileKey

_PACKAGES = ("holdfast", "langchain", "langchain-core", "langgraph", "langgraph-checkpoint")


class SnapshotContent(NamedTuple):
    """An object as a tree, and its description for the header."""

    kind: Kind
    type: str
    name: str
    tree: Any
    tools: tuple[str, ...] = ()
    middleware: tuple[str, ...] = ()
    key: FileKey | None = None
    """The key that the tree is encrypted with in the file."""


class RestoreOptions(NamedTuple):
    """The arguments of a restore."""

    store: Any
    agent_id: str | None
    live: bool
    secrets: Mapping[str, Any] | None
    secrets_from_env: bool
    allow: Any
    code: Any
    thread: str | None
    checkpointer: Any


def versions() -> dict[str, str]:
    """Return the versions of Python, of Holdfast, and of the packages of LangChain that are installed."""
    installed = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            installed[package] = version(package)
        except PackageNotFoundError:
            continue
    return installed


async def dump_content(value: Any, config: Any, scan: SecretScan) -> SnapshotContent:
    """Convert an object to a tree. Raises `SnapshotUnsupportedError` if that is impossible."""
    if (line := await _line(value)) is not None:
        if config is not None:
            raise SnapshotInvalidError("a Holdfast agent has no threads", hint="Leave the config out")
        from holdfast.agents.snapshots import holdfast_agents

        version = value.version if isinstance(value, holdfast_agents.StoredAgent) else None
        document, record, key = await holdfast_agents.export_agent(line, version, scan)
        if key is None:
            return SnapshotContent("persistent", record.kind, record.id, document)
        return SnapshotContent("persistent", "agent", "", document, key=key)
    _require("langchain_core")
    if _is_graph(value):
        from holdfast.agents.snapshots import langchain_agents

        tree: dict[str, Any] = {"agent": langchain_agents.dump_agent(value, scan), "thread": None}
        if config is not None:
            tree["thread"] = await BlockingCall(lambda: langchain_agents.dump_thread(value, config, scan))
        name = tree["agent"]["name"] or ""
        code = langchain_agents.required_code(tree["agent"])
        return SnapshotContent("agent", type(value).__name__, name, tree, *code)
    if config is not None:
        raise SnapshotInvalidError("only an agent with a checkpointer has threads", hint="Leave the config out")
    from langchain_core.chat_history import BaseChatMessageHistory, InMemoryChatMessageHistory

    from holdfast.agents.snapshots.langchain_serde import dump

    if isinstance(value, BaseChatMessageHistory):
        if type(value) is not InMemoryChatMessageHistory:
            raise SnapshotUnsupportedError(
                f"a {type(value).__name__} stores its messages elsewhere", hint="Take a snapshot of its messages"
            )
        return SnapshotContent(
            "history", "InMemoryChatMessageHistory", "", dump(list(value.messages), "messages", scan)
        )
    if not _is_langchain(value):
        raise SnapshotUnsupportedError(
            f"a {type(value).__name__} is not supported by snapshots",
            hint="Snapshots support runnables, prompts, messages, chat histories, agents of create_agent, and "
            "PersistentAgents",
        )
    name = getattr(value, "name", None)
    label = name if isinstance(name, str) else ""
    return SnapshotContent("langchain", type(value).__name__, label, dump(value, "value", scan))


async def restore_content(kind: Kind, tree: Any, names: tuple[str, ...], options: RestoreOptions, where: str) -> Any:
    """Create the object of a tree. `names` are the secrets that the header asks for."""
    if kind == "persistent":
        return await _restore_holdfast_agent(tree, options, where)
    if options.agent_id is not None or not options.live:
        raise SnapshotInvalidError("agent_id and live apply only to Holdfast agents, and this is not one", where=where)
    _require("langchain_core")
    from holdfast.agents.snapshots.langchain_serde import build_rules, revive

    rules = build_rules(options.allow, options.secrets, from_env=options.secrets_from_env, names=names)
    if kind == "agent":
        return await _restore_langchain_agent(tree, rules, options, where)
    _check_no_agent_options(options, where)
    if options.store is not None:
        raise SnapshotInvalidError("store applies only to Holdfast agents, and this is not one", where=where)
    call: BlockingCall[Any] = BlockingCall(lambda: revive(tree, "value" if kind == "langchain" else "messages", rules))
    value = await call  # a long history takes seconds
    if kind == "langchain":
        if not _is_langchain(value):
            raise SnapshotCorruptError("the content is not a LangChain object", where=where)
        return value
    from langchain_core.chat_history import InMemoryChatMessageHistory
    from langchain_core.messages import BaseMessage

    if type(value) is not list or not all(isinstance(each, BaseMessage) for each in value):
        raise SnapshotCorruptError("the history contains values that are not messages", where=where)
    return _create_history(InMemoryChatMessageHistory, value)


def _check_no_agent_options(options: RestoreOptions, where: str) -> None:
    if options.code or options.checkpointer is not None or options.thread is not None:
        raise SnapshotInvalidError(
            "tools, middleware, formats, schemas, checkpointers and threads apply only to agents made by create_agent, "
            "and this is not one",
            where=where,
        )


async def _line(value: Any) -> AgentLine | None:
    """Return the line of an agent of Holdfast, after saving the changes of a live one; None for other values."""
    from holdfast.agents.api.handle import AgentOperations
    from holdfast.agents.snapshots.holdfast_agents import StoredAgent, line_of

    if isinstance(value, StoredAgent):
        return line_of(value.store, value.id)
    if not isinstance(value, AgentOperations):
        return None
    await value.persister.save(if_changed=True)
    return value.persister.line


async def _restore_holdfast_agent(tree: Any, options: RestoreOptions, where: str) -> Any:
    from holdfast.agents.api.agent import restore_agent
    from holdfast.agents.definition.spec import registry
    from holdfast.agents.snapshots import holdfast_agents

    _check_no_agent_options(options, where)
    if options.store is None:
        raise SnapshotInvalidError(
            "restoring a Holdfast agent needs a store", where=where, hint="restore(…, store=holdfast.open(…))"
        )
    tree = await holdfast_agents.open_tree(tree, options.store, where)
    name = holdfast_agents.class_of(tree, where)
    if options.live:
        registry.get(name)  # its error says what to import, before anything is written
    line = holdfast_agents.line_of(options.store, tree["id"] if options.agent_id is None else options.agent_id)
    record = await holdfast_agents.import_agent(tree, line, where)
    return await restore_agent(options.store.agents, line.id, {}) if options.live else record


async def _restore_langchain_agent(tree: Any, rules: Any, options: RestoreOptions, where: str) -> Any:
    _require("langchain")
    from holdfast.agents.snapshots import langchain_agents

    if type(tree) is not dict or tree.keys() != {"agent", "thread"}:
        raise SnapshotCorruptError("the content does not have the fields of its kind", where=where)
    saver, code = options.checkpointer, options.code or langchain_agents.AgentCode()
    if tree["thread"] is not None and saver is None:
        from langgraph.checkpoint.memory import InMemorySaver

        saver = InMemorySaver()
    agent = langchain_agents.load_agent(tree["agent"], rules, code, saver, options.store, where)
    if tree["thread"] is None:
        if options.thread is not None:
            raise SnapshotInvalidError("the snapshot has no thread", where=where)
        return agent
    await BlockingCall(lambda: langchain_agents.load_thread(tree["thread"], saver, options.thread, where))
    return agent


def _create_history(cls: Any, messages: list[Any]) -> Any:
    """Create a chat history without LangChain's warning that the class is deprecated: its user has seen that."""
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


def _is_graph(value: Any) -> bool:
    """Whether a value is a graph of LangGraph, without importing LangGraph."""
    import sys

    module = sys.modules.get("langgraph.graph.state")
    if module is None or not isinstance(value, module.CompiledStateGraph):
        return False
    _require("langchain")
    return True


def _require(module: str) -> None:
    from importlib.util import find_spec

    if find_spec(module) is None:
        raise ConfigError(
            f"snapshots of this kind need {module}, which is not installed",
            hint=install("snapshots"),
            code="not-installed",
        )
