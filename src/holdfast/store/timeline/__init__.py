"""The timeline: everything that happened in a store, on one axis of time."""
