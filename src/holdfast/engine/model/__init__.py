"""Lines, steps, differences, merges and folded states as pure functions over packed bytes: no I/O, no clock."""

from holdfast.engine.model.diff import diff, diff_maps
from holdfast.engine.model.merge import MergedState, PackedConflict, PackedResolution, merge
from holdfast.engine.model.operations import EditList, EditMap, EditText, Operation, Set, apply, apply_map
from holdfast.engine.model.packed_state import Packed, PackedMap, flatten, pack_state, unpack_state
from holdfast.engine.model.steps import Step, StepHeader, StepParent

__all__ = [
    "EditList",
    "EditMap",
    "EditText",
    "MergedState",
    "Operation",
    "Packed",
    "PackedConflict",
    "PackedMap",
    "PackedResolution",
    "Set",
    "Step",
    "StepHeader",
    "StepParent",
    "apply",
    "apply_map",
    "diff",
    "diff_maps",
    "flatten",
    "merge",
    "pack_state",
    "unpack_state",
]
