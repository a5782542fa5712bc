"""Runs: work on threads that is submitted, and done by workers; what a dead worker left is taken up by another."""
