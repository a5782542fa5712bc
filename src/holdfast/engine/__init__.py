"""Lines on a store: appending, reading, folding, branching, rewriting. All logic of several steps, written once."""
