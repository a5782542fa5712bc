"""Lines, steps, differences, merges and folded states as pure functions over packed bytes: no I/O, no clock."""

from holdfast.model.diff import diff, diff_maps
from holdfast.model.merge import Clash, Merged, Resolution, merge
from holdfast.model.operations import EditList, EditMap, EditText, Operation, Set, apply, apply_map
from holdfast.model.packed import Packed, PackedMap, flatten, pack_state, unpack_state
from holdfast.model.steps import Header, Parent, Step

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
