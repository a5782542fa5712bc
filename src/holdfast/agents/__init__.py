"""Agents that survive: they are saved as they work, and come back as they were, whatever happened in between."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from holdfast.agents.agent import AgentOperations as AgentOperations
    from holdfast.agents.agent import AsyncPersistentAgent as AsyncPersistentAgent
    from holdfast.agents.agent import PersistentAgent as PersistentAgent
    from holdfast.agents.agents import Agents as Agents
    from holdfast.agents.agents import AgentsOperations as AgentsOperations
    from holdfast.agents.agents import AsyncAgents as AsyncAgents
    from holdfast.agents.autosaving import Autosave as Autosave
    from holdfast.agents.building import AgentBuilder as AgentBuilder
    from holdfast.agents.building import persistent as persistent
    from holdfast.agents.conversation import AsyncConversation as AsyncConversation
    from holdfast.agents.conversation import Conversation as Conversation
    from holdfast.agents.conversation import Found as Found
    from holdfast.agents.history import Changed as Changed
    from holdfast.agents.history import Counts as Counts
    from holdfast.agents.history import Replayed as Replayed
    from holdfast.agents.history import counts as counts
    from holdfast.agents.history import replay as replay
    from holdfast.agents.kept import AsyncKept as AsyncKept
    from holdfast.agents.kept import Kept as Kept
    from holdfast.agents.listing import AgentInfo as AgentInfo
    from holdfast.agents.listing import AgentStep as AgentStep
    from holdfast.agents.machine import Machine as Machine
    from holdfast.agents.machine import Transition as Transition
    from holdfast.agents.metrics import AgentMetrics as AgentMetrics
    from holdfast.agents.metrics import StoreMetrics as StoreMetrics
    from holdfast.agents.picture import dot as dot
    from holdfast.agents.picture import mermaid as mermaid
    from holdfast.agents.record import AgentRecord as AgentRecord
    from holdfast.agents.record import Pending as Pending
    from holdfast.agents.record import Status as Status
    from holdfast.agents.recovery import Recovery as Recovery
    from holdfast.agents.settings import Policies as Policies
    from holdfast.agents.settings import Settings as Settings
    from holdfast.agents.specs import AgentRegistry as AgentRegistry
    from holdfast.agents.specs import Persistent as Persistent
    from holdfast.agents.specs import Spec as Spec
    from holdfast.agents.specs import registry as registry
    from holdfast.agents.tools import AsyncTools as AsyncTools
    from holdfast.agents.tools import Tool as Tool
    from holdfast.agents.tools import Tools as Tools
    from holdfast.agents.transfer import Offer as Offer
    from holdfast.agents.transfer import Transfer as Transfer
    from holdfast.agents.workflow import Workflow as Workflow

_AGENT = ("AgentOperations", "AsyncPersistentAgent", "PersistentAgent")
_AGENTS = ("Agents", "AgentsOperations", "AsyncAgents")
_AUTOSAVING = ("Autosave",)
_BUILDING = ("AgentBuilder", "persistent")
_CONVERSATION = ("AsyncConversation", "Conversation", "Found")
_HISTORY = ("Changed", "Counts", "Replayed", "counts", "replay")
_KEPT = ("AsyncKept", "Kept")
_LISTING = ("AgentInfo", "AgentStep")
_MACHINE = ("Machine", "Transition")
_METRICS = ("AgentMetrics", "StoreMetrics")
_PICTURE = ("dot", "mermaid")
_RECORD = ("AgentRecord", "Pending", "Status")
_RECOVERY = ("Recovery",)
_SETTINGS = ("Policies", "Settings")
_SPECS = ("AgentRegistry", "Persistent", "Spec", "registry")
_TOOLS = ("AsyncTools", "Tool", "Tools")
_TRANSFER = ("Offer", "Transfer")
_WORKFLOW = ("Workflow",)

__all__ = [  # noqa: PLE0604 - strings all of them
    *_AGENT,
    *_AGENTS,
    *_AUTOSAVING,
    *_BUILDING,
    *_CONVERSATION,
    *_HISTORY,
    *_KEPT,
    *_LISTING,
    *_MACHINE,
    *_METRICS,
    *_PICTURE,
    *_RECORD,
    *_RECOVERY,
    *_SETTINGS,
    *_SPECS,
    *_TOOLS,
    *_TRANSFER,
    *_WORKFLOW,
]


def __getattr__(name: str) -> Any:
    # Loaded on first use, so that whoever only looks at a store starts as soon as before.
    found: Any = None
    if name in _AGENT:
        from holdfast.agents import agent as found
    elif name in _AGENTS:
        from holdfast.agents import agents as found
    elif name in _AUTOSAVING:
        from holdfast.agents import autosaving as found
    elif name in _BUILDING:
        from holdfast.agents import building as found
    elif name in _CONVERSATION:
        from holdfast.agents import conversation as found
    elif name in _HISTORY:
        from holdfast.agents import history as found
    elif name in _KEPT:
        from holdfast.agents import kept as found
    elif name in _LISTING:
        from holdfast.agents import listing as found
    elif name in _MACHINE:
        from holdfast.agents import machine as found
    elif name in _METRICS:
        from holdfast.agents import metrics as found
    elif name in _PICTURE:
        from holdfast.agents import picture as found
    elif name in _RECORD:
        from holdfast.agents import record as found
    elif name in _RECOVERY:
        from holdfast.agents import recovery as found
    elif name in _SETTINGS:
        from holdfast.agents import settings as found
    elif name in _SPECS:
        from holdfast.agents import specs as found
    elif name in _TOOLS:
        from holdfast.agents import tools as found
    elif name in _TRANSFER:
        from holdfast.agents import transfer as found
    elif name in _WORKFLOW:
        from holdfast.agents import workflow as found
    if found is None:
        raise AttributeError(f"module 'holdfast.agents' has no attribute {name!r}")
    return getattr(found, name)


def __dir__() -> list[str]:
    return sorted(__all__)
