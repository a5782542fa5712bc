"""Snapshots: an agent in one file. `holdfast.snapshots` is what programs import."""
