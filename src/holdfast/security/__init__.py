"""Identities, their rights, and the audit of what they did."""
