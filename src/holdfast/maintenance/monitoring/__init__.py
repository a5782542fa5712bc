"""Monitoring: the metrics of a store, and alerts."""
