"""Scoped state: keys and values of agents, users, sessions and workflows, each scope a line of steps."""
