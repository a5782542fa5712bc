"""Agents that survive: they are saved as they work, and come back as they were, whatever happened in between.

The rooms, from the ground up: what an author declares (`declared`), what the store has (`stored`), who keeps a live
agent (`keeping`), how one hands over to another (`transfer`), what a crash left (`recovery`), and what programs meet
(`live`). Each knows only those before it. All that is public can be had from here.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from holdfast.agents.declared.autosave import Autosave as Autosave
    from holdfast.agents.declared.building import AgentBuilder as AgentBuilder
    from holdfast.agents.declared.building import persistent as persistent
    from holdfast.agents.declared.machine import Machine as Machine
    from holdfast.agents.declared.machine import Transition as Transition
    from holdfast.agents.declared.settings import Policies as Policies
    from holdfast.agents.declared.settings import Settings as Settings
    from holdfast.agents.declared.specs import AgentRegistry as AgentRegistry
    from holdfast.agents.declared.specs import Persistent as Persistent
    from holdfast.agents.declared.specs import Spec as Spec
    from holdfast.agents.declared.specs import registry as registry
    from holdfast.agents.keeping.metrics import AgentMetrics as AgentMetrics
    from holdfast.agents.keeping.metrics import StoreMetrics as StoreMetrics
    from holdfast.agents.keeping.recoveries import Recovery as Recovery
    from holdfast.agents.live.agent import AgentOperations as AgentOperations
    from holdfast.agents.live.agent import AsyncPersistentAgent as AsyncPersistentAgent
    from holdfast.agents.live.agent import PersistentAgent as PersistentAgent
    from holdfast.agents.live.agents import Agents as Agents
    from holdfast.agents.live.agents import AgentsOperations as AgentsOperations
    from holdfast.agents.live.agents import AsyncAgents as AsyncAgents
    from holdfast.agents.live.conversation import AsyncConversation as AsyncConversation
    from holdfast.agents.live.conversation import Conversation as Conversation
    from holdfast.agents.live.conversation import Found as Found
    from holdfast.agents.live.kept import AsyncKept as AsyncKept
    from holdfast.agents.live.kept import Kept as Kept
    from holdfast.agents.live.tools import AsyncTools as AsyncTools
    from holdfast.agents.live.tools import Tool as Tool
    from holdfast.agents.live.tools import Tools as Tools
    from holdfast.agents.live.workflow import Workflow as Workflow
    from holdfast.agents.stored.listing import AgentInfo as AgentInfo
    from holdfast.agents.stored.listing import AgentStep as AgentStep
    from holdfast.agents.stored.picture import dot as dot
    from holdfast.agents.stored.picture import mermaid as mermaid
    from holdfast.agents.stored.record import AgentRecord as AgentRecord
    from holdfast.agents.stored.record import Pending as Pending
    from holdfast.agents.stored.record import Status as Status
    from holdfast.agents.stored.replay import Replayed as Replayed
    from holdfast.agents.stored.replay import replay as replay
    from holdfast.agents.stored.transitions import Changed as Changed
    from holdfast.agents.stored.transitions import Counts as Counts
    from holdfast.agents.stored.transitions import counts as counts
    from holdfast.agents.transfer.offers import Offer as Offer
    from holdfast.agents.transfer.offers import Transfer as Transfer

_AGENT = ("AgentOperations", "AsyncPersistentAgent", "PersistentAgent")
_AGENTS = ("Agents", "AgentsOperations", "AsyncAgents")
_AUTOSAVING = ("Autosave",)
_BUILDING = ("AgentBuilder", "persistent")
_CONVERSATION = ("AsyncConversation", "Conversation", "Found")
_KEPT = ("AsyncKept", "Kept")
_LISTING = ("AgentInfo", "AgentStep")
_MACHINE = ("Machine", "Transition")
_METRICS = ("AgentMetrics", "StoreMetrics")
_PICTURE = ("dot", "mermaid")
_RECORD = ("AgentRecord", "Pending", "Status")
_RECOVERY = ("Recovery",)
_REPLAY = ("Replayed", "replay")
_SETTINGS = ("Policies", "Settings")
_SPECS = ("AgentRegistry", "Persistent", "Spec", "registry")
_TOOLS = ("AsyncTools", "Tool", "Tools")
_TRANSFER = ("Offer", "Transfer")
_TRANSITIONS = ("Changed", "Counts", "counts")
_WORKFLOW = ("Workflow",)

__all__ = [  # noqa: PLE0604 - strings all of them
    *_AGENT,
    *_AGENTS,
    *_AUTOSAVING,
    *_BUILDING,
    *_CONVERSATION,
    *_KEPT,
    *_LISTING,
    *_MACHINE,
    *_METRICS,
    *_PICTURE,
    *_RECORD,
    *_RECOVERY,
    *_REPLAY,
    *_SETTINGS,
    *_SPECS,
    *_TOOLS,
    *_TRANSFER,
    *_TRANSITIONS,
    *_WORKFLOW,
]


def __getattr__(name: str) -> Any:
    # Loaded on first use, so that whoever only looks at a store starts as soon as before.
    found: Any = None
    if name in _AGENT:
        from holdfast.agents.live import agent as found
    elif name in _AGENTS:
        from holdfast.agents.live import agents as found
    elif name in _AUTOSAVING:
        from holdfast.agents.declared import autosave as found
    elif name in _BUILDING:
        from holdfast.agents.declared import building as found
    elif name in _CONVERSATION:
        from holdfast.agents.live import conversation as found
    elif name in _KEPT:
        from holdfast.agents.live import kept as found
    elif name in _LISTING:
        from holdfast.agents.stored import listing as found
    elif name in _MACHINE:
        from holdfast.agents.declared import machine as found
    elif name in _METRICS:
        from holdfast.agents.keeping import metrics as found
    elif name in _PICTURE:
        from holdfast.agents.stored import picture as found
    elif name in _RECORD:
        from holdfast.agents.stored import record as found
    elif name in _RECOVERY:
        from holdfast.agents.keeping import recoveries as found
    elif name in _REPLAY:
        from holdfast.agents.stored import replay as found
    elif name in _SETTINGS:
        from holdfast.agents.declared import settings as found
    elif name in _SPECS:
        from holdfast.agents.declared import specs as found
    elif name in _TOOLS:
        from holdfast.agents.live import tools as found
    elif name in _TRANSFER:
        from holdfast.agents.transfer import offers as found
    elif name in _TRANSITIONS:
        from holdfast.agents.stored import transitions as found
    elif name in _WORKFLOW:
        from holdfast.agents.live import workflow as found
    if found is None:
        raise AttributeError(f"module 'holdfast.agents' has no attribute {name!r}")
    return getattr(found, name)


def __dir__() -> list[str]:
    return sorted(__all__)
