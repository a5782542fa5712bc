"""Recovery of agents that did not end properly, and rollback to earlier states."""
