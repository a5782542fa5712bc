"""Stored agents: their lines, records and history, read without a live agent."""
