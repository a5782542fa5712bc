"""Mending history: retention, verification, repair, export."""
