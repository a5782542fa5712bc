"""Agents that survive: they are saved as they work, and come back as they were, whatever happened in between.

The packages, each importing only those before it: `definition` (what an author declares), `storage` (records and
lines in the store), `runtime` (saving a live agent), `transfer` (handing over to another agent), `recovery` (after a
crash), `api` (what programs use) and `snapshots` (an agent in one file). All that is public can be imported from here.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from holdfast.agents.api.agent import AgentOperations as AgentOperations
    from holdfast.agents.api.agent import AsyncPersistentAgent as AsyncPersistentAgent
    from holdfast.agents.api.agent import PersistentAgent as PersistentAgent
    from holdfast.agents.api.agents import Agents as Agents
    from holdfast.agents.api.agents import AgentsOperations as AgentsOperations
    from holdfast.agents.api.agents import AsyncAgents as AsyncAgents
    from holdfast.agents.api.conversation import AsyncConversation as AsyncConversation
    from holdfast.agents.api.conversation import Conversation as Conversation
    from holdfast.agents.api.conversation import MessageMatch as MessageMatch
    from holdfast.agents.api.handle import AgentHandle as AgentHandle
    from holdfast.agents.api.handle import AsyncAgentHandle as AsyncAgentHandle
    from holdfast.agents.api.tools import AsyncTools as AsyncTools
    from holdfast.agents.api.tools import Tool as Tool
    from holdfast.agents.api.tools import Tools as Tools
    from holdfast.agents.api.workflow import Workflow as Workflow
    from holdfast.agents.definition.autosave import Autosave as Autosave
    from holdfast.agents.definition.builder import AgentBuilder as AgentBuilder
    from holdfast.agents.definition.builder import persistent as persistent
    from holdfast.agents.definition.options import AgentOptions as AgentOptions
    from holdfast.agents.definition.options import Policies as Policies
    from holdfast.agents.definition.spec import AgentRegistry as AgentRegistry
    from holdfast.agents.definition.spec import Persistent as Persistent
    from holdfast.agents.definition.spec import Spec as Spec
    from holdfast.agents.definition.spec import registry as registry
    from holdfast.agents.definition.state_machine import Machine as Machine
    from holdfast.agents.definition.state_machine import Transition as Transition
    from holdfast.agents.runtime.metrics import AgentMetrics as AgentMetrics
    from holdfast.agents.runtime.metrics import StoreMetrics as StoreMetrics
    from holdfast.agents.runtime.recovery_report import Recovery as Recovery
    from holdfast.agents.storage.diagram import dot as dot
    from holdfast.agents.storage.diagram import mermaid as mermaid
    from holdfast.agents.storage.listing import AgentInfo as AgentInfo
    from holdfast.agents.storage.listing import AgentStep as AgentStep
    from holdfast.agents.storage.record import AgentRecord as AgentRecord
    from holdfast.agents.storage.record import PendingChange as PendingChange
    from holdfast.agents.storage.record import Status as Status
    from holdfast.agents.storage.transition_check import TransitionCheck as TransitionCheck
    from holdfast.agents.storage.transition_check import check_transitions as check_transitions
    from holdfast.agents.storage.transition_log import TransitionCounts as TransitionCounts
    from holdfast.agents.storage.transition_log import TransitionRecord as TransitionRecord
    from holdfast.agents.storage.transition_log import counts as counts
    from holdfast.agents.transfer.offer import Offer as Offer
    from holdfast.agents.transfer.offer import Transfer as Transfer

_AGENT = ("AgentOperations", "AsyncPersistentAgent", "PersistentAgent")
_AGENTS = ("Agents", "AgentsOperations", "AsyncAgents")
_AUTOSAVING = ("Autosave",)
_BUILDING = ("AgentBuilder", "persistent")
_CONVERSATION = ("AsyncConversation", "Conversation", "MessageMatch")
_KEPT = ("AsyncAgentHandle", "AgentHandle")
_LISTING = ("AgentInfo", "AgentStep")
_MACHINE = ("Machine", "Transition")
_METRICS = ("AgentMetrics", "StoreMetrics")
_PICTURE = ("dot", "mermaid")
_RECORD = ("AgentRecord", "PendingChange", "Status")
_RECOVERY = ("Recovery",)
_REPLAY = ("TransitionCheck", "check_transitions")
_SETTINGS = ("Policies", "AgentOptions")
_SPECS = ("AgentRegistry", "Persistent", "Spec", "registry")
_TOOLS = ("AsyncTools", "Tool", "Tools")
_TRANSFER = ("Offer", "Transfer")
_TRANSITIONS = ("TransitionRecord", "TransitionCounts", "counts")
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
        from holdfast.agents.api import agent as found
    elif name in _AGENTS:
        from holdfast.agents.api import agents as found
    elif name in _AUTOSAVING:
        from holdfast.agents.definition import autosave as found
    elif name in _BUILDING:
        from holdfast.agents.definition import builder as found
    elif name in _CONVERSATION:
        from holdfast.agents.api import conversation as found
    elif name in _KEPT:
        from holdfast.agents.api import handle as found
    elif name in _LISTING:
        from holdfast.agents.storage import listing as found
    elif name in _MACHINE:
        from holdfast.agents.definition import state_machine as found
    elif name in _METRICS:
        from holdfast.agents.runtime import metrics as found
    elif name in _PICTURE:
        from holdfast.agents.storage import diagram as found
    elif name in _RECORD:
        from holdfast.agents.storage import record as found
    elif name in _RECOVERY:
        from holdfast.agents.runtime import recovery_report as found
    elif name in _REPLAY:
        from holdfast.agents.storage import transition_check as found
    elif name in _SETTINGS:
        from holdfast.agents.definition import options as found
    elif name in _SPECS:
        from holdfast.agents.definition import spec as found
    elif name in _TOOLS:
        from holdfast.agents.api import tools as found
    elif name in _TRANSFER:
        from holdfast.agents.transfer import offer as found
    elif name in _TRANSITIONS:
        from holdfast.agents.storage import transition_log as found
    elif name in _WORKFLOW:
        from holdfast.agents.api import workflow as found
    if found is None:
        raise AttributeError(f"module 'holdfast.agents' has no attribute {name!r}")
    return getattr(found, name)


def __dir__() -> list[str]:
    return sorted(__all__)
