"""Explanations of the codes of errors, findings and checks."""
