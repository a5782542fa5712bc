"""Attacks on a store: hostile input and permission probes. `SecuritySuite` has all of them as tests."""
