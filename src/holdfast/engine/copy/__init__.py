"""Copying lines, within a store and between stores."""
