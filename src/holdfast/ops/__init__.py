"""Scheduled work, and looking a store over."""
