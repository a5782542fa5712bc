"""Sessions: state for the length of one conversation or task, and how it ends."""
