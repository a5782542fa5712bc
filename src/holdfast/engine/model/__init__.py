"""Lines, steps, differences, merges and folded states as pure functions over packed bytes: no I/O, no clock."""
