"""Checks that stored rows are what was written, step by step and part by part."""
