"""Snapshots: an agent in one file. Programs import `holdfast.snapshots`."""
