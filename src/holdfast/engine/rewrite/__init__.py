"""Rewriting the history of a line: removal of steps with the states that remain unchanged."""
