"""Durable steps of agents: results that are recorded and not computed again, timers and signals.

All of it is in one line of an agent, beside the one of its states: a rollback of the agent takes no charge back.
"""
