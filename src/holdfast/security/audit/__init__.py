"""The audit: recording what was done and denied, querying, exporting and verifying it."""
