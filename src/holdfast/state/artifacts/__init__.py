"""Artifacts: files and values that agents register, with their content and links."""
