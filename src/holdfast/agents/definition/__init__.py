"""Definitions of agents by their authors: classes, fields, state machines, options. Nothing here uses a store."""
