"""Durable agents: they are saved as they work, and restored as they were, whatever happened in between.

The packages, each importing only those before it: `definition` (classes of agents), `storage` (records and lines in the
store), `runtime` (saving a live agent), `steps` (durable steps, timers and signals), `transfer` (handing over to
another agent), `recovery` (after a crash), `api` (the API for programs) and `snapshots` (an agent in one file). All
public names can be imported from here.
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
    from holdfast.agents.api.workflow import Workflow as Workflow
    from holdfast.agents.definition.builder import AgentBuilder as AgentBuilder
    from holdfast.agents.definition.builder import persistent as persistent
    from holdfast.agents.definition.options import AgentOptions as AgentOptions
    from holdfast.agents.definition.options import Autosave as Autosave
    from holdfast.agents.definition.options import Policies as Policies
    from holdfast.agents.definition.spec import AgentRegistry as AgentRegistry
    from holdfast.agents.definition.spec import Persistent as Persistent
    from holdfast.agents.definition.spec import Spec as Spec
    from holdfast.agents.definition.spec import registry as registry
    from holdfast.agents.definition.state_machine import Machine as Machine
    from holdfast.agents.definition.state_machine import Transition as Transition
    from holdfast.agents.runtime.metrics import AgentMetrics as AgentMetrics
    from holdfast.agents.runtime.metrics import StoreMetrics as StoreMetrics
    from holdfast.agents.runtime.two_phase import Recovery as Recovery
    from holdfast.agents.steps.api import AsyncSteps as AsyncSteps
    from holdfast.agents.steps.api import AsyncTimers as AsyncTimers
    from holdfast.agents.steps.api import Steps as Steps
    from holdfast.agents.steps.api import Timers as Timers
    from holdfast.agents.steps.once import Retry as Retry
    from holdfast.agents.steps.records import RETRY as RETRY
    from holdfast.agents.steps.records import StepRecord as StepRecord
    from holdfast.agents.steps.retention import PrunedSteps as PrunedSteps
    from holdfast.agents.steps.signals import Signal as Signal
    from holdfast.agents.steps.timers import Timer as Timer
    from holdfast.agents.storage.diagram import dot as dot
    from holdfast.agents.storage.diagram import mermaid as mermaid
    from holdfast.agents.storage.listing import AgentInfo as AgentInfo
    from holdfast.agents.storage.listing import AgentStep as AgentStep
    from holdfast.agents.storage.record import AgentRecord as AgentRecord
    from holdfast.agents.storage.record import PendingChange as PendingChange
    from holdfast.agents.storage.record import Status as Status
    from holdfast.agents.storage.transition_log import TransitionCheck as TransitionCheck
    from holdfast.agents.storage.transition_log import TransitionCounts as TransitionCounts
    from holdfast.agents.storage.transition_log import TransitionKey as TransitionKey
    from holdfast.agents.storage.transition_log import TransitionRecord as TransitionRecord
    from holdfast.agents.storage.transition_log import check_transitions as check_transitions
    from holdfast.agents.storage.transition_log import count_transitions as count_transitions
    from holdfast.agents.transfer.offer import Offer as Offer
    from holdfast.agents.transfer.offer import Transfer as Transfer

_MODULES = {
    "holdfast.agents.api.agent": ("AsyncPersistentAgent", "PersistentAgent"),
    "holdfast.agents.api.agents": ("Agents", "AgentsOperations", "AsyncAgents"),
    "holdfast.agents.api.conversation": ("AsyncConversation", "Conversation", "MessageMatch"),
    "holdfast.agents.api.handle": ("AgentHandle", "AgentOperations", "AsyncAgentHandle"),
    "holdfast.agents.api.tools": ("AsyncTools", "Tool", "Tools"),
    "holdfast.agents.api.workflow": ("Workflow",),
    "holdfast.agents.definition.builder": ("AgentBuilder", "persistent"),
    "holdfast.agents.definition.options": ("AgentOptions", "Autosave", "Policies"),
    "holdfast.agents.definition.spec": ("AgentRegistry", "Persistent", "Spec", "registry"),
    "holdfast.agents.definition.state_machine": ("Machine", "Transition"),
    "holdfast.agents.runtime.metrics": ("AgentMetrics", "StoreMetrics"),
    "holdfast.agents.runtime.two_phase": ("Recovery",),
    "holdfast.agents.steps.api": ("AsyncSteps", "AsyncTimers", "Steps", "Timers"),
    "holdfast.agents.steps.once": ("Retry",),
    "holdfast.agents.steps.records": ("RETRY", "StepRecord"),
    "holdfast.agents.steps.retention": ("PrunedSteps",),
    "holdfast.agents.steps.signals": ("Signal",),
    "holdfast.agents.steps.timers": ("Timer",),
    "holdfast.agents.storage.diagram": ("dot", "mermaid"),
    "holdfast.agents.storage.listing": ("AgentInfo", "AgentStep"),
    "holdfast.agents.storage.record": ("AgentRecord", "PendingChange", "Status"),
    "holdfast.agents.storage.transition_log": (
        "TransitionCheck",
        "TransitionCounts",
        "TransitionKey",
        "TransitionRecord",
        "check_transitions",
        "count_transitions",
    ),
    "holdfast.agents.transfer.offer": ("Offer", "Transfer"),
}

if not TYPE_CHECKING:  # a type checker is to see the names above, and no others
    from holdfast._lazy import exports

    __all__, __getattr__, __dir__ = exports(__name__, _MODULES)
