"""The full-text index: extracting words from states, and keeping the index in step with the log."""
