"""Verification of a whole store."""
