"""Persistent agents: state machines whose changes are saved, with durable steps, timers and transfers."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from holdfast.agents.api.agent import AsyncPersistentAgent as AsyncPersistentAgent
    from holdfast.agents.api.agent import PersistentAgent as PersistentAgent
    from holdfast.agents.definition.builder import AgentBuilder as AgentBuilder
    from holdfast.agents.definition.builder import persistent as persistent
    from holdfast.agents.definition.options import Autosave as Autosave
    from holdfast.agents.definition.state_machine import Machine as Machine
    from holdfast.agents.runtime.two_phase import Recovery as Recovery
    from holdfast.agents.steps.once import Retry as Retry
    from holdfast.agents.steps.records import StepRecord as StepRecord
    from holdfast.agents.storage.transition_log import check_transitions as check_transitions
    from holdfast.agents.storage.transition_log import count_transitions as count_transitions
    from holdfast.agents.storage.transition_log import mermaid as mermaid
    from holdfast.agents.transfer.offer import Offer as Offer

_MODULES = {
    "holdfast.agents.api.agent": ("AsyncPersistentAgent", "PersistentAgent"),
    "holdfast.agents.definition.builder": ("AgentBuilder", "persistent"),
    "holdfast.agents.definition.options": ("Autosave",),
    "holdfast.agents.definition.state_machine": ("Machine",),
    "holdfast.agents.runtime.two_phase": ("Recovery",),
    "holdfast.agents.steps.once": ("Retry",),
    "holdfast.agents.steps.records": ("StepRecord",),
    "holdfast.agents.storage.transition_log": ("check_transitions", "count_transitions", "mermaid"),
    "holdfast.agents.transfer.offer": ("Offer",),
}

if not TYPE_CHECKING:  # a type checker is to see the names above, and no others
    from holdfast._lazy import exports

    __all__, __getattr__, __dir__ = exports(__name__, _MODULES)
