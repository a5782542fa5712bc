"""Lines, steps, differences, merges and folded states as pure functions over packed bytes: no I/O, no clock."""

from holdfast.engine.model.diff import diff, diff_maps
from holdfast.engine.model.merge import Clash, Merged, Resolution, merge
from holdfast.engine.model.operations import EditList, EditMap, EditText, Operation, Set, apply, apply_map
from holdfast.engine.model.packed_state import Packed, PackedMap, flatten, pack_state, unpack_state
from holdfast.engine.model.steps import Header, Parent, Step

__all__ = [
    "Clash",
    "EditList",
    "EditMap",
    "EditText",
    "Header",
    "Merged",
    "Operation",
    "Packed",
    "PackedMap",
    "Parent",
    "Resolution",
    "Set",
    "Step",
    "apply",
    "apply_map",
    "diff",
    "diff_maps",
    "flatten",
    "merge",
    "pack_state",
    "unpack_state",
]
