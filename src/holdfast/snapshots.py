"""Snapshots: agents in one file.

    from holdfast import snapshots

    snapshots.snapshot(chain, "support.hfsnap", description="before the new prompt")
    snapshots.info("support.hfsnap").versions
    chain = snapshots.restore("support.hfsnap", secrets={"OPENAI_API_KEY": key}, allow=[ChatOpenAI])

A snapshot holds a runnable, a prompt, messages, a chat history, an agent of `langchain.agents.create_agent`, or a
`PersistentAgent`. It is a file that `zcat` opens, or an object in a bucket; every changed byte of it is detected. The
forms for asyncio are `asnapshot` and `arestore`; the other functions are short.
"""

from typing import TYPE_CHECKING

from holdfast.agents.snapshots.api import (
    arestore,
    asnapshot,
    delete,
    exists,
    info,
    list,  # noqa: A004 - reads as snapshots.list
    restore,
    snapshot,
    verify,
)

if TYPE_CHECKING:
    from holdfast.agents.snapshots.holdfast_agents import StoredAgent
else:  # loaded on first use: snapshots of LangChain need no store
    from holdfast._lazy import exports

    _, __getattr__, _ = exports(__name__, {"holdfast.agents.snapshots.holdfast_agents": ("StoredAgent",)})

__all__ = ["StoredAgent", "arestore", "asnapshot", "delete", "exists", "info", "list", "restore", "snapshot", "verify"]
