"""Encryption at rest, and its keys."""
