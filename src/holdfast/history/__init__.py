"""Seeing history: revisions, differences, blame, merges, queries, search."""
