"""Durable agents: they are saved as they work, and restored as they were, whatever happened in between.

The packages, each importing only those before it: `definition` (classes of agents), `storage` (records and lines in the
store), `runtime` (saving a live agent), `transfer` (handing over to another agent), `recovery` (after a crash), `api`
(the API for programs) and `snapshots` (an agent in one file). All public names can be imported from here.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from holdfast.agents.api.agent import AsyncPersistentAgent as AsyncPersistentAgent
    from holdfast.agents.api.agent import PersistentAgent as PersistentAgent
    from holdfast.agents.api.agents import Agents as Agents
    from holdfast.agents.api.agents import AgentsOperations as AgentsOperations
    from holdfast.agents.api.agents import AsyncAgents as AsyncAgents
    from holdfast.agents.api.conversation import AsyncConversation as AsyncConversation
    from holdfast.agents.api.conversation import Conversation as Conversation
    from holdfast.agents.api.conversation import MessageMatch as MessageMatch
    from holdfast.agents.api.handle import AgentHandle as AgentHandle
    from holdfast.agents.api.handle import AgentOperations as AgentOperations
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

_AGENT = ("AsyncPersistentAgent", "PersistentAgent")
_AGENTS = ("Agents", "AgentsOperations", "AsyncAgents")
_AUTOSAVE = ("Autosave",)
_BUILDER = ("AgentBuilder", "persistent")
_CONVERSATION = ("AsyncConversation", "Conversation", "MessageMatch")
_HANDLE = ("AgentHandle", "AgentOperations", "AsyncAgentHandle")
_LISTING = ("AgentInfo", "AgentStep")
_STATE_MACHINE = ("Machine", "Transition")
_METRICS = ("AgentMetrics", "StoreMetrics")
_DIAGRAM = ("dot", "mermaid")
_RECORD = ("AgentRecord", "PendingChange", "Status")
_RECOVERY_REPORT = ("Recovery",)
_TRANSITION_CHECK = ("TransitionCheck", "check_transitions")
_OPTIONS = ("Policies", "AgentOptions")
_SPEC = ("AgentRegistry", "Persistent", "Spec", "registry")
_TOOLS = ("AsyncTools", "Tool", "Tools")
_OFFER = ("Offer", "Transfer")
_TRANSITION_LOG = ("TransitionRecord", "TransitionCounts", "counts")
_WORKFLOW = ("Workflow",)

__all__ = [  # noqa: PLE0604 - strings all of them
    *_AGENT,
    *_AGENTS,
    *_AUTOSAVE,
    *_BUILDER,
    *_CONVERSATION,
    *_HANDLE,
    *_LISTING,
    *_STATE_MACHINE,
    *_METRICS,
    *_DIAGRAM,
    *_RECORD,
    *_RECOVERY_REPORT,
    *_TRANSITION_CHECK,
    *_OPTIONS,
    *_SPEC,
    *_TOOLS,
    *_OFFER,
    *_TRANSITION_LOG,
    *_WORKFLOW,
]


def __getattr__(name: str) -> Any:
    # Imported on first use, so that a program without agents starts as fast.
    module: Any = None
    if name in _AGENT:
        from holdfast.agents.api import agent as module
    elif name in _AGENTS:
        from holdfast.agents.api import agents as module
    elif name in _AUTOSAVE:
        from holdfast.agents.definition import autosave as module
    elif name in _BUILDER:
        from holdfast.agents.definition import builder as module
    elif name in _CONVERSATION:
        from holdfast.agents.api import conversation as module
    elif name in _HANDLE:
        from holdfast.agents.api import handle as module
    elif name in _LISTING:
        from holdfast.agents.storage import listing as module
    elif name in _STATE_MACHINE:
        from holdfast.agents.definition import state_machine as module
    elif name in _METRICS:
        from holdfast.agents.runtime import metrics as module
    elif name in _DIAGRAM:
        from holdfast.agents.storage import diagram as module
    elif name in _RECORD:
        from holdfast.agents.storage import record as module
    elif name in _RECOVERY_REPORT:
        from holdfast.agents.runtime import recovery_report as module
    elif name in _TRANSITION_CHECK:
        from holdfast.agents.storage import transition_check as module
    elif name in _OPTIONS:
        from holdfast.agents.definition import options as module
    elif name in _SPEC:
        from holdfast.agents.definition import spec as module
    elif name in _TOOLS:
        from holdfast.agents.api import tools as module
    elif name in _OFFER:
        from holdfast.agents.transfer import offer as module
    elif name in _TRANSITION_LOG:
        from holdfast.agents.storage import transition_log as module
    elif name in _WORKFLOW:
        from holdfast.agents.api import workflow as module
    if module is None:
        raise AttributeError(f"module 'holdfast.agents' has no attribute {name!r}")
    return getattr(module, name)


def __dir__() -> list[str]:
    return sorted(__all__)
