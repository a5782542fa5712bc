"""Repair of a damaged store, from other copies where there are any."""
