"""Durable agents: they are saved as they work, and restored as they were, whatever happened in between.

The packages, each importing only those before it: `definition` (classes of agents), `storage` (records and lines in the
store), `runtime` (saving a live agent), `transfer` (handing over to another agent), `recovery` (after a crash), `api`
(the API for programs) and `snapshots` (an agent in one file). All public names can be imported from here.
"""

from typing import TYPE_CHECKING

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
    from holdfast.agents.api.tools import tools_of_record as tools_of_record
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

_EXPORTS = {
    "AgentBuilder": "holdfast.agents.definition.builder",
    "AgentHandle": "holdfast.agents.api.handle",
    "AgentInfo": "holdfast.agents.storage.listing",
    "AgentMetrics": "holdfast.agents.runtime.metrics",
    "AgentOperations": "holdfast.agents.api.handle",
    "AgentOptions": "holdfast.agents.definition.options",
    "AgentRecord": "holdfast.agents.storage.record",
    "AgentRegistry": "holdfast.agents.definition.spec",
    "AgentStep": "holdfast.agents.storage.listing",
    "Agents": "holdfast.agents.api.agents",
    "AgentsOperations": "holdfast.agents.api.agents",
    "AsyncAgentHandle": "holdfast.agents.api.handle",
    "AsyncAgents": "holdfast.agents.api.agents",
    "AsyncConversation": "holdfast.agents.api.conversation",
    "AsyncPersistentAgent": "holdfast.agents.api.agent",
    "AsyncTools": "holdfast.agents.api.tools",
    "Autosave": "holdfast.agents.definition.autosave",
    "Conversation": "holdfast.agents.api.conversation",
    "Machine": "holdfast.agents.definition.state_machine",
    "MessageMatch": "holdfast.agents.api.conversation",
    "Offer": "holdfast.agents.transfer.offer",
    "PendingChange": "holdfast.agents.storage.record",
    "Persistent": "holdfast.agents.definition.spec",
    "PersistentAgent": "holdfast.agents.api.agent",
    "Policies": "holdfast.agents.definition.options",
    "Recovery": "holdfast.agents.runtime.recovery_report",
    "Spec": "holdfast.agents.definition.spec",
    "Status": "holdfast.agents.storage.record",
    "StoreMetrics": "holdfast.agents.runtime.metrics",
    "Tool": "holdfast.agents.api.tools",
    "Tools": "holdfast.agents.api.tools",
    "Transfer": "holdfast.agents.transfer.offer",
    "Transition": "holdfast.agents.definition.state_machine",
    "TransitionCheck": "holdfast.agents.storage.transition_check",
    "TransitionCounts": "holdfast.agents.storage.transition_log",
    "TransitionRecord": "holdfast.agents.storage.transition_log",
    "Workflow": "holdfast.agents.api.workflow",
    "check_transitions": "holdfast.agents.storage.transition_check",
    "counts": "holdfast.agents.storage.transition_log",
    "dot": "holdfast.agents.storage.diagram",
    "mermaid": "holdfast.agents.storage.diagram",
    "persistent": "holdfast.agents.definition.builder",
    "registry": "holdfast.agents.definition.spec",
    "tools_of_record": "holdfast.agents.api.tools",
}

__all__ = [*_EXPORTS]  # noqa: PLE0604 - strings all of them

if not TYPE_CHECKING:  # a type checker is to see the names above, and no others
    from holdfast._lazy import exports

    __getattr__ = exports(__name__, _EXPORTS)


def __dir__() -> list[str]:
    return sorted(__all__)
