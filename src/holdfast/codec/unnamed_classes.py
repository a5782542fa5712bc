"""Classes that cannot be found by their name, such as those that are defined in a function.

Only instances of classes that this process itself has packed come back, by the class that was packed last under the
stored name. Nothing here keeps a class alive: its plan, which refers to it, is kept in the class.
"""

from __future__ import annotations

import weakref
from contextlib import suppress

from holdfast.codec import class_lookup
from holdfast.codec.object_plans import ObjectPlan, plan_for

_PLAN = "__holdfast_plan__"
_packed: weakref.WeakValueDictionary[str, type] = weakref.WeakValueDictionary()


def remember(cls: type) -> ObjectPlan:
    """Return the plan of a class whose instance is packed, so that this process can read it again. Raises
    `UnsupportedError` if the class is not data."""
    plan = plan_of(cls)
    if plan is None:
        plan = plan_for(cls, unnamed=True)
        with suppress(TypeError):  # a class that is written in C has no room for it: it is planned each time
            type.__setattr__(cls, _PLAN, plan)
    _packed[plan.ref] = cls
    return plan


def plan_of(cls: type) -> ObjectPlan | None:
    """Return the plan of a class that was packed, and cannot be found by its name."""
    found = class_lookup.class_dict(cls).get(_PLAN)
    return found if isinstance(found, ObjectPlan) else None


def find_plan(ref: str) -> ObjectPlan | None:
    """Return the plan of the class that was packed last under a stored name, if it is still there."""
    cls = _packed.get(ref)
    return None if cls is None else plan_of(cls)
