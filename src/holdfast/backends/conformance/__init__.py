"""The conformance suite for backends. `holdfast.testing` is what test files import."""
