"""Agents that survive: they are saved as they work, and come back as they were, whatever happened in between."""
