"""Agents as programs meet them."""
